"""The arguments of every command."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, NoReturn

from partita.cli import (
    check,
    compare,
    describe,
    export,
    flower,
    importing,
    join,
    keys,
    onboard,
    outbox,
    predict,
    report,
    run,
    serve,
    tune,
)
from partita.errors import did_you_mean, one_line

_COMMANDS = (
    run.add,
    compare.add,
    tune.add,
    report.add,
    check.add,
    export.add,
    predict.add,
    onboard.add,
    describe.add,
    importing.add,
    describe.add_config,
    serve.add,
    join.add,
    keys.add,
    outbox.add,
    flower.add,
)
"""Each adds the parser of a command, in the order of `partita --help`."""


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, with the most similar choice."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(map(str, action.choices))
            hint = did_you_mean(str(value), choices)
            raise argparse.ArgumentError(
                action, f"invalid choice {value!r}.{hint} Choose from {', '.join(choices)}"
            )

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
    for add in _COMMANDS:
        add(subparsers.add_parser)
    return parser
