"""What each command does. No logic here: each imports what it needs when it runs; `--help` is quick."""

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from partita.training.pipeline import RoundCallback as Watch


def run(options: argparse.Namespace) -> int:
    """Run a config, or go on with a run, and say what came out."""
    from partita.config.reading import read_config
    from partita.data.rows import BadData
    from partita.progress.display import Display
    from partita.report.run_facts import tested_in
    from partita.report.sheets import to_terminal
    from partita.report.tables import models_sheet
    from partita.report.troubles import troubles_of
    from partita.studies import run as runner

    if options.resume is None:
        path, overrides = _config_of(options.arguments)
        run = runner.prepare(read_config(path, overrides), path.parent, options.typed)
    else:
        run = runner.reopen(options.resume, options.arguments)
    if run.built.start:
        account = ["Tensors of the file to begin from:", *run.built.start.lines()]
        _mention(options, "\n  ".join(account))
    _mention(options, f"Running in {run.folder.path}")
    try:
        with Display(_display(options)) as display:
            summary = runner.finish(run, _printer(options) or display.watch)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Go on with `partita run --resume {run.folder.path}`.") from None
    except BadData as error:
        command = shlex.join(["partita", "run", "--resume", str(run.folder.path), runner.RESUMABLE])
        raise ConfigError(f"{error} Go on with `{command}`.") from error
    troubles = troubles_of(run.folder.path, summary)
    models = [(model.title, model.statistics) for model in tested_in(run.folder.path)]
    if not options.json:
        _print_table(to_terminal(models_sheet(summary, models)))
        for trouble in troubles:
            print(f"Mind: {trouble}.")
    _mention(options, "Drawing the page")
    page = _drawn(run.folder.path)
    if options.json:
        outcome = {"summary": summary, "models": dict(models), "troubles": troubles}
        _print_json({**outcome, "folder": str(run.folder.path), "page": str(page)})
    else:
        print(f"The run is in {run.folder.path}, its page is {page}")
    return 0


def compare(options: argparse.Namespace) -> int:
    """Run a comparison, or go on with one, or only say what it would take."""
    from partita.config.reading import read_values
    from partita.progress.bar import Work
    from partita.progress.watchers import nobody
    from partita.report.comparison_tables import expected_sheet, write_tables
    from partita.report.machine import sheet_values
    from partita.report.sheets import to_terminal
    from partita.studies import compare as running
    from partita.studies.cells import in_full
    from partita.studies.forecast import forecast

    if options.resume is None:
        path, overrides = _config_of(options.arguments)
        values = read_values(path, in_full(overrides))
        if options.dry_run:
            expected = expected_sheet(forecast(values, path.parent))
            if options.json:
                _print_json({"expected": sheet_values(expected)})
                return 0
            _print_table(to_terminal(expected))
            print("\n".join(expected.notes), end="")
            return 0
        comparison = running.begin(values, path.parent, options.typed)
    elif options.arguments or options.dry_run:
        raise ConfigError("A resumed comparison takes its config from its folder: leave out all else.")
    else:
        comparison = running.reopen(options.resume)
    _mention(options, f"Comparing in {comparison.folder}")
    try:
        with Work(_display(options)) as progress:
            failed = running.finish(comparison, progress.tick, _printer(options) or nobody)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Go on with `partita compare --resume {comparison.folder}`.") from None
    sheets = write_tables(comparison, failed)
    for sheet in [] if options.json else sheets:
        _print_table(to_terminal(sheet))
        print("\n".join(sheet.notes))
    _mention(options, "Drawing the page")
    page = _drawn(comparison.folder)
    if options.json:
        tables = {sheet.name: sheet_values(sheet) for sheet in sheets}
        where = {"folder": str(comparison.folder), "page": str(page)}
        _print_json({"tables": tables, "failed": failed, **where})
    else:
        print(f"The tables are in {comparison.folder / 'tables'}, the page is {page}")
    return 1 if failed else 0


