"""EMNIST from TensorFlow Federated's HDF5 and SQLite files."""

import io
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from partita.data.importers import source as importing
from partita.data.importers.emnist import Emnist
from partita.data.importers.source import Imported, Row, import_source
from partita.errors import ConfigError
from tff_files import INDEXES, example, write_hdf5, write_sqlite

SPLITS = {"train": "all_train", "test": "all_test"}
COUNTS = {"f1_a": (3, 2), "f0_b": (2, 1), "f2_few": (1, 9), "f3_untested": (4, 0), "f4_c": (2, 4)}
"""Training and test examples by device; `min_train_examples` 2 and `min_test_examples` 1 keep the three whose names end in a single letter."""


def image_of(device: str, split: str, row: int) -> np.ndarray:
    """Return a white image with one dark pixel: its shade identifies device and split, its column the row."""
    pixels = np.ones((28, 28), np.float32)
    pixels[3, row] = list(COUNTS).index(device) / 10 + (split == "test") / 20
    return pixels


def label_of(device: str, row: int) -> int:
    return (61 + row * len(device)) % 62


def write_folder(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for position, split in enumerate(("train", "test")):
        devices = {}
        for device, counts in COUNTS.items():
            if count := counts[position]:
                pixels = np.stack([image_of(device, split, row) for row in range(count)])
                labels = np.array([label_of(device, row) for row in range(count)], np.int32)
                devices[device] = {"pixels": pixels, "label": labels}
        write_hdf5(folder / f"fed_emnist_{split}.h5", devices)
    return folder


def records() -> Iterator[tuple[str, str, bytes]]:
    """Yield the rows of all devices in turn, so that no device's rows are adjacent."""
    for row in range(9):
        for device, counts in COUNTS.items():
            for split, count in zip(("train", "test"), counts, strict=True):
                if row < count:
                    pixels = image_of(device, split, row).ravel().tolist()
                    record = example(label=[label_of(device, row)], pixels=pixels)
                    yield SPLITS[split], device, record
                    yield f"digits_only_{split}", device, record


def write_with_index(folder: Path) -> Path:
    return write_sqlite(folder / "emnist_all.sqlite", records())


def write_without_index(folder: Path) -> Path:
    return write_sqlite(folder / "emnist_all.sqlite", records(), statements=())


LAYOUTS = [write_folder, write_with_index, write_without_index]


def import_rows(source: Any, out: Path) -> tuple[Imported, list[dict[str, Any]]]:
    imported = import_source(source, out, progress=lambda done, total: None, about="x")
    return imported, pq.read_table(out).to_pylist()


@pytest.mark.parametrize("write", LAYOUTS)
def test_every_layout_gives_the_rows_of_the_kept_devices(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    source = Emnist(path=write(tmp_path), min_train_examples=2, min_test_examples=1)

    _, rows = import_rows(source, tmp_path / "out.parquet")

    expected = [
        (device, split, row)
        for device in ("f0_b", "f1_a", "f4_c")
        for split, count in zip(("train", "test"), COUNTS[device], strict=True)
        for row in range(count)
    ]
    assert [(row["device"], row["split"]) for row in rows] == [(name, split) for name, split, _ in expected]
    for row, (device, split, number) in zip(rows, expected, strict=True):
        image = Image.open(io.BytesIO(row["image"]["bytes"]))
        assert (image.format, image.mode, image.size) == ("PNG", "L", (28, 28))
        expected = np.rint(255 * image_of(device, split, number).astype(float))
        np.testing.assert_array_equal(np.asarray(image), expected)
        assert row["label"] == label_of(device, number)


def test_the_paper_stays_white_and_half_is_rounded_to_even(tmp_path: Path) -> None:
    pixels = [1.0] * 782 + [0.5, 0.0]  # 255 * 0.5 = 127.5
    rows = [(split, "w", example(pixels=pixels, label=[0])) for split in SPLITS.values()]
    source = Emnist(
        path=write_sqlite(tmp_path / "emnist_all.sqlite", rows), min_train_examples=1, min_test_examples=1
    )

    _, found = import_rows(source, tmp_path / "out.parquet")

    gray = np.asarray(Image.open(io.BytesIO(found[0]["image"]["bytes"])))
    assert gray[0, 0] == 255
    assert gray[27, 26] == 128
    assert gray[27, 27] == 0


@pytest.mark.parametrize("write", LAYOUTS)
def test_dropped_devices_are_counted_by_reason(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    source = Emnist(path=write(tmp_path), min_train_examples=2, min_test_examples=1)

    imported, _ = import_rows(source, tmp_path / "out.parquet")

    assert imported.lines() == [
        "Kept 3 devices with 14 rows.",
        "Dropped 1: fewer than 2 training examples.",
        "Dropped 1: fewer than 1 test examples.",
    ]


@pytest.mark.parametrize(("train", "test", "kept"), [(100, 25, 1), (99, 25, 0), (100, 24, 0)])
def test_the_papers_minimum_numbers_are_the_defaults(
    tmp_path: Path, train: int, test: int, kept: int
) -> None:
    for split, count in (("train", train), ("test", test)):
        members = {"pixels": np.ones((count, 28, 28), np.float32), "label": np.zeros(count, np.int64)}
        write_hdf5(tmp_path / f"fed_emnist_{split}.h5", {"w": members})

    survey = Emnist(path=tmp_path).survey(lambda done, total: None)

    assert len(survey.devices) == kept
    assert set(survey.dropped) == {"fewer than 100 training examples", "fewer than 25 test examples"}
    assert survey.paper == 1114


def test_the_papers_count_is_reported_for_the_defaults_only(tmp_path: Path) -> None:
    path = write_folder(tmp_path)

    assert Emnist(path=path, min_test_examples=24).survey(lambda done, total: None).paper is None
    assert Emnist(path=path, min_test_examples=25).survey(lambda done, total: None).paper == 1114


def test_the_database_is_never_written(tmp_path: Path) -> None:
    path = write_without_index(tmp_path)
    before = path.read_bytes()
    source = Emnist(path=path, min_train_examples=2, min_test_examples=1)

    import_rows(source, tmp_path / "out.parquet")

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        source._examples._connection.execute("DROP TABLE main.examples")
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["emnist_all.sqlite", "out.parquet"]


@pytest.mark.parametrize(
    "statements",
    [
        [],
        ["CREATE INDEX by_split ON examples (split_name)"],
        ["CREATE INDEX too_late ON examples (split_name, serialized_example_proto, client_id)"],
        ["CREATE INDEX other_first ON examples (serialized_example_proto, client_id)"],
        ["CREATE INDEX of_one ON examples (client_id) WHERE client_id = 'f0_b'"],
    ],
)
def test_without_an_index_by_device_the_table_is_not_scanned_for_each_device(
    tmp_path: Path, statements: list[str]
) -> None:
    path = write_sqlite(tmp_path / "emnist_all.sqlite", records(), statements)
    source = Emnist(path=path, min_train_examples=2, min_test_examples=1)
    source.survey(lambda done, total: None)
    plans: list[str] = []
    connection: sqlite3.Connection = source._examples._connection

    connection.set_trace_callback(plans.append)
    rows = list(source.rows("f1_a"))
    connection.set_trace_callback(None)

    assert len(rows) == 5
    steps = [step for plan in plans for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {plan}")]
    assert len(plans) == 2
    assert all(step.startswith("SEARCH") for step in steps)
    assert not any("(split_name=?)" in step for step in steps)


def test_without_an_index_the_table_is_passed_over_once(tmp_path: Path) -> None:
    source = Emnist(path=write_without_index(tmp_path), min_train_examples=2, min_test_examples=1)
    calls: list[tuple[int, int]] = []

    for _ in range(2):
        source.survey(lambda done, total: calls.append((done, total)))

    # 28 examples in two splits each: the devices, the examples; then the devices alone.
    assert calls == [(0, 5), (56, 56), (0, 5)]


def test_a_file_with_the_public_indexes_is_queried_by_device(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    source = Emnist(path=write_with_index(tmp_path), min_train_examples=2, min_test_examples=1)

    source.survey(lambda done, total: calls.append((done, total)))

    tables = source._examples._connection.execute("SELECT name FROM temp.sqlite_master").fetchall()
    assert tables == []
    assert calls == [(0, 5)]


@pytest.mark.parametrize("index", INDEXES[:2])
def test_either_public_index_is_enough(tmp_path: Path, index: str) -> None:
    path = write_sqlite(tmp_path / "emnist_all.sqlite", records(), [index])
    source = Emnist(path=path, min_train_examples=2, min_test_examples=1)

    source.survey(lambda done, total: None)

    assert source._examples._connection.execute("SELECT name FROM temp.sqlite_master").fetchall() == []


@dataclass
class Interrupted:
    """A source that fails once, in the middle of a device."""

    source: Emnist
    at: str | None
    requested: list[str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def rows(self, device: str) -> Iterator[Row]:
        self.requested.append(device)
        for number, row in enumerate(self.source.rows(device)):
            if device == self.at and number == 1:
                self.at = None
                raise KeyboardInterrupt
            yield row


@pytest.mark.parametrize("write", LAYOUTS)
def test_an_interrupted_import_resumes(
    tmp_path: Path, write: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_DEVICES_PER_PART", 1)
    source = Emnist(path=write(tmp_path), min_train_examples=2, min_test_examples=1)
    interrupted = Interrupted(source, "f1_a", [])
    with pytest.raises(KeyboardInterrupt):
        import_rows(interrupted, tmp_path / "out.parquet")

    imported, rows = import_rows(interrupted, tmp_path / "out.parquet")

    assert interrupted.requested == ["f0_b", "f1_a", "f1_a", "f4_c"]
    assert imported.rows == 14
    assert rows == import_rows(source, tmp_path / "whole.parquet")[1]


def test_an_interrupted_search_for_rows_starts_again(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    source = Emnist(path=write_without_index(tmp_path), min_train_examples=2, min_test_examples=1)
    with pytest.raises(KeyboardInterrupt):
        source.survey(stop)

    _, rows = import_rows(source, tmp_path / "out.parquet")

    assert len(rows) == 14


def refused(path: Path, out: Path) -> str:
    """Return the one-line error of an import that is refused."""
    with pytest.raises(ConfigError) as error:
        import_rows(Emnist(path=path, min_train_examples=1, min_test_examples=1), out)
    message = str(error.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_a_missing_path_is_reported(tmp_path: Path) -> None:
    message = refused(tmp_path / "none", tmp_path / "out.parquet")

    assert message == (
        f"There is no `{tmp_path}/none`: give the folder with `fed_emnist_train.h5` and `fed_emnist_test.h5`, "
        "or the file `emnist_all.sqlite`."
    )


def test_a_missing_file_of_a_folder_is_reported(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "h5")
    (path / "fed_emnist_test.h5").unlink()

    assert "no `fed_emnist_test.h5`" in refused(path, tmp_path / "out.parquet")


def test_one_hdf5_file_is_not_enough(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "h5") / "fed_emnist_train.h5"

    assert "is one of several files: give the folder" in refused(path, tmp_path / "out.parquet")


def test_a_file_that_is_not_hdf5_is_reported(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "h5")
    (path / "fed_emnist_test.h5").write_bytes(b"not HDF5" * 100)

    message = refused(path, tmp_path / "out.parquet")

    assert "fed_emnist_test.h5` cannot be read as an HDF5 file" in message


def test_an_hdf5_file_without_examples_is_reported(tmp_path: Path) -> None:
    import h5py

    path = write_folder(tmp_path / "h5")
    with h5py.File(path / "fed_emnist_test.h5", "w") as file:
        file.create_group("other")

    assert "must have a group `examples`, got ['other']" in refused(path, tmp_path / "out.parquet")


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "emnist_all.sqlite"
    path.write_bytes(b"\xfd7zXZ\x00" * 100)

    assert "decompressed: file is not a database." in refused(path, tmp_path / "out.parquet")


@pytest.mark.parametrize("table", ["examples", "client_metadata"])
def test_a_database_without_a_table_is_reported(tmp_path: Path, table: str) -> None:
    path = write_sqlite(tmp_path / "emnist_all.sqlite", records(), [f"DROP TABLE {table}"])

    assert f"no such table: {table}." in refused(path, tmp_path / "out.parquet")


def test_a_database_of_other_splits_is_reported(tmp_path: Path) -> None:
    path = write_sqlite(tmp_path / "emnist_all.sqlite", [("train", "w", b""), ("heldout", "w", b"")])

    message = refused(path, tmp_path / "out.parquet")

    assert message.endswith("must have the splits ['all_train', 'all_test'], got ['heldout', 'train'].")


@pytest.mark.parametrize("statements", [INDEXES, ()])
def test_fewer_rows_than_counted_are_reported(tmp_path: Path, statements: tuple[str, ...]) -> None:
    drop = "DELETE FROM examples WHERE client_id = 'f1_a' AND split_name = 'all_test'"
    path = write_sqlite(tmp_path / "emnist_all.sqlite", records(), [*statements, drop])

    message = refused(path, tmp_path / "out.parquet")

    assert (
        "device 'f1_a': there must be at least 1 test examples, as the file's own counts say, got 0."
        in message
    )


WHITE = [1.0] * 784
BAD = {
    "must have `label`, got ['pixels']": example(pixels=WHITE),
    "must have `pixels`, got ['label']": example(label=[1]),
    "`label` must be a whole number from 0 to 61, got 62": example(pixels=WHITE, label=[62]),
    "`label` must be a whole number from 0 to 61, got -1": example(pixels=WHITE, label=[-1]),
    "`label` must be a whole number from 0 to 61, got 1.0": example(pixels=WHITE, label=[1.0]),
    "`label` must be a whole number from 0 to 61, got 2 values": example(pixels=WHITE, label=[1, 2]),
    "`pixels` must be 784 real numbers, got 783 of float64": example(pixels=WHITE[1:], label=[1]),
    "`pixels` must be 784 real numbers, got 784 of int64": example(pixels=[255] * 784, label=[1]),
    "`pixels` must be from 0 to 1, got 1.0 to 2.0": example(pixels=[2.0, *WHITE[1:]], label=[1]),
    "`pixels` must be from 0 to 1, got nan": example(pixels=[float("nan"), *WHITE[1:]], label=[1]),
    "must be a serialized `tf.train.Example`: Unknown wire type 7": b"\x7f",
    "must be a serialized `tf.train.Example`: It must be bytes, got str": "text",
}


@pytest.mark.parametrize(("why", "record"), BAD.items(), ids=BAD)
def test_a_bad_record_is_reported_with_file_device_and_row(tmp_path: Path, why: str, record: Any) -> None:
    good = example(pixels=WHITE, label=[1])
    rows = [
        ("all_train", "w", good),
        ("all_train", "w", good),
        ("all_test", "w", good),
        ("all_test", "w", record),
    ]
    path = write_sqlite(tmp_path / "emnist_all.sqlite", rows)

    message = refused(path, tmp_path / "out.parquet")

    assert f"`{path}`, device 'w', test row 1" in message
    assert why in message


IMAGES = np.ones((2, 28, 28), np.float32)
BAD_MEMBERS = {
    "must be a dataset `label` with a row for each": {"pixels": IMAGES},
    "must be a dataset `pixels` with a row for each": {"label": np.array([0, 0])},
    "must be a dataset `label` with": {"pixels": IMAGES, "label": np.int64(1)},
    "must have the same length, got {'pixels': 2, 'label': 1}": {"pixels": IMAGES, "label": np.array([0])},
    "train row 1: `label` must be a whole number from 0 to 61, got 62": {
        "pixels": IMAGES,
        "label": np.array([0, 62]),
    },
}


@pytest.mark.parametrize(("why", "members"), BAD_MEMBERS.items(), ids=BAD_MEMBERS)
def test_bad_members_are_reported_with_file_and_device(
    tmp_path: Path, why: str, members: dict[str, Any]
) -> None:
    write_hdf5(tmp_path / "fed_emnist_train.h5", {"w": members})
    write_hdf5(tmp_path / "fed_emnist_test.h5", {"w": {"pixels": IMAGES, "label": np.array([0, 1])}})

    message = refused(tmp_path, tmp_path / "out.parquet")

    assert f"`{tmp_path}/fed_emnist_train.h5`, device 'w'" in message
    assert why in message


def test_a_dataset_in_place_of_a_device_is_reported(tmp_path: Path) -> None:
    import h5py

    path = write_folder(tmp_path / "h5")
    with h5py.File(path / "fed_emnist_train.h5", "a") as file:
        file["examples"].create_dataset("f5_flat", data=[1])

    assert "device 'f5_flat': there must be a dataset `pixels`" in refused(path, tmp_path / "out.parquet")


def test_ids_that_are_numbers_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "emnist_all.sqlite"
    with sqlite3.connect(path) as base:
        base.execute(
            "CREATE TABLE client_metadata (client_id INTEGER, split_name TEXT, num_examples INTEGER)"
        )
        base.execute("INSERT INTO client_metadata VALUES (7, 'all_train', 1)")
    base.close()

    assert "each `client_id` must be a string, got 7" in refused(path, tmp_path / "out.parquet")


def test_a_missing_package_is_reported_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Emnist(path=write_folder(tmp_path), min_train_examples=2, min_test_examples=1)
    monkeypatch.setitem(sys.modules, "h5py", None)

    with pytest.raises(ConfigError) as error:
        import_rows(source, tmp_path / "out.parquet")

    assert str(error.value) == "`partita import emnist` needs h5py: pip install 'partita[import]'."


@pytest.mark.parametrize(("name", "value"), [("min_train_examples", 0), ("min_test_examples", -1)])
def test_minimum_numbers_are_checked(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be at least {value + 1}, got {value}."):
        Emnist(path=Path(), **{name: value})
