"""The command `outbox`: all that has left a device."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.cli.options import AddParser
from partita.cli.output import print_json
from partita.errors import ConfigError, near_file
from partita.shown import shown_lines


def add(add_parser: AddParser) -> None:
    """Add the command `outbox`."""
    parser = add_parser(
        "outbox",
        help="print all that has left a device",
        description="Print every message that has left a device, with its tensors and measures.",
    )
    parser.add_argument("--home", metavar="DIR", type=Path, required=True, help="the device's home")
    parser.add_argument("--verify", action="store_true", help="check that no line was changed or left out")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.set_defaults(command=outbox)


def outbox(options: argparse.Namespace) -> int:
    """Print all that has left a device, or check that the record is whole."""
    from partita.deploy.outbox import read_lines, verify

    if not options.home.is_dir():
        raise ConfigError(
            f"There is no folder `{options.home}`.{near_file(options.home, [options.home.parent])}"
        )
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