def tune(options: argparse.Namespace) -> int:
    """Search for settings on validation rows."""
    from partita.config.reading import read_values
    from partita.progress.bar import Work
    from partita.progress.watchers import nobody
    from partita.report.sheets import to_terminal, write_sheets
    from partita.studies.search_space import split_arguments
    from partita.studies.trials import trials_sheet
    from partita.studies.tune import begin, tune, write_tuned

    path, arguments = _config_of(options.arguments)
    plain, search = split_arguments(arguments)
    ground = begin(read_values(path, plain), path.parent, search, options.trials)
    _mention(options, f"Tuning in {ground.folder}")
    with Work(_display(options)) as progress:
        told = _printer(options) or nobody
        tuned = tune(ground, search, trials=options.trials, tick=progress.tick, told=told)
    trials, config = trials_sheet(tuned), write_tuned(tuned, ground)
    write_sheets([trials], ground.folder)
    if options.json:
        _print_json({**dataclasses.asdict(tuned), "config": str(config), "folder": str(ground.folder)})
        return 0
    _print_table(to_terminal(trials))
    print(f"The final run, on all training rows: partita run {config}")
    return 0


def report(options: argparse.Namespace) -> int:
    """Draw the page of a run or comparison again."""
    page = _drawn(options.folder)
    if options.json:
        _print_json({"folder": str(options.folder), "page": str(page)})
    else:
        print(f"The page is {page}")
    return 0


def _drawn(folder: Path) -> Path:
    """Draw the page of what a folder holds and return its path."""
    from partita.report.draw import write_report

    try:
        return write_report(folder)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"All is done but the page: `partita report {folder}` draws it.") from None


def describe(options: argparse.Namespace) -> int:
    """Say what each partition of a model costs."""
    from partita.config.reading import read_config
    from partita.report.tables import costs_notes, costs_table
    from partita.studies.describe import describe

    path, overrides = _config_of(options.arguments)
    described = describe(read_config(path, overrides), path.parent)
    if options.json:
        print(json.dumps(described.to_values(), indent=1))
        return 0
    _print_table(costs_table(described.model, described.devices, described.partitions))
    print("\n".join([*costs_notes(described.partitions), *described.notes]))
    if described.start:
        print("\n  ".join(["Tensors of the file to begin from:", *described.start.lines()]))
    return 0


def import_(options: argparse.Namespace) -> int:
    """Make a table by device."""
    from partita.config.importing import import_data
    from partita.progress.bar import Work

    with Work(_display(options), options.kind) as work:
        told = import_data(options.kind, options.source, options.out, options.settings, work.tick)
    print("\n".join(told))
    print(f"The table is {options.out}")
    return 0


def config(_: argparse.Namespace) -> int:
    """Print every key with its default."""
    from partita.config.reference import reference

    print(reference(), end="")
    return 0


def _mention(options: argparse.Namespace, text: str) -> None:
    """Say what is good to know, unless nobody wants to."""
    if not options.quiet:
        print(text, file=sys.stderr)


def _display(options: argparse.Namespace) -> "Console":
    """Return where progress is shown."""
    from rich.console import Console

    return Console(stderr=True, quiet=options.quiet or options.json)


def _printer(options: argparse.Namespace) -> "Watch | None":
    """Return what prints every round for a program, None where no program reads along."""
    if not options.json or options.quiet:
        return None
    return lambda line, done, total: _print_json({**line, "done": done, "total": total})


def _print_json(values: Mapping[str, Any]) -> None:
    print(json.dumps(values), flush=True)


def _print_table(table: "Table") -> None:
    """Print every digit of a table, however narrow the terminal."""
    from rich.console import Console

    console = Console()
    whole = console.measure(table, options=console.options.update(max_width=sys.maxsize))
    console.width = max(console.width, whole.maximum)
    console.print(table)


def _config_of(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the config file, the quickstart's where none is named, and the overrides."""
    quickstart = Path(str(resources.files("partita") / "quickstart.toml"))
    if arguments and "=" not in arguments[0]:
        return Path(arguments[0]), list(arguments[1:])
    return quickstart, list(arguments)
