"""The command `join`: one device of a run on many machines."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cli.options import AddParser, add_outputs
from partita.cli.output import log, print_json
from partita.deploy.extra import need_extra
from partita.errors import ConfigError
from partita.shown import shown_lines

if TYPE_CHECKING:
    from partita.deploy.joining import Joined


def add(add_parser: AddParser) -> None:
    """Add the command `join`."""
    parser = add_parser(
        "join",
        help="take part in a run of `partita serve` as one device",
        description="Take part in a run as one device. It asks the server for orders, for ever if need be, "
        "and ends with the run. Its data and its personal part stay in place.",
    )
    parser.add_argument(
        "arguments", nargs="*", metavar="section.key=value", help="values that override the config"
    )
    parser.add_argument("--server", metavar="URL", required=True, help="the server, https://HOST:PORT")
    parser.add_argument(
        "--config",
        metavar="CONFIG.toml",
        type=Path,
        required=True,
        help="the device's own copy of the config",
    )
    parser.add_argument(
        "--device", metavar="ID", required=True, help="the device's id, as in its certificate"
    )
    parser.add_argument(
        "--data", metavar="TABLE.parquet", type=Path, help="the device's own table, `task.data`"
    )
    parser.add_argument(
        "--home", metavar="DIR", type=Path, required=True, help="the device's keys and personal part"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="without TLS, on this machine alone (127.0.0.1), for tests"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="check keys, clock, config, data, policy, disk and memory, and send nothing",
    )
    parser.add_argument(
        "--digest", metavar="SHA256", default="", help="with --check: the digest that `serve` has printed"
    )
    parser.add_argument(
        "--export", metavar="OUT.safetensors", type=Path, help="write the device's own model at the end"
    )
    add_outputs(parser)
    parser.set_defaults(command=join)


def join(options: argparse.Namespace) -> int:
    """Take part in a run as one device, or check whether it could."""
    need_extra("`partita join`")
    from partita.data.writing import check_new
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
    if options.export is not None:
        check_new(options.export)
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
        findings.append(checking.check_policy(joined.policy, joined.built, seed=joined.seed))
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
