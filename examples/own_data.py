"""Your own data: a Parquet table with a column `device`, and a config that names it.

Run it with `python examples/own_data.py`; it takes a few seconds.
"""

import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import partita.cli

CONFIG = """
[task]
kind = "tabular"          # the column `label` is predicted from all numeric columns
data = "rooms.parquet"

[partition]
personal = "output"

[pretrain]
rounds = 10
devices_per_round = 4
shared_lr = 0.5

[personalize]
method = "fedalt"
rounds = 10
devices_per_round = 4
shared_lr = 0.5
"""


def write_table(path: Path, *, people: int = 8, rows: int = 80) -> None:
    """Write who finds which room warm, from temperature and humidity; people disagree."""
    draw = random.Random(1)
    table = []
    for person in range(people):
        threshold = draw.uniform(19, 27)
        for _ in range(rows):
            temperature, humidity = draw.uniform(15, 30), draw.uniform(0.2, 0.8)
            warm = temperature + 5 * humidity > threshold
            row = {"device": f"person-{person:02}", "temperature": temperature / 30, "humidity": humidity}
            table.append({**row, "label": int(warm)})
    pq.write_table(pa.Table.from_pylist(table), path)


def main(folder: Path) -> None:
    """Write the table and the config to a folder, and run `partita run` there."""
    write_table(folder / "rooms.parquet")
    config = folder / "rooms.toml"
    config.write_text(CONFIG)

    partita.cli.main(["run", str(config), f"out={folder / 'run'}", "--quiet"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
