"""The commands. Each imports what it needs when it runs, so that `--help` is fast; none contains logic."""

import argparse
import contextlib
import dataclasses
import json
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cli.continuing import continued, missing
from partita.cli.output import console as _console
from partita.cli.output import json_printer as _json_printer
from partita.cli.output import log as _log
from partita.cli.output import print_json as _print_json
from partita.cli.output import print_table as _print_table
from partita.cli.signals import Interrupts
from partita.errors import ConfigError, RunFailed, explained, fault_text, is_of_device
from partita.shown import shown_lines

if TYPE_CHECKING:
    from partita.report.tables import table as report_tables
    from partita.runs.folder import RunFolder
    from partita.studies.comparison import Comparison
    from partita.studies.run import ExecutorFactory, Prepared
    from partita.studies.tuning import Tuning


def run(options: argparse.Namespace) -> int:
    """Run a config or resume a run, and print the result; as one of several ranks, take part in that."""
    from partita.executors.launch import launched, warn_of_tasks

    launch = launched()
    if launch is None:
        warn_of_tasks()
        from partita.studies.run import on_this_machine

        return _run(options, on_this_machine, Interrupts())
    from partita.studies import cluster

    if launch.rank:
        return cluster.serve(launch, options.resume or config_of(options.arguments)[0].parent)
    with cluster.gathered(launch) as session:
        session.code = _run(options, session.executor, Interrupts(has_launcher=True))
    return session.code


def _run(options: argparse.Namespace, make_executor: "ExecutorFactory", interrupts: Interrupts) -> int:
    """Run a config or resume a run with an executor, print the result and return the exit code."""
    from partita.data.rows import BadData
    from partita.progress.display import Display
    from partita.studies import run as runner
    from partita.studies.resume import RESUMABLE

    run = _prepare(options)
    if run.built.start:
        _log(options, "\n  ".join(["Tensors of the initial model's file:", *run.built.start.lines()]))
    _log(options, f"Running in {run.folder.path}")
    try:
        with continued("run", run.folder.path), interrupts, Display(_console(options)) as display:
            watch = interrupts.after(_json_printer(options) or display.watch)
            runner.finish(run, watch, make_executor)
    except BadData as error:
        command = shlex.join(["partita", "run", "--resume", str(run.folder.path), RESUMABLE])
        raise ConfigError(f"{error} Resume with `{command}`.") from error
    except Exception as error:
        if not (getattr(error, "__notes__", None) and is_of_device(error)):
            raise
        traceback.print_exception(error)
        raise RunFailed(
            f"{explained(error)} Resume with `partita run --resume {run.folder.path}`, and with "
            "`on_error=skip` to count such devices as failed."
        ) from error
    print_run(options, run.folder)
    return 1 if run.folder.has_failed_stage else 0


def _prepare(options: argparse.Namespace) -> "Prepared":
    """Return the run of a config, or the one to resume."""
    from partita.config.reading import read_config
    from partita.studies import run as runner

    if options.resume is not None:
        return runner.reopen(options.resume, options.arguments, options.reset_device)
    if options.reset_device:
        raise ConfigError("`--reset-device` needs `--resume RUN_DIR`, the run that the device is in.")
    path, overrides = config_of(options.arguments)
    return runner.prepare(read_config(path, overrides), path.parent, options.command_line)


def print_run(options: argparse.Namespace, run: "RunFolder") -> None:
    """Print the result of a finished run, and write its report."""
    from partita.report.models import all_models
    from partita.report.tables.commands import models_table
    from partita.report.tables.metrics import run_metrics
    from partita.report.tables.table import to_terminal
    from partita.report.tables.unseen import run_unseen_table
    from partita.runs.warnings import warnings_of

    models, warnings = all_models(run), warnings_of(run)
    first = models_table(run.summary, models, warnings)
    others = [table for table in (run_metrics(run.summary, models), run_unseen_table(run)) if table.rows]
    with _reported(run.path):
        for table in [] if options.json else [first, *others]:
            if table.rows:
                _print_table(to_terminal(table))
            _print_notes(table)
    _log(options, "Writing the report")
    page = _write_report(run.path)
    if options.json:
        result = {"summary": run.summary, "models": dict(models), "warnings": warnings}
        _print_json({**result, "folder": str(run.path), "page": str(page)})
    else:
        print(shown_lines(f"The run is in {run.path}, its report is {page}"))


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
        _print_json({"forecast": to_values(expected)})
    else:
        _print_table(to_terminal(expected))
        _print_notes(expected)


def _finish_comparison(options: argparse.Namespace, comparison: "Comparison") -> int:
    """Run all runs of a comparison that are left, print the tables and write the report."""
    from partita.progress.bar import ProgressBar
    from partita.progress.watchers import ignore
    from partita.report.tables.comparison import write_comparison_tables
    from partita.report.tables.table import to_terminal, to_values
    from partita.studies.compare import finish, runner_for

    _log(options, f"Comparing in {comparison.folder}")
    with (
        continued("compare", comparison.folder),
        Interrupts() as interrupts,
        runner_for(comparison, interrupts.ending) as runner,
        ProgressBar(_console(options)) as progress,
    ):
        failed = finish(comparison, progress.update, _json_printer(options) or ignore, runner)
    with _missing_report(comparison.folder):
        tables = write_comparison_tables(comparison, failed)
    with _reported(comparison.folder):
        for table in [] if options.json else tables:
            _print_table(to_terminal(table))
            _print_notes(table)
    _log(options, "Writing the report")
    page = _write_report(comparison.folder)
    if options.json:
        values = {table.name: to_values(table) for table in tables}
        paths = {"folder": str(comparison.folder), "page": str(page)}
        _print_json({"tables": values, "failed": failed, **paths})
    else:
        print(shown_lines(f"The comparison is in {comparison.folder}, its report is {page}"))
    return 1 if comparison.has_failures else 0


