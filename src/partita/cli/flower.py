"""The command `flower`: a Flower app that runs a config."""

import argparse
from pathlib import Path

from partita.cli.options import AddParser
from partita.shown import shown_lines


def add(add_parser: AddParser) -> None:
    """Add the command `flower`."""
    parser = add_parser(
        "flower",
        help="write a Flower app that runs a config",
        description="Write a Flower app that runs a config in Flower's simulation, and on SuperLink and "
        "SuperNodes.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="flower", required=True)
    new = actions.add_parser("new", help="write a new app")
    new.add_argument("folder", metavar="DIR", type=Path, help="the app's folder")
    new.add_argument("config", metavar="CONFIG.toml", type=Path, help="the config, which becomes part of it")
    new.add_argument(
        "arguments", nargs="*", metavar="section.key=value", help="values that override the config"
    )
    new.add_argument(
        "--devices", metavar="N", type=int, default=1, help="begin when so many devices have joined (1)"
    )
    parser.set_defaults(command=flower)


def flower(options: argparse.Namespace) -> int:
    """Write a new Flower app."""
    from partita.deploy.flower.project import write_app

    write_app(options.folder, options.config, options.arguments, devices=options.devices)
    print(shown_lines(f"The app is in {options.folder}: run it with `flwr run {options.folder}`"))
    return 0
