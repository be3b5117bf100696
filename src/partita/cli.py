"""The commands. No logic here: each imports what it needs when it runs, so that `--help` is quick."""

import argparse
import dataclasses
import errno
import json
import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from partita.errors import ConfigError, InUse, RunFailed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from partita.stages.pipeline import Watch


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"partita: {message[0].upper()}{message[1:]}. See `{self.prog} --help`.\n")


class _Errors:
    """The error stream as it is at the moment: a progress display puts itself in its place."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 the run failed, 2 the request was wrong."""
    parser = _parser()
    options = _parsed(parser, arguments)
    logging.basicConfig(format="partita: %(message)s", stream=_Errors())
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return options.command(options)
    except (ConfigError, InUse) as error:
        return _say(2, error)
    except RunFailed as error:
        return _say(1, error)
    except OSError as error:
        if error.errno != errno.ENOSPC and getattr(error, "__notes__", None):
            raise
        return _say(1, error)
    except KeyboardInterrupt as interrupt:
        return _say(130, " ".join(["Interrupted.", *map(str, interrupt.args)]))


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; `key=value` may stand behind them too, which argparse alone does not take."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options, rest = parser.parse_known_args(arguments)
    options.typed = shlex.join(["partita", *arguments])
    if rest and ("arguments" not in options or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.arguments += rest
    return options


def _say(code: int, message: object) -> int:
    print(f"partita: {message}", file=sys.stderr)
    return code


def _run(options: argparse.Namespace) -> int:
    from partita import runner
    from partita.config.reading import read_config
    from partita.data.rows import BadData
    from partita.report.display import Display
    from partita.report.sheets import to_terminal
    from partita.report.tables import models_sheet
    from partita.report.troubles import troubles_of

    if options.resume is None:
        path, overrides = _config_of(options.arguments)
        run = runner.prepare(read_config(path, overrides), path.parent, options.typed)
    else:
        run = runner.reopen(options.resume, options.arguments)
    if run.built.start:
        account = ["Tensors of the file to begin from:", *run.built.start.lines()]
        _mention(options, "\n  ".join(account))
    _mention(options, f"Running in {run.folder}")
    try:
        with Display(_display(options)) as display:
            done = runner.finish(run, _printer(options) or display.watch)
    except KeyboardInterrupt:
        return _say(130, f"Interrupted. Go on with `partita run --resume {run.folder}`.")
    except BadData as error:
        command = shlex.join(["partita", "run", "--resume", str(run.folder), runner.RESUMABLE])
        return _say(2, f"{error} Go on with `{command}`.")
    troubles = troubles_of(run.folder, done.summary)
    models = [(model.title, model.statistics) for model in done.models]
    if not options.json:
        _print_table(to_terminal(models_sheet(done.summary, models)))
        for trouble in troubles:
            print(f"Mind: {trouble}.")
    _mention(options, "Drawing the page")
    page = _drawn(run.folder)
    if options.json:
        outcome = {"summary": done.summary, "models": dict(models), "troubles": troubles}
        _print_json({**outcome, "folder": str(run.folder), "page": str(page)})
    else:
        print(f"The run is in {run.folder}, its page is {page}")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from partita.comparison import running
    from partita.comparison.forecast import forecast
    from partita.comparison.grid import in_full
    from partita.comparison.tables import expected_sheet, write_tables
    from partita.config.reading import read_values
    from partita.report.machine import sheet_values
    from partita.report.progress import Work
    from partita.report.sheets import to_terminal
    from partita.report.watching import nobody

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
        return _say(130, f"Interrupted. Go on with `partita compare --resume {comparison.folder}`.")
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


def _tune(options: argparse.Namespace) -> int:
    from partita.config.reading import read_values
    from partita.report.progress import Work
    from partita.report.sheets import to_terminal, write_sheets
    from partita.report.watching import nobody
    from partita.tuning.asked import split_arguments
    from partita.tuning.search import begin, tune, write_tuned
    from partita.tuning.trials import trials_sheet

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


def _report(options: argparse.Namespace) -> int:
    page = _drawn(options.folder)
    if options.json:
        _print_json({"folder": str(options.folder), "page": str(page)})
    else:
        print(f"The page is {page}")
    return 0


def _drawn(folder: Path) -> Path:
    """Draw the page of what a folder holds and return its path."""
    from partita.pages import write_report

    try:
        return write_report(folder)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"All is done but the page: `partita report {folder}` draws it.") from None


