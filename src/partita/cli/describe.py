"""The commands `describe` and `config`, which start no run."""

import argparse
import json
from pathlib import Path

from partita.cli.given import config_of
from partita.cli.options import AddParser, add_arguments
from partita.cli.output import print_table
from partita.shown import shown_lines


def add(add_parser: AddParser) -> None:
    """Add the command `describe`."""
    parser = add_parser(
        "describe",
        help="print the costs of each partition of a model: parameters, traffic, disk, memory",
        description="Print the costs of each partition of a config's model: parameters, traffic, disk space "
        "and training memory.",
    )
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the costs as JSON")
    parser.add_argument(
        "--derived",
        metavar="FILE",
        type=Path,
        help="write the values that the task derives from its data (vocabulary, classes, standardization) "
        "instead, for `task.derived`",
    )
    parser.set_defaults(command=describe)


def describe(options: argparse.Namespace) -> int:
    """Print the costs of each partition of a model, or write the values that its task derives from data."""
    from partita.config.reading import read_config
    from partita.data.writing import check_new
    from partita.durable import replace_file
    from partita.report.tables.commands import costs_notes, costs_table, method_notes, server_notes
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
    print_table(costs_table(described.model, described.devices, described.partitions))
    others = [*server_notes(described.server), *method_notes(described.method), *described.notes]
    print(shown_lines("\n".join([*costs_notes(described.partitions), *others])))
    if described.start:
        tensors = "\n  ".join(["Tensors of the initial model's file:", *described.start.lines()])
        print(shown_lines(tensors))
    return 0


def add_config(add_parser: AddParser) -> None:
    """Add the command `config`."""
    parser = add_parser(
        "config",
        help="print every config key with its default and its meaning",
        description="Print a complete config: every key with its meaning and its default.",
    )
    parser.set_defaults(command=config)


def config(_: argparse.Namespace) -> int:
    """Print every config key with its default."""
    from partita.config.reference import reference

    print(reference(), end="")
    return 0
