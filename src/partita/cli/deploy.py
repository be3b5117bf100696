"""The commands of a run on real devices: `serve`, `join`, `keys`, `outbox` and `flower`."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from partita.cli.continuing import continued
from partita.cli.given import config_of
from partita.cli.output import console, json_printer, log, print_json
from partita.cli.run import print_run
from partita.cli.signals import Interrupts
from partita.errors import ConfigError, needed
from partita.shown import shown_lines

if TYPE_CHECKING:
    from partita.deploy.joining import Joined
    from partita.deploy.listening import Listening
    from partita.deploy.serving import Server, Serving


def serve(options: argparse.Namespace) -> int:
    """Run a config with devices on other machines, or resume such a run."""
    _need_extra("`partita serve`")
    from partita.deploy.checking import digest_of_all
    from partita.deploy.listening import serving
    from partita.deploy.status import StatusBoard
    from partita.progress.display import Display
    from partita.runs.warnings import has_failed_stage

    at, server = _listening(options), _server(options)
    board = StatusBoard(server.config.name, server.hub)
    again = ["--resume", "--home", str(options.home), "--listen", options.listen]
    with continued("serve", options.home, by=again), serving(server, at, board) as service:
        log(options, f"Listening on {at.host}:{service.port}")
        if at.status is not None:
            log(options, f"The status is at http://127.0.0.1:{at.status}")
        log(options, f"Devices must compute with {digest_of_all(server.hub.computes)}")
        if not options.resume:
            log(options, f"Waiting for {options.devices} devices")
        run = server.resumed() if options.resume else server.begin(options.command_line)
        log(options, f"Running in {run.folder.path}")
        with Interrupts() as interrupts, Display(console(options)) as display:
            watch = interrupts.after(json_printer(options) or display.watch)
            server.finish(run, board.before(watch))
    print_run(options, run.folder)
    return 1 if has_failed_stage(run.folder) else 0


def _server(options: argparse.Namespace) -> "Server":
    from partita.config.reading import read_config
    from partita.deploy.serving import new_server, resumed_server

    settings = _serving(options)
    if options.resume:
        return resumed_server(settings, options.arguments)
    path, overrides = config_of(options.arguments)
    return new_server(settings, read_config(path, overrides), path.parent)


def _listening(options: argparse.Namespace) -> "Listening":
    from partita.deploy.listening import Listening

    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"`--listen` must be HOST:PORT, such as 0.0.0.0:8443, got {options.listen!r}.")
    return Listening(host=host.strip("[]"), port=int(port), insecure=options.insecure, status=options.status)


def _serving(options: argparse.Namespace) -> "Serving":
    from partita.deploy.serving import Serving
    from partita.executors.remote import Patience

    try:
        patience = Patience(deadline=options.deadline, min_devices=options.min_devices)
        return Serving(home=options.home, devices=options.devices, linger=options.linger, patience=patience)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def join(options: argparse.Namespace) -> int:
    """Take part in a run as one device, or check whether it could."""
    _need_extra("`partita join`")
    from partita.deploy.exporting import export_own
    from partita.deploy.home import owned
    from partita.deploy.joining import join
    from partita.deploy.link import Link, check_url
    from partita.deploy.tls import check_loopback, device_context

    host = check_url(options.server, insecure=options.insecure)
    if options.insecure:
        check_loopback(host)
    if options.check:
        return _check(options)
    with owned(options.home):
        joined = _joined(options)
        context = None if options.insecure else device_context(options.home)
        with Link(options.server, options.device, context) as link:
            log(options, f"Device {options.device!r} asks {options.server}")
            part = join(joined, link)
    _print_results(options, part.home.results)
    if options.export is not None:
        export_own(joined, part.home, options.export)
        log(options, f"The model of device {options.device!r} is {options.export}")
    return 0


def _check(options: argparse.Namespace) -> int:
    """Print whether a device could take part; nothing is sent."""
    from partita.deploy import checking

    findings = [] if options.insecure else [checking.check_keys(options.home, options.device)]
    try:
        joined = _joined(options)
    except ConfigError as error:
        findings.append(checking.Finding("config, data and policy", str(error), is_good=False))
    else:
        findings.append(checking.Finding("config, data and policy", "they can be used"))
        findings.append(checking.check_digest(joined.computes, options.digest))
        findings += checking.check_machine(joined.built, options.home, seed=joined.seed)
    if options.json:
        print_json({own.name: {"good": own.is_good, "text": own.text} for own in findings})
    else:
        for own in findings:
            print(shown_lines(f"{'good' if own.is_good else 'BAD '}  {own.name}: {own.text}"))
    return 0 if all(own.is_good for own in findings) else 1


def _joined(options: argparse.Namespace) -> "Joined":
    """Return the device with all that it computes with."""
    from partita.config.overrides import TABLE
    from partita.deploy.joining import joined_device

    overrides = [*options.arguments, *([f"{TABLE}={options.data}"] if options.data else [])]
    joined = joined_device(options.config, overrides, device=options.device, home=options.home)
    return replace(joined, report=lambda values: _report(options, values))


def _report(options: argparse.Namespace, values: Mapping[str, Any]) -> None:
    """Print what has happened on a device."""
    if options.json and not options.quiet:
        print_json(values)
        return
    outcome = f"failed: {values['failed']}" if "failed" in values else "done"
    log(options, f"{values['stage']}, round {values['round']}, {values['work']}: {outcome}")


def _print_results(options: argparse.Namespace, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a device's own results."""
    from partita.deploy.home import result_lines

    if options.json:
        print_json({"device": options.device, "results": results})
        return
    for line in result_lines(results):
        print(shown_lines(line))


