"""The command `report`, and the report of a run or a comparison that has just finished."""

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from partita.cli.continuing import missing
from partita.cli.options import AddParser, add_quiet
from partita.cli.output import print_json
from partita.errors import ConfigError
from partita.shown import shown_lines


def add(add_parser: AddParser) -> None:
    """Add the command `report`."""
    parser = add_parser(
        "report",
        help="write the report of a finished run or comparison, or of several: HTML page, figures, tables",
        description="Write report.html, figures/ and tables/ to the folder of a finished run or comparison. "
        "Another baseline, or other columns, of a comparison need no training. With several folders, put "
        "their models side by side on one page in a new folder.",
    )
    parser.add_argument(
        "arguments",
        nargs="+",
        metavar="DIR | key=value",
        help="the folder of a run or comparison, or several; then, for one comparison, baseline=METHOD, "
        "columns=NAME,NAME,... as in `compare`; for several folders, out=DIR: the new folder, by default the "
        "next free runs/report-N",
    )
    add_quiet(parser)
    parser.add_argument("--json", action="store_true", help="print the path of the page as JSON")
    parser.set_defaults(command=report)


def report(options: argparse.Namespace) -> int:
    """Write the report of a finished run or comparison, or one of several."""
    from partita.report.write import read_choices, write_side_by_side
    from partita.studies.checking import check_to_show

    folders, settings = _folders_of(options.arguments)
    chosen = read_choices(settings, several=len(folders) > 1)
    for folder in folders:
        check_to_show(folder)
    page = write_side_by_side(folders, **chosen) if len(folders) > 1 else write_page(folders[0], **chosen)
    if options.json:
        print_json({"folder": str(page.parent), "page": str(page)})
    else:
        print(shown_lines(f"The report is {page}"))
    return 0


def _folders_of(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the folders among arguments, and the others, which have the form `key=value`."""
    settings = [
        argument for argument in arguments if argument.partition("=")[0].isidentifier() and "=" in argument
    ]
    folders = [Path(argument) for argument in arguments if argument not in settings]
    if not folders:
        raise ConfigError("`partita report` needs the folder of a run or a comparison.")
    return folders, settings


@contextlib.contextmanager
def reported(folder: Path) -> Iterator[None]:
    """Write the report of a folder also if nobody reads what this block prints."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        write_page(folder)
        raise


def write_page(folder: Path, **shown: Any) -> Path:
    """Write the report of the run or comparison in a folder and return the page's path."""
    from partita.report.write import write_report

    with missing_report(folder):
        return write_report(folder, **shown)


def missing_report(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Say which command writes the report of a folder if this block fails to."""
    return missing("the report is", shlex.join(["partita", "report", str(folder)]))
