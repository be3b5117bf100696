"""Arguments and options that several commands have."""

import argparse
from collections.abc import Callable

AddParser = Callable[..., argparse.ArgumentParser]
"""Adds the parser of a command: argparse's `add_parser`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a config and values that override it."""
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="CONFIG.toml | section.key=value",
        help="a config file, by default the quickstart's, then values that override it",
    )


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add `--quiet`, and `--json` for commands that report every round."""
    add_quiet(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one line of JSON for every round and one for the result; with --quiet, the result only",
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add `--quiet`."""
    parser.add_argument(
        "--quiet", action="store_true", help="print no progress, only warnings, errors and the result"
    )
