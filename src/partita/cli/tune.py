"""The command `tune`."""

import argparse
import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from partita.cli.continuing import continued, missing
from partita.cli.given import config_of
from partita.cli.options import AddParser, add_arguments, add_outputs
from partita.cli.output import console, json_printer, log, print_json, print_table
from partita.cli.signals import Interrupts
from partita.shown import shown_lines

if TYPE_CHECKING:
    from partita.studies.tuning import Tuning


def add(add_parser: AddParser) -> None:
    """Add the command `tune`."""
    parser = add_parser(
        "tune",
        help="search for settings on validation data; writes the config for the final run",
        description="Try every combination of `key=v1,v2,...` on validation data. Test data is never read.",
    )
    add_arguments(parser)
    parser.add_argument("--resume", metavar="DIR", type=Path, help="resume the search in this folder")
    parser.add_argument(
        "--trials", type=int, default=0, metavar="N", help="number of trials; 0 (default): all combinations"
    )
    add_outputs(parser)
    parser.set_defaults(command=tune)


def tune(options: argparse.Namespace) -> int:
    """Search for settings on validation data, or resume a search."""
    from partita.progress.bar import ProgressBar
    from partita.progress.watchers import ignore
    from partita.report.tables.commands import trials_table
    from partita.report.tables.table import to_terminal, write_tables
    from partita.studies.tune import runner_for, tune
    from partita.studies.tuning import final_run, write_tuned

    tuning = _tuning(options)
    log(options, f"Tuning in {tuning.folder}")
    with (
        continued("tune", tuning.folder),
        Interrupts() as interrupts,
        runner_for(tuning, interrupts.ending) as runner,
        ProgressBar(console(options)) as progress,
    ):
        on_round = json_printer(options) or ignore
        tuned = tune(tuning, on_progress=progress.update, on_round=on_round, runner=runner)
    again = shlex.join(["partita", "tune", "--resume", str(tuning.folder)])
    with missing("the tables and the tuned config are", again):
        table, config = trials_table(tuned), write_tuned(tuned, tuning)
        write_tables([table], tuning.folder)
        if options.json:
            print_json({**dataclasses.asdict(tuned), "config": str(config), "folder": str(tuning.folder)})
        else:
            print_table(to_terminal(table))
            print(shown_lines("\n".join([*table.notes, final_run(config)])))
    return 0


def _tuning(options: argparse.Namespace) -> "Tuning":
    """Return the search that is asked for, or the one to resume."""
    from partita.config.overrides import located
    from partita.config.reading import read_values
    from partita.studies.checking import check_sound
    from partita.studies.resume import resumed_workers
    from partita.studies.trials import split_arguments
    from partita.studies.tuning import begin, reopen

    if options.resume is not None:
        given = [*options.arguments, *(["--trials"] if options.trials else [])]
        tuning = reopen(options.resume, workers=resumed_workers(given, "search"))
        check_sound(options.resume)
        return tuning
    path, arguments = config_of(options.arguments)
    overrides, space = split_arguments(arguments)
    space = {key: [located(key, choice) for choice in choices] for key, choices in space.items()}
    return begin(read_values(path, overrides), path.parent, space, options.trials)
