"""The command `run`."""

import argparse
import shlex
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from partita.cli.continuing import continued
from partita.cli.given import config_of
from partita.cli.options import AddParser, add_arguments, add_outputs
from partita.cli.output import console, json_printer, log, print_json, print_notes, print_table
from partita.cli.report import missing_report, reported, write_page
from partita.cli.signals import Interrupts
from partita.errors import ConfigError, RunFailed, explained, is_of_device
from partita.shown import shown_lines

if TYPE_CHECKING:
    from partita.runs.folder import RunFolder
    from partita.studies.run import ExecutorFactory, Prepared


def add(add_parser: AddParser) -> None:
    """Add the command `run`."""
    parser = add_parser(
        "run",
        help="pretrain, personalize, fine-tune and evaluate; without a config, run the quickstart",
        description="Pretrain, personalize, fine-tune and evaluate. Without a config, run the quickstart.",
    )
    add_arguments(parser)
    parser.add_argument("--resume", metavar="RUN_DIR", type=Path, help="resume the run in this folder")
    parser.add_argument(
        "--reset-device",
        metavar="ID",
        action="append",
        default=[],
        help="with --resume: let a device start again whose personal part is damaged; may be repeated",
    )
    add_outputs(parser)
    parser.set_defaults(command=run)


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
    from partita.runs.warnings import has_failed_stage
    from partita.studies import run as runner
    from partita.studies.resume import RESUMABLE

    run = _prepare(options)
    if run.built.start:
        log(options, "\n  ".join(["Tensors of the initial model's file:", *run.built.start.lines()]))
    log(options, f"Running in {run.folder.path}")
    resumed = shlex.join(["partita", "run", "--resume", str(run.folder.path)])
    try:
        with continued("run", run.folder.path), interrupts, Display(console(options)) as display:
            watch = interrupts.after(json_printer(options) or display.watch)
            runner.finish(run, watch, make_executor)
    except BadData as error:
        raise ConfigError(f"{error} Resume with `{resumed} {RESUMABLE}`.") from error
    except Exception as error:
        if not (getattr(error, "__notes__", None) and is_of_device(error)):
            raise
        traceback.print_exception(error)
        raise RunFailed(
            f"{explained(error)} Resume with `{resumed}`, and with `on_error=skip` to count such devices as "
            "failed."
        ) from error
    with missing_report(run.folder.path):
        print_run(options, run.folder)
        return 1 if has_failed_stage(run.folder) else 0


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
    with reported(run.path):
        for table in [] if options.json else [first, *others]:
            if table.rows:
                print_table(to_terminal(table))
            print_notes(table)
    log(options, "Writing the report")
    page = write_page(run.path)
    if options.json:
        result = {"summary": run.summary, "models": dict(models), "warnings": warnings}
        print_json({**result, "folder": str(run.path), "page": str(page)})
    else:
        print(shown_lines(f"The run is in {run.path}, its report is {page}"))
