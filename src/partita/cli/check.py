"""The command `check`."""

import argparse

from partita.cli.output import print_json


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
