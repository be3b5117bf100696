"""The arguments of every command."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from partita.cli import (
    check,
    compare,
    deploy_arguments,
    describe,
    export,
    importing,
    onboard,
    predict,
    report,
    run,
    tune,
)
from partita.errors import one_line

_AddParser = Callable[..., argparse.ArgumentParser]
"""Adds the parser of a command: argparse's `add_parser`."""


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"partita: {one_line(message[0].upper() + message[1:])}. See `{self.prog} --help`.\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed options; unlike argparse, accepts `key=value` after options too."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    for argument in arguments:
        if not _is_text(argument):
            parser.error(f"the argument {argument!r} is not text in the encoding of this locale")
    options, rest = parser.parse_known_args(arguments)
    options.command_line = shlex.join(["partita", *arguments])
    if rest and ("arguments" not in options or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.arguments += rest
    return options


def _is_text(argument: str) -> bool:
    """Return whether an argument could be decoded: other bytes are lone surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="partita", description="Federated learning with partial model personalization.")
    parser.add_argument("--version", action="version", version=f"partita {metadata.version('partita')}")
    parser.set_defaults(command=lambda _: parser.print_help() or 0)
    subparsers = parser.add_subparsers(title="commands", parser_class=_Parser, metavar="COMMAND", dest="name")
    for add in (
        _add_run,
        _add_compare,
        _add_tune,
        _add_report,
        _add_check,
        _add_export,
        _add_predict,
        _add_onboard,
        _add_describe,
        _add_import,
        _add_config,
    ):
        add(subparsers.add_parser)
    for add in (deploy_arguments.add_serve, deploy_arguments.add_join):
        add(subparsers.add_parser, _add_outputs)
    for add in (deploy_arguments.add_keys, deploy_arguments.add_outbox, deploy_arguments.add_flower):
        add(subparsers.add_parser)
    return parser


def _add_run(add_parser: _AddParser) -> None:
    parser = add_parser(
        "run",
        help="pretrain, personalize, fine-tune and evaluate; without a config, run the quickstart",
        description="Pretrain, personalize, fine-tune and evaluate. Without a config, run the quickstart.",
    )
    _add_arguments(parser)
    parser.add_argument("--resume", metavar="RUN_DIR", type=Path, help="resume the run in this folder")
    parser.add_argument(
        "--reset-device",
        metavar="ID",
        action="append",
        default=[],
        help="with --resume: let a device start again whose personal part is damaged; may be repeated",
    )
    _add_outputs(parser)
    parser.set_defaults(command=run.run)


def _add_compare(add_parser: _AddParser) -> None:
    parser = add_parser(
        "compare",
        help="compare methods, personal parts and seeds; --dry-run prints the expected time",
        description="Compare methods and personal parts. For each seed, all methods start from the same "
        "pretrained model, except those that train from scratch.",
    )
    _add_arguments(parser)
    parser.add_argument("--resume", metavar="DIR", type=Path, help="resume the comparison in this folder")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="list the runs and the expected time of each, estimated on a few devices; start none",
    )
    _add_outputs(parser)
    parser.set_defaults(command=compare.compare)


def _add_tune(add_parser: _AddParser) -> None:
    parser = add_parser(
        "tune",
        help="search for settings on validation data; writes the config for the final run",
        description="Try every combination of `key=v1,v2,...` on validation data. Test data is never read.",
    )
    _add_arguments(parser)
    parser.add_argument("--resume", metavar="DIR", type=Path, help="resume the search in this folder")
    parser.add_argument(
        "--trials", type=int, default=0, metavar="N", help="number of trials; 0 (default): all combinations"
    )
    _add_outputs(parser)
    parser.set_defaults(command=tune.tune)


def _add_report(add_parser: _AddParser) -> None:
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
    _add_quiet(parser)
    parser.add_argument("--json", action="store_true", help="print the path of the page as JSON")
    parser.set_defaults(command=report.report)


def _add_export(add_parser: _AddParser) -> None:
    parser = add_parser(
        "export",
        help="write the model that a device is served, or those of all devices, as files",
        description="Write the whole model that a device is served, its own or the global one. "
        "`partita.load` reads a safetensors file; the other formats need no Partita. A file is checked to "
        "predict as the model does before it is written.",
    )
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="the folder of a finished run")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="DEVICE OUT | key=value",
        help="the device and the file to write, without --all; then, for files of the run that are elsewhere "
        "now, task.data=FILE and the like",
    )
    parser.add_argument(
        "--all", metavar="DIR", type=Path, help="write the models of all devices to this new folder"
    )
    parser.add_argument(
        "--format",
        choices=("safetensors", "torch-export", "onnx", "adapter"),
        help="safetensors (default); torch-export, a program for torch.export.load; onnx; adapter (default "
        "for pretrained Hugging Face models), a folder for peft",
    )
    parser.add_argument(
        "--merged",
        action="store_true",
        help="of a pretrained Hugging Face model, write a folder with the whole model, for transformers",
    )
    _add_quiet(parser)
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.set_defaults(command=export.export)


def _add_predict(add_parser: _AddParser) -> None:
    parser = add_parser(
        "predict",
        help="write the predictions of each device's served model for its rows of a table",
        description="Write the predictions of each device's served model for its rows of a table. Rows need "
        "no label.",
    )
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="the folder of a finished run")
    parser.add_argument("data", metavar="DATA.parquet", type=Path, help="a table by device")
    parser.add_argument("out", metavar="OUT.parquet", type=Path, help="the table to write")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="key=value",
        help="task.skip_bad=true leaves predictions of bad rows empty; task.data=FILE and the like, for "
        "files of the run that are elsewhere now",
    )
    parser.add_argument(
        "--device",
        metavar="ID",
        help="predict only rows of this device; without a column of devices, all rows are its rows",
    )
    _add_quiet(parser)
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.set_defaults(command=predict.predict)


def _add_onboard(add_parser: _AddParser) -> None:
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
    _add_outputs(parser)
    parser.set_defaults(command=onboard.onboard)


def _add_check(add_parser: _AddParser) -> None:
    parser = add_parser(
        "check",
        help="check whether the files of a run, a comparison or a search are as they were written",
        description="Read every file in the folder of a run, a comparison or a search, compare it with its "
        "recorded digest, and print a line for each that is damaged or missing. The exit code is 0 if all "
        "are sound, 1 if not, and 2 if there is nothing to check.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(command=check.check)


def _add_describe(add_parser: _AddParser) -> None:
    parser = add_parser(
        "describe",
        help="print the costs of each partition of a model: parameters, traffic, disk, memory",
        description="Print the costs of each partition of a config's model: parameters, traffic, disk space "
        "and training memory.",
    )
    _add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the costs as JSON")
    parser.add_argument(
        "--derived",
        metavar="FILE",
        type=Path,
        help="write the values that the task derives from its data (vocabulary, classes, standardization) "
        "instead, for `task.derived`",
    )
    parser.set_defaults(command=describe.describe)


def _add_import(add_parser: _AddParser) -> None:
    parser = add_parser(
        "import",
        help="convert a public dataset or a table to a per-device table",
        description="Convert the files of a public dataset, or another table, to a per-device table.",
    )
    parser.add_argument(
        "kind",
        metavar="KIND",
        help="a public dataset (emnist, stackoverflow, gldv2, librispeech, qmnist, audiomnist), hf (any "
        "dataset of the `datasets` library), or an operation on a table (sort, dirichlet, shards)",
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="the file or folder to read; for hf, the name of the dataset"
    )
    parser.add_argument("out", metavar="OUT.parquet", type=Path, help="the table to write")
    parser.add_argument(
        "settings", nargs="*", metavar="key=value", help="options, see docs/how-to/own-data.md"
    )
    _add_quiet(parser)
    parser.set_defaults(command=importing.import_, json=False)


def _add_config(add_parser: _AddParser) -> None:
    parser = add_parser(
        "config",
        help="print every config key with its default and its meaning",
        description="Print a complete config: every key with its meaning and its default.",
    )
    parser.set_defaults(command=describe.config)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="CONFIG.toml | section.key=value",
        help="a config file, then values that override it",
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    _add_quiet(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one line of JSON for every round and one for the result; with --quiet, the result only",
    )


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quiet", action="store_true", help="print no progress, only warnings, errors and the result"
    )
