"""The command `onboard`."""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from partita.cli.continuing import continued, missing
from partita.cli.given import split_settings
from partita.cli.options import AddParser, add_outputs
from partita.cli.output import console, json_printer, log, print_json, print_notes, print_table
from partita.cli.signals import Interrupts
from partita.errors import ConfigError
from partita.shown import shown_lines

if TYPE_CHECKING:
    from partita.runs.folder import RunFolder
    from partita.runs.onboarded import Onboarding


def add(add_parser: AddParser) -> None:
    """Add the command `onboard`."""
    parser = add_parser(
        "onboard",
        help="personalize devices that training never saw, and add them to a finished run",
        description="Personalize devices of a table from the model of a finished run: each trains its "
        "personal part alone. They are compared with the global model and added to the run's folder. An "
        "interrupted onboarding is resumed by the same command.",
    )
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="the folder of a finished run")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="DATA.parquet | key=value",
        help="a table by device, as the run's task reads it; then task.skip_bad=true to skip its bad rows, "
        "task.min_train_examples=N and task.min_test_examples=N to leave out devices with fewer rows, and "
        "model.start=FILE and the like, for files of the run that are elsewhere now",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="the table has new rows of known devices: train the personal part that each has further, and "
        "serve the better of the two on rows that are held out",
    )
    parser.add_argument(
        "--back",
        nargs="*",
        metavar="ID",
        help="serve these devices, or all, the model from before they were last personalized again",
    )
    parser.add_argument(
        "--resume", action="store_true", help="resume the interrupted onboarding; without one, show the last"
    )
    add_outputs(parser)
    parser.set_defaults(command=onboard)


def onboard(options: argparse.Namespace) -> int:
    """Personalize devices from the model of a finished run, and add them to its folder; or go back."""
    from partita.exports.opening import finished_run
    from partita.progress.display import Display
    from partita.runs.warnings import has_failed_stage
    from partita.studies import onboard as studies

    run = finished_run(options.run)
    if options.back is not None:
        return _go_back(options)
    given, overrides = split_settings(options.arguments)
    if len(given) + options.resume != 1:
        raise ConfigError("`partita onboard` needs a run's folder and one table, or --resume.")
    log(options, f"Onboarding into {run.path}")
    with (
        _skipping(run, [*given, *(["--again"] if options.again else [])]),
        continued("onboard", run.path, by=[str(run.path), "--resume"]),
        Interrupts() as interrupts,
        Display(console(options)) as display,
    ):
        watch = interrupts.after(json_printer(options) or display.watch)
        data = Path(given[0]) if given else None
        done = studies.onboard(run, data, overrides, again=options.again, watch=watch)
    shown = shlex.join(["partita", "onboard", str(run.path), "--resume"])
    with missing("the table of the results is", shown, verb="print"):
        _print_onboarding(options, done)
        return 1 if has_failed_stage(done.folder) else 0


@contextmanager
def _skipping(run: "RunFolder", given: Sequence[str]) -> Iterator[None]:
    """Add the command that skips bad rows to an error about one."""
    from partita.data.rows import BadData
    from partita.runs.onboarded import OnboardedRun
    from partita.studies.resume import RESUMABLE

    try:
        yield
    except BadData as error:
        is_begun = OnboardedRun(run).unfinished is not None
        arguments = [str(run.path), *(["--resume"] if is_begun else given), RESUMABLE]
        raise ConfigError(
            f"{error} Skip such rows with `{shlex.join(['partita', 'onboard', *arguments])}`."
        ) from error


def _print_onboarding(options: argparse.Namespace, done: "Onboarding") -> None:
    from partita.report.differences import counted
    from partita.report.models import all_models
    from partita.report.tables.commands import models_table
    from partita.report.tables.table import to_terminal
    from partita.runs.warnings import warnings_of
    from partita.training.onboarding import PREVIOUS

    run, models = done.folder, all_models(done.folder)
    if options.json:
        print_json({"summary": run.summary, "models": dict(models), "folder": str(run.path)})
        return
    table = models_table(run.summary, models, warnings_of(run))
    if table.rows:
        print_table(to_terminal(table))
    print_notes(table)
    if done.is_again:
        new, before = len(done.holds), len(run.summary[PREVIOUS])
        print(f"The new model is served to {counted(new, 'device')}, {before} kept the one from before")
    print(
        shown_lines(
            f"The results of {counted(len(done.devices), 'device')} are in {run.path}; `partita report "
            f"{options.run}` shows them on the run's page"
        )
    )


def _go_back(options: argparse.Namespace) -> int:
    from partita.exports.opening import finished_run
    from partita.report.differences import counted
    from partita.studies.onboard import go_back

    if options.arguments or options.again or options.resume:
        raise ConfigError("`--back` takes the ids of devices, and nothing else with it.")
    back = go_back(finished_run(options.run), options.back)
    if options.json:
        print_json({"back": back})
    else:
        verb = "has" if len(back) == 1 else "have"
        print(f"{counted(len(back), 'device')} {verb} the model from before again")
    return 0
