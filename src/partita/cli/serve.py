"""The command `serve`: a run with devices on other machines."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from partita.cli.continuing import continued
from partita.cli.given import config_of
from partita.cli.options import AddParser, add_arguments, add_outputs
from partita.cli.output import console, json_printer, log
from partita.cli.run import print_run
from partita.cli.signals import Interrupts
from partita.deploy.extra import need_extra
from partita.errors import ConfigError

if TYPE_CHECKING:
    from partita.deploy.listening import Listening
    from partita.deploy.serving import Server, Serving


def add(add_parser: AddParser) -> None:
    """Add the command `serve`."""
    parser = add_parser(
        "serve",
        help="run a config with devices on other machines, which join over HTTPS",
        description="Run a config with devices on other machines. Only the shared part, rates and metrics "
        "travel; the data and the personal parts stay on the devices, and no code travels at all.",
    )
    add_arguments(parser)
    parser.add_argument("--home", metavar="DIR", type=Path, required=True, help="the server's keys and run")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default="0.0.0.0:8443", help="where to listen (0.0.0.0:8443)"
    )
    parser.add_argument(
        "--devices", metavar="N", type=int, default=1, help="begin when so many devices have joined (1)"
    )
    parser.add_argument(
        "--deadline",
        metavar="SECONDS",
        type=float,
        default=0.0,
        help="a device that has not replied misses its round; by default it is waited for",
    )
    parser.add_argument(
        "--min-devices",
        metavar="N",
        type=int,
        default=1,
        help="a round with fewer replies at its deadline keeps waiting (1)",
    )
    parser.add_argument(
        "--linger",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="the time that devices have at the end to learn that the run is over (30)",
    )
    parser.add_argument(
        "--status", metavar="PORT", type=int, help="show a live page, and /metrics, at 127.0.0.1:PORT"
    )
    parser.add_argument("--resume", action="store_true", help="resume the run in the home")
    parser.add_argument(
        "--insecure", action="store_true", help="without TLS, on this machine alone (127.0.0.1), for tests"
    )
    add_outputs(parser)
    parser.set_defaults(command=serve)


def serve(options: argparse.Namespace) -> int:
    """Run a config with devices on other machines, or resume such a run."""
    need_extra("`partita serve`")
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