def tune(options: argparse.Namespace) -> int:
    """Search for settings on validation data, or resume a search."""
    from partita.progress.bar import ProgressBar
    from partita.progress.watchers import ignore
    from partita.report.tables.commands import trials_table
    from partita.report.tables.table import to_terminal, write_tables
    from partita.studies.tune import runner_for, tune
    from partita.studies.tuning import final_run, write_tuned

    tuning = _tuning(options)
    _log(options, f"Tuning in {tuning.folder}")
    with (
        continued("tune", tuning.folder),
        Interrupts() as interrupts,
        runner_for(tuning, interrupts.ending) as runner,
        ProgressBar(_console(options)) as progress,
    ):
        on_round = _json_printer(options) or ignore
        tuned = tune(tuning, on_progress=progress.update, on_round=on_round, runner=runner)
    with missing("the tables and the tuned config are", f"partita tune --resume {tuning.folder}"):
        table, config = trials_table(tuned), write_tuned(tuned, tuning)
        write_tables([table], tuning.folder)
    if options.json:
        _print_json({**dataclasses.asdict(tuned), "config": str(config), "folder": str(tuning.folder)})
    else:
        _print_table(to_terminal(table))
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


def report(options: argparse.Namespace) -> int:
    """Write the report of a finished run or comparison, or one of several."""
    from partita.report.write import read_choices, write_side_by_side
    from partita.studies.checking import check_to_show

    folders, settings = _folders_of(options.arguments)
    chosen = read_choices(settings, several=len(folders) > 1)
    for folder in folders:
        check_to_show(folder)
    page = write_side_by_side(folders, **chosen) if len(folders) > 1 else _write_report(folders[0], **chosen)
    if options.json:
        _print_json({"folder": str(page.parent), "page": str(page)})
    else:
        print(shown_lines(f"The report is {page}"))
    return 0


def check(options: argparse.Namespace) -> int:
    """Print which files of a run, a comparison or a search are damaged."""
    from partita.studies.checking import check

    checked = check(options.folder)
    if options.json:
        _print_json({"kind": checked.kind, "runs": checked.runs, "problems": checked.problems})
        return 1 if checked.problems else 0
    print("".join(f"{problem}\n" for problem in checked.problems), end="")
    of = f" with {checked.runs} runs" if checked.kind != "run" else ""
    count = len(checked.problems)
    state = f"damaged: {count} {'problem' if count == 1 else 'problems'}" if count else "sound"
    print(f"The {checked.kind}{of} in {options.folder} is {state}.")
    return 1 if checked.problems else 0


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
def _reported(folder: Path) -> Iterator[None]:
    """Write the report of a folder also if nobody reads what this block prints."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _write_report(folder)
        raise


def _write_report(folder: Path, **shown: Any) -> Path:
    """Write the report of the run or comparison in a folder and return the page's path."""
    from partita.report.write import write_report

    with _missing_report(folder):
        return write_report(folder, **shown)


def _missing_report(folder: Path) -> contextlib.AbstractContextManager[None]:
    return missing("the report is", shlex.join(["partita", "report", str(folder)]))


def describe(options: argparse.Namespace) -> int:
    """Print the costs of each partition of a model, or write the values that its task derives from data."""
    from partita.config.reading import read_config
    from partita.data.writing import check_new
    from partita.durable import replace_file
    from partita.report.tables.commands import costs_notes, costs_table, server_notes
    from partita.studies.describe import derived_values, describe

    path, overrides = config_of(options.arguments)
    if options.derived is not None:
        check_new(options.derived)
        replace_file(options.derived, derived_values(read_config(path, overrides), path.parent))
        print(shown_lines(f"The derived values are in {options.derived}"))
        return 0
    described = describe(read_config(path, overrides), path.parent)
    if options.json:
        print(json.dumps(described.to_values(), indent=1))
        return 0
    _print_table(costs_table(described.model, described.devices, described.partitions))
    server = server_notes(described.server)
    print(shown_lines("\n".join([*costs_notes(described.partitions), *server, *described.notes])))
    if described.start:
        tensors = "\n  ".join(["Tensors of the initial model's file:", *described.start.lines()])
        print(shown_lines(tensors))
    return 0


def import_(options: argparse.Namespace) -> int:
    """Convert a dataset to a per-device table."""
    from partita.config.importing import import_data
    from partita.progress.bar import ProgressBar

    try:
        with ProgressBar(_console(options), options.kind) as progress:
            lines = import_data(options.kind, options.source, options.out, options.settings, progress.update)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunFailed(
            f"{fault_text(error)} No table was written: when the cause is mended, give the same command "
            f"again, `{options.command_line}`. It continues after what is finished, if anything is."
        ) from error
    print(shown_lines("\n".join([*lines, f"The table is {options.out}"])))
    return 0


def config(_: argparse.Namespace) -> int:
    """Print every config key with its default."""
    from partita.config.reference import reference

    print(reference(), end="")
    return 0


def _print_notes(table: "report_tables.Table") -> None:
    for note in table.notes:
        print(shown_lines(note))


def config_of(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the path of the config, by default the quickstart's, and the overrides."""
    quickstart = Path(str(resources.files("partita") / "quickstart.toml"))
    if arguments and "=" not in arguments[0]:
        return Path(arguments[0]), list(arguments[1:])
    return quickstart, list(arguments)
