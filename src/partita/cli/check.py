"""The command `check`."""

import argparse
from pathlib import Path

from partita.cli.options import AddParser
from partita.cli.output import print_json


def add(add_parser: AddParser) -> None:
    """Add the command `check`."""
    parser = add_parser(
        "check",
        help="check whether the files of a run, a comparison or a search are as they were written",
        description="Read every file in the folder of a run, a comparison or a search, compare it with its "
        "recorded digest, and print a line for each that is damaged or missing. The exit code is 0 if all "
        "are sound, 1 if not, and 2 if there is nothing to check.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(command=check)


def check(options: argparse.Namespace) -> int:
    """Print which files of a run, a comparison or a search are damaged."""
    from partita.studies.checking import check

    checked = check(options.folder)
    if options.json:
        print_json({"kind": checked.kind, "runs": checked.runs, "problems": checked.problems})
        return 1 if checked.problems else 0
    print("".join(f"{problem}\n" for problem in checked.problems), end="")
    of = f" with {checked.runs} runs" if checked.kind != "run" else ""
    count = len(checked.problems)
    state = f"damaged: {count} {'problem' if count == 1 else 'problems'}" if count else "sound"
    print(f"The {checked.kind}{of} in {options.folder} is {state}.")
    return 1 if checked.problems else 0
