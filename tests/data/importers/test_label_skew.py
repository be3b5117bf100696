"""Simulated devices with label skew: every row once, reproducible, and as by Flower's partitioners."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partita.data.importers.label_skew import dirichlet, shards
from partita.errors import ConfigError


def write(path: Path, rows: int = 600, labels: int = 5) -> Path:
    """Write a table with numbered rows, labels in turn, and training rows before test rows."""
    table = pa.table(
        {
            "row": list(range(rows)),
            "label": [number % labels for number in range(rows)],
            "image": [{"bytes": bytes([number % 251]), "path": None} for number in range(rows)],
            "split": ["train" if number < rows * 2 // 3 else "test" for number in range(rows)],
        }
    )
    pq.write_table(table.replace_schema_metadata({"mine": "kept"}), path, row_group_size=70)
    return path


def owners(out: Path) -> dict[int, str]:
    table = pq.read_table(out)
    return dict(zip(table["row"].to_pylist(), table["device"].to_pylist(), strict=True))


def labels_by_device(out: Path) -> dict[str, Counter[Any]]:
    found: dict[str, Counter[Any]] = {}
    for row in pq.read_table(out).to_pylist():
        found.setdefault(row["device"], Counter())[row["label"]] += 1
    return found


def largest_share(out: Path) -> float:
    """Return the mean over devices of the share of the most frequent label."""
    return float(
        np.mean([max(counts.values()) / counts.total() for counts in labels_by_device(out).values()])
    )


@pytest.mark.parametrize("draw", [dirichlet, shards])
def test_every_row_is_kept_once_with_all_its_values(tmp_path: Path, draw: Any) -> None:
    source = write(tmp_path / "in.parquet", rows=613)

    imported = draw(source, tmp_path / "out.parquet", devices=12)

    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["device", "row", "label", "image", "split"]
    assert table.schema.metadata[b"mine"] == b"kept"
    assert table.drop_columns("device").sort_by("row").to_pylist() == pq.read_table(source).to_pylist()
    names = [f"device-{number:04}" for number in range(12)]
    assert list(imported.survey.devices) == names
    assert imported.rows == 613
    # Sorted by id, and by row within a device.
    order = list(zip(table["device"].to_pylist(), table["row"].to_pylist(), strict=True))
    assert order == sorted(order)


@pytest.mark.slow
@pytest.mark.parametrize("draw", [dirichlet, shards])
def test_a_seed_gives_the_same_devices_in_another_process(tmp_path: Path, draw: Any) -> None:
    source = write(tmp_path / "in.parquet")
    code = (
        "import sys, pathlib; from partita.data.importers import label_skew;"
        "getattr(label_skew, sys.argv[1])(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), devices=10, seed=3)"
    )

    draw(source, tmp_path / "here.parquet", devices=10, seed=3)
    draw(source, tmp_path / "other.parquet", devices=10, seed=4)
    there = tmp_path / "there.parquet"
    subprocess.run([sys.executable, "-c", code, draw.__name__, str(source), str(there)], check=True)

    assert there.read_bytes() == (tmp_path / "here.parquet").read_bytes()
    assert owners(tmp_path / "other.parquet") != owners(there)


def test_a_small_alpha_gives_more_skewed_labels_than_a_large_one(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", rows=2000)

    shares = []
    for alpha in (0.05, 1.0, 1000.0):
        out = tmp_path / f"{alpha}.parquet"
        dirichlet(source, out, devices=10, alpha=alpha, min_examples=1)
        shares.append(largest_share(out))

    # Of five labels, the most frequent one has nearly all rows of a device, or a fifth.
    assert shares[0] > shares[1] + 0.1 > shares[2] + 0.2
    assert shares[0] > 0.6
    assert shares[2] < 0.25


def test_dirichlet_shares_are_those_of_flower(tmp_path: Path) -> None:
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    source = write(tmp_path / "in.parquet")
    partitioner = DirichletPartitioner(num_partitions=8, partition_by="label", alpha=0.7, seed=5)
    partitioner.dataset = Dataset.from_dict({"label": [number % 5 for number in range(600)]})

    dirichlet(source, tmp_path / "out.parquet", devices=8, alpha=0.7, seed=5)

    # The rows of a label are shuffled, but the number that each device gets is the same.
    expected = [Counter(partitioner.load_partition(number)["label"]) for number in range(8)]
    assert list(labels_by_device(tmp_path / "out.parquet").values()) == expected


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")
def test_shards_are_assigned_as_by_flower(tmp_path: Path) -> None:
    from datasets import Dataset
    from flwr_datasets.partitioner import ShardPartitioner

    source = write(tmp_path / "in.parquet")
    partitioner = ShardPartitioner(
        num_partitions=10, partition_by="label", num_shards_per_partition=2, seed=5
    )
    partitioner.dataset = Dataset.from_dict({"label": [number % 5 for number in range(600)]})

    shards(source, tmp_path / "out.parquet", devices=10, shards_per_device=2, seed=5)

    expected = [Counter(partitioner.load_partition(number)["label"]) for number in range(10)]
    assert list(labels_by_device(tmp_path / "out.parquet").values()) == expected
    assert all(len(counts) <= 2 for counts in expected)


def test_shards_differ_by_at_most_one_row(tmp_path: Path) -> None:
    # 1003 rows in 60 shards: 43 have 17 rows and 17 have 16.
    source = write(tmp_path / "in.parquet", rows=1003)

    shards(source, tmp_path / "out.parquet", devices=20, shards_per_device=3)

    sizes = Counter(owners(tmp_path / "out.parquet").values())
    assert len(sizes) == 20
    assert set(sizes.values()) <= {48, 49, 50, 51}
    assert sum(sizes.values()) == 1003


@pytest.mark.parametrize("draw", [dirichlet, shards])
def test_devices_have_rows_from_the_beginning_and_from_the_end(tmp_path: Path, draw: Any) -> None:
    # The table has its training rows first: dealt in order, the last devices would have test rows alone.
    source = write(tmp_path / "in.parquet", rows=1200)

    draw(source, tmp_path / "out.parquet", devices=10)

    table = pq.read_table(tmp_path / "out.parquet")
    found = set(zip(table["device"].to_pylist(), table["split"].to_pylist(), strict=True))
    assert len(found) == 20


@pytest.mark.parametrize("draw", [dirichlet, shards])
@pytest.mark.parametrize("labels", [["x", "é", "b"], [True, False, True], [-5, 7, 2**40]])
def test_labels_may_be_texts_or_whole_numbers_in_another_column(
    tmp_path: Path, draw: Any, labels: list[Any]
) -> None:
    (tmp_path / "many").mkdir()
    for name in ("a", "b"):
        table = pa.table({"class": labels * 50, "row": [f"{name}{number}" for number in range(150)]})
        pq.write_table(table, tmp_path / "many" / f"{name}.parquet")

    imported = draw(tmp_path / "many", tmp_path / "out.parquet", devices=4, label="class")

    assert imported.rows == 300
    assert len(set(pq.read_table(tmp_path / "out.parquet")["row"].to_pylist())) == 300
    assert len(imported.survey.devices) == 4


def test_datasets_opens_the_result_for_one_of_its_own_tables(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"label": ClassLabel(names=["cat", "dog"]), "text": Value("string")})
    made = Dataset.from_dict({"label": [0, 1] * 30, "text": [str(n) for n in range(60)]}, features=features)
    made.to_parquet(str(tmp_path / "in.parquet"))

    shards(tmp_path / "in.parquet", tmp_path / "out.parquet", devices=3)

    again = Dataset.from_parquet(str(tmp_path / "out.parquet"), cache_dir=str(tmp_path / "cache"))
    assert again.features["label"].names == ["cat", "dog"]
    assert again[0]["device"] == "device-0000"


@pytest.mark.parametrize(
    ("draw", "values", "message"),
    [
        (dirichlet, {"devices": 0}, "`devices` must be at least 1, got 0"),
        (dirichlet, {"alpha": 0.0}, "`alpha` must be a number above 0, got 0.0"),
        (dirichlet, {"alpha": float("nan")}, "`alpha` must be a number above 0, got nan"),
        (dirichlet, {"min_examples": 0}, "`min_examples` must be at least 1, got 0"),
        (dirichlet, {"seed": -1}, "`seed` must be at least 0, got -1"),
        (dirichlet, {"label": "class"}, "has no column 'class'. Its columns: row, label, image, split"),
        (dirichlet, {"label": "image"}, "`image` of .* must hold strings or whole numbers, got struct"),
        (dirichlet, {"devices": 61}, "has 600 rows, too few for 61 devices with at least 10 each"),
        (
            dirichlet,
            {"devices": 50, "alpha": 0.01},
            "No draw with `alpha` = 0.01 gave each of 50 devices at least 10",
        ),
        (shards, {"devices": -3}, "`devices` must be at least 1, got -3"),
        (shards, {"shards_per_device": 0}, "`shards_per_device` must be at least 1, got 0"),
        (shards, {"devices": 301}, "has 600 rows, too few for 301 devices with 2 shards each"),
    ],
)
def test_invalid_values_are_a_one_line_error(
    tmp_path: Path, draw: Any, values: dict[str, Any], message: str
) -> None:
    source = write(tmp_path / "in.parquet")

    with pytest.raises(ConfigError, match=message) as error:
        draw(source, tmp_path / "out.parquet", **values)

    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


@pytest.mark.parametrize("draw", [dirichlet, shards])
def test_invalid_tables_are_refused(tmp_path: Path, draw: Any) -> None:
    pq.write_table(pa.table({"device": ["a"] * 300, "label": [1] * 300}), tmp_path / "has.parquet")
    pq.write_table(pa.table({"label": [1] * 290 + [None]}), tmp_path / "null.parquet")
    pq.write_table(pa.table({"label": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    wrong = {
        "has": "has.parquet` has devices already, in its column `device`",
        "null": "null.parquet`, row 290: `label` is empty",
        "empty": "empty.parquet` has 0 rows, too few",
        "nothing": "There is no file or folder `.*nothing.parquet`",
    }

    for name, message in wrong.items():
        with pytest.raises(ConfigError, match=message):
            draw(tmp_path / f"{name}.parquet", tmp_path / "out.parquet")
    with pytest.raises(ConfigError, match="has.parquet` exists already"):
        draw(tmp_path / "null.parquet", tmp_path / "has.parquet")


def test_a_missing_package_is_an_error_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in.parquet")
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)

    for draw in (dirichlet, shards):
        with pytest.raises(ConfigError) as error:
            draw(source, tmp_path / "out.parquet", devices=5)

        assert str(error.value) == "Simulated devices need flwr-datasets: pip install 'partita[hf]'."
