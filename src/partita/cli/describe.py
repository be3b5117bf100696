"""The commands `describe` and `config`, which start no run."""

import argparse
import json

from partita.cli.given import config_of
from partita.cli.output import print_table
from partita.shown import shown_lines


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


def config(_: argparse.Namespace) -> int:
    """Print every config key with its default."""
    from partita.config.reference import reference

    print(reference(), end="")
    return 0
