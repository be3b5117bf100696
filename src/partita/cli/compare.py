"""The command `compare`."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cli.continuing import continued
from partita.cli.given import config_of
from partita.cli.options import AddParser, add_arguments, add_outputs
from partita.cli.output import console, json_printer, log, print_json, print_notes, print_table
from partita.cli.report import missing_report, reported, write_page
from partita.cli.signals import Interrupts
from partita.shown import shown_lines

if TYPE_CHECKING:
    from partita.studies.comparison import Comparison


def add(add_parser: AddParser) -> None:
    """Add the command `compare`."""
    parser = add_parser(
        "compare",
        help="compare methods, personal parts and seeds; --dry-run prints the expected time",
        description="Compare methods and personal parts. For each seed, all methods start from the same "
        "pretrained model, except those that train from scratch.",
    )
    add_arguments(parser)
    parser.add_argument("--resume", metavar="DIR", type=Path, help="resume the comparison in this folder")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="list the runs and the expected time of each, estimated on a few devices; start none",
    )
    add_outputs(parser)
    parser.set_defaults(command=compare)


def compare(options: argparse.Namespace) -> int:
    """Run a comparison, resume one, or print what it would run."""
    from partita.config.reading import read_values
    from partita.studies.begin import begin
    from partita.studies.compare import resume
    from partita.studies.resume import resumed_workers
    from partita.studies.variants import in_full

    if options.resume is not None:
        given = [*options.arguments, *(["--dry-run"] if options.dry_run else [])]
        comparison = resume(options.resume, workers=resumed_workers(given, "comparison"))
        return _finish_comparison(options, comparison)
    path, overrides = config_of(options.arguments)
    values = read_values(path, in_full(overrides))
    if options.dry_run:
        _print_forecast(options, values, path.parent)
        return 0
    return _finish_comparison(options, begin(values, path.parent, options.command_line))


def _print_forecast(options: argparse.Namespace, values: Mapping[str, Any], folder: Path) -> None:
    """Print the runs of a comparison and the expected time of each."""
    from partita.report.tables.commands import forecast_table
    from partita.report.tables.table import to_terminal, to_values
    from partita.studies.forecast import forecast

    expected = forecast_table(forecast(values, folder))
    if options.json:
        print_json({"forecast": to_values(expected)})
    else:
        print_table(to_terminal(expected))
        print_notes(expected)


def _finish_comparison(options: argparse.Namespace, comparison: "Comparison") -> int:
    """Run all runs of a comparison that are left, print the tables and write the report."""
    from partita.progress.bar import ProgressBar
    from partita.progress.watchers import ignore
    from partita.studies.compare import finish, runner_for

    log(options, f"Comparing in {comparison.folder}")
    with (
        continued("compare", comparison.folder),
        Interrupts() as interrupts,
        runner_for(comparison, interrupts.ending) as runner,
        ProgressBar(console(options)) as progress,
    ):
        failed = finish(comparison, progress.update, json_printer(options) or ignore, runner)
    with missing_report(comparison.folder):
        _print_comparison(options, comparison, failed)
        return 1 if comparison.has_failures else 0


def _print_comparison(
    options: argparse.Namespace, comparison: "Comparison", failed: Mapping[str, str]
) -> None:
    """Print the tables of a finished comparison, and write its report."""
    from partita.report.tables.comparison import write_comparison_tables
    from partita.report.tables.table import to_terminal, to_values

    tables = write_comparison_tables(comparison, failed)
    with reported(comparison.folder):
        for table in [] if options.json else tables:
            print_table(to_terminal(table))
            print_notes(table)
    log(options, "Writing the report")
    page = write_page(comparison.folder)
    if options.json:
        values = {table.name: to_values(table) for table in tables}
        paths = {"folder": str(comparison.folder), "page": str(page)}
        print_json({"tables": values, "failed": failed, **paths})
    else:
        print(shown_lines(f"The comparison is in {comparison.folder}, its report is {page}"))
