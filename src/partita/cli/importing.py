"""The command `import`."""

import argparse
from pathlib import Path

from partita.cli.options import AddParser, add_quiet
from partita.cli.output import console
from partita.errors import RunFailed, fault_text
from partita.shown import shown_lines


def add(add_parser: AddParser) -> None:
    """Add the command `import`."""
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
        "settings", nargs="*", default=[], metavar="key=value", help="options, see docs/how-to/own-data.md"
    )
    add_quiet(parser)
    parser.set_defaults(command=import_, json=False)


def import_(options: argparse.Namespace) -> int:
    """Convert a dataset to a per-device table."""
    from partita.config.importing import import_data
    from partita.progress.bar import ProgressBar

    again = (
        f"give the same command again, `{options.command_line}`. It continues after what is finished, if "
        "anything is."
    )
    try:
        with ProgressBar(console(options), options.kind) as progress:
            lines = import_data(options.kind, options.source, options.out, options.settings, progress.update)
    except KeyboardInterrupt as interrupt:
        interrupt.args = (f"No table was written: {again}",)
        raise
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunFailed(
            f"{fault_text(error)} No table was written: when the cause is mended, {again}"
        ) from error
    print(shown_lines("\n".join([*lines, f"The table is {options.out}"])))
    return 0
