"""Compare methods on the table of `own_data.py`, and read the results.

Run it with `python examples/compare.py`; it takes about ten seconds.
"""

import csv
import tempfile
from pathlib import Path

import own_data
import partita.cli

COMPARE = """
[compare]
methods = ["finetune", "fedalt"]
partitions = ["output"]
seeds = 1                 # use several before you believe a difference
"""


def main(folder: Path) -> None:
    """Run `partita compare` in a folder and print three columns of its main table."""
    own_data.write_table(folder / "rooms.parquet")
    config = folder / "rooms.toml"
    config.write_text(own_data.CONFIG + COMPARE)

    partita.cli.main(["compare", str(config), f"out={folder / 'comparison'}", "--quiet"])

    with (folder / "comparison/tables/methods.csv").open() as table:
        for row in csv.DictReader(table):
            print(f"{row['method']:20} {row['personal part']:8} {float(row['accuracy mean']):.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