def _describe(options: argparse.Namespace) -> int:
    from partita.config.reading import read_config
    from partita.describe import describe
    from partita.report.tables import costs_notes, costs_table

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


def _import(options: argparse.Namespace) -> int:
    from partita.importer import import_data
    from partita.report.progress import Work

    with Work(_display(options), options.kind) as work:
        told = import_data(options.kind, options.source, options.out, options.settings, work.tick)
    print("\n".join(told))
    print(f"The table is {options.out}")
    return 0


def _config(_: argparse.Namespace) -> int:
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


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="partita",
        description="Federated learning with partial model personalization: FedAlt and FedSim.",
    )
    parser.add_argument("--version", action="version", version=f"partita {metadata.version('partita')}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", parser_class=_Parser, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="pretrain, personalise, finetune, evaluate; without a config, the quickstart",
        description="Run a config, without one the quickstart: pretrain, personalise, finetune, evaluate.",
    )
    _add_arguments(run)
    run.add_argument("--resume", metavar="RUN_DIR", type=Path, help="go on with the run in this folder")
    _add_outputs(run)
    run.set_defaults(command=_run)

    compare = commands.add_parser(
        "compare",
        help="methods x partitions x seeds, as tables; --dry-run says what that takes",
        description="Compare methods: one pretrained model a seed, every method from there, one table.",
    )
    _add_arguments(compare)
    compare.add_argument(
        "--resume", metavar="DIR", type=Path, help="go on with the comparison in this folder"
    )
    compare.add_argument("--dry-run", action="store_true", help="only say what would be run, and how long")
    _add_outputs(compare)
    compare.set_defaults(command=_compare)

    tune = commands.add_parser(
        "tune",
        help="search for settings on validation rows; writes the config for the final run",
        description="Try every combination of `key=v1,v2,...` on validation rows; test rows are never read.",
    )
    _add_arguments(tune)
    tune.add_argument("--trials", type=int, default=0, metavar="N", help="so many choices only, not all")
    _add_outputs(tune)
    tune.set_defaults(command=_tune)

    report = commands.add_parser(
        "report",
        help="the page, the figures and the tables of a finished run or comparison, again",
        description="Write report.html, figures/ and tables/ of a finished run or comparison to its folder.",
    )
    report.add_argument("folder", metavar="RUN_DIR", type=Path, help="the folder of the run or comparison")
    _add_quiet(report)
    report.add_argument(
        "--json", action="store_true", help="for programs: a line of JSON that says where it is"
    )
    report.set_defaults(command=_report)

    describe = commands.add_parser(
        "describe",
        help="what each partition of a config's model costs: parameters, traffic, disk, memory",
        description="Say what each partition costs: parameters, bytes sent, bytes on disk, training memory.",
    )
    _add_arguments(describe)
    describe.add_argument("--json", action="store_true", help="as JSON, for programs")
    describe.set_defaults(command=_describe)

    importing = commands.add_parser(
        "import",
        help="public data sets, and tables of others, to tables by device",
        description="Turn a public data set's own files, or a table of another form, into a table by device.",
    )
    importing.add_argument(
        "kind",
        metavar="KIND",
        help="emnist, stackoverflow, gldv2, librispeech, qmnist, audiomnist; hf for any data set of the "
        "`datasets` library; sort, dirichlet and shards for a table",
    )
    importing.add_argument("source", metavar="SOURCE", help="the file or folder to read; with hf, a name")
    importing.add_argument("out", metavar="OUT.parquet", type=Path, help="the table to write")
    importing.add_argument(
        "settings", nargs="*", metavar="key=value", help="how, see docs/how-to/own-data.md"
    )
    _add_quiet(importing)
    importing.set_defaults(command=_import, json=False)

    config = commands.add_parser(
        "config",
        help="every key with its default and what it means",
        description="Print a whole config, every key with its default below what it means.",
    )
    config.set_defaults(command=_config)
    return parser


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="CONFIG.toml | section.key=value",
        help="a config file, then values that replace some of its own",
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    _add_quiet(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="for programs: a line of JSON for every round and one for the outcome; with --quiet that alone",
    )


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress: warnings, errors and the outcome")