def keys(options: argparse.Namespace) -> int:
    """Make keys and certificates."""
    _need_extra("`partita keys`")
    from partita.deploy import keys
    from partita.durable import replace_file

    match options.keys:
        case "ca":
            keys.make_ca(options.ca, options.authority)
            print(shown_lines(f"The authority is in {options.ca}: keep its `{keys.CA_KEY}` off the network"))
        case "server":
            keys.make_server(options.ca, options.home, options.hosts, days=options.days)
            print(shown_lines(f"The server's keys are in {options.home}"))
        case "request":
            request = keys.make_request(options.home, options.device)
            print(shown_lines(f"The request is {request}: have it signed with `partita keys sign`"))
        case "sign":
            replace_file(
                options.out, keys.sign_request(options.ca, options.request, options.device, days=options.days)
            )
            print(shown_lines(f"The certificate of device {options.device!r} is {options.out}"))
        case _:
            number = keys.revoke(options.ca, options.device)
            file = options.ca / keys.REVOKED
            print(shown_lines(f"{number} certificates are revoked: copy {file} to the server's home"))
    return 0


def outbox(options: argparse.Namespace) -> int:
    """Print all that has left a device, or check that the record is whole."""
    from partita.deploy.outbox import read_lines, verify

    if options.verify:
        count, last = verify(options.home)
        print(f"All {count} lines are as they were written; the last digest is {last}")
        return 0
    for line in read_lines(options.home):
        if options.json:
            print_json(line)
        else:
            print(shown_lines(_outbox_line(line)))
    return 0


def _outbox_line(line: Mapping[str, Any]) -> str:
    """Return a message in the record as text."""
    from partita.deploy.home import shown_measure

    where = f" {line['stage']} {line['round']}" if "stage" in line else ""
    tensors = [f"{own['name']} {own['shape']} {own['bytes']} bytes" for own in line.get("tensors", ())]
    measures = [
        f"{split} {name} {shown_measure(value)}"
        for split, own in line.get("metrics", {}).items()
        for name, value in own.items()
        if value is not None
    ]
    reason = [line["reason"]] if "reason" in line else []
    return f"{line['time']}{where} {line['purpose']}: {'; '.join([*tensors, *measures, *reason]) or '-'}"


def flower(options: argparse.Namespace) -> int:
    """Write a new Flower app."""
    from partita.deploy.flower.project import write_app

    write_app(options.folder, options.config, options.arguments, devices=options.devices)
    print(shown_lines(f"The app is in {options.folder}: run it with `flwr run {options.folder}`"))
    return 0


def _need_extra(by: str) -> None:
    for module in ("aiohttp", "cryptography", "prometheus_client"):
        needed(module, by=by, extra="deploy")
