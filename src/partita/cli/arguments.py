"""What can be typed."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from partita.cli import commands


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"partita: {message[0].upper()}{message[1:]}. See `{self.prog} --help`.\n")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; `key=value` may stand behind them too, which argparse alone does not take."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    options.typed = shlex.join(["partita", *arguments])
    if rest and ("arguments" not in options or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.arguments += rest
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="partita",
        description="Federated learning with partial model personalization.",
    )
    parser.add_argument("--version", action="version", version=f"partita {metadata.version('partita')}")
    parser.set_defaults(command=lambda _: parser.print_help() or 0)
    names = parser.add_subparsers(title="commands", parser_class=_Parser, metavar="COMMAND")

    run = names.add_parser(
        "run",
        help="pretrain, personalize, finetune, evaluate; without a config, the quickstart",
        description="Run a config, without one the quickstart: pretrain, personalize, finetune, evaluate.",
    )
    _add_arguments(run)
    run.add_argument("--resume", metavar="RUN_DIR", type=Path, help="go on with the run in this folder")
    _add_outputs(run)
    run.set_defaults(command=commands.run)

    compare = names.add_parser(
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
    compare.set_defaults(command=commands.compare)

    tune = names.add_parser(
        "tune",
        help="search for settings on validation rows; writes the config for the final run",
        description="Try every combination of `key=v1,v2,...` on validation rows; test rows are never read.",
    )
    _add_arguments(tune)
    tune.add_argument("--trials", type=int, default=0, metavar="N", help="so many choices only, not all")
    _add_outputs(tune)
    tune.set_defaults(command=commands.tune)

    report = names.add_parser(
        "report",
        help="the page, the figures and the tables of a finished run or comparison, again",
        description="Write report.html, figures/ and tables/ of a finished run or comparison to its folder.",
    )
    report.add_argument("folder", metavar="RUN_DIR", type=Path, help="the folder of the run or comparison")
    _add_quiet(report)
    report.add_argument(
        "--json", action="store_true", help="for programs: a line of JSON that says where it is"
    )
    report.set_defaults(command=commands.report)

    describe = names.add_parser(
        "describe",
        help="what each partition of a config's model costs: parameters, traffic, disk, memory",
        description="Say what each partition costs: parameters, bytes sent, bytes on disk, training memory.",
    )
    _add_arguments(describe)
    describe.add_argument("--json", action="store_true", help="as JSON, for programs")
    describe.set_defaults(command=commands.describe)

    importing = names.add_parser(
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
    importing.set_defaults(command=commands.import_, json=False)

    config = names.add_parser(
        "config",
        help="every key with its default and what it means",
        description="Print a whole config, every key with its default below what it means.",
    )
    config.set_defaults(command=commands.config)
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
