"""Stack Overflow from TensorFlow Federated's HDF5 and SQLite files."""

import contextlib
import hashlib
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from partita.data.importers import source as importing
from partita.data.importers.source import Imported, Row, import_source
from partita.data.importers.stackoverflow import StackOverflow
from partita.errors import ConfigError, RunFailed
from tff_files import example, write_hdf5, write_sqlite

Counts = Mapping[str, tuple[int, int]]
COUNTS: Counts = {"00000002": (3, 2), "00000001": (5, 1), "00000003": (1, 7), "00000004": (9, 0)}
"""Training and test examples by device; `min_train_examples` 2 and `min_test_examples` 1 keep two."""


def sentence(device: str, split: str, row: int) -> str:
    return f"naïve {split} question {row} of {device} ?"


def write_folder(folder: Path, counts: Counts) -> Path:
    for position, split in enumerate(("train", "test")):
        devices = {
            device: {
                "tokens": [sentence(device, split, row).encode() for row in range(own[position])],
                "title": [b"a title"] * own[position],
                "score": np.arange(own[position]),
            }
            for device, own in counts.items()
            if own[position]
        }
        write_hdf5(folder / f"stackoverflow_{split}.h5", devices)
    return folder


def records(counts: Counts) -> Iterator[tuple[str, str, bytes]]:
    """Yield the rows of all devices in turn; held-out rows have a device of their own."""
    for row in range(max(max(own) for own in counts.values())):
        yield "heldout", "held", example(tokens=[b"held out"])
        for device, own in counts.items():
            for split, count in zip(("train", "test"), own, strict=True):
                if row < count:
                    tokens = sentence(device, split, row).encode()
                    yield split, device, example(tokens=[tokens], title=[b"a title"], score=[row])


def write_with_index(folder: Path, counts: Counts) -> Path:
    return write_sqlite(folder / "stackoverflow.sqlite", records(counts))


def write_without_index(folder: Path, counts: Counts) -> Path:
    return write_sqlite(folder / "stackoverflow.sqlite", records(counts), statements=())


LAYOUTS = [write_folder, write_with_index, write_without_index]
Write = Callable[[Path, Counts], Path]


def import_rows(source: Any, out: Path) -> tuple[Imported, list[dict[str, Any]]]:
    imported = import_source(source, out, progress=lambda done, total: None, about="x")
    return imported, pq.read_table(out).to_pylist()


@pytest.mark.parametrize("write", LAYOUTS)
def test_every_layout_gives_the_first_texts_of_the_kept_devices(tmp_path: Path, write: Write) -> None:
    source = StackOverflow(
        path=write(tmp_path, COUNTS), min_train_examples=2, min_test_examples=1, max_examples=4
    )

    imported, rows = import_rows(source, tmp_path / "out.parquet")

    expected = [("00000001", "train", row) for row in range(4)] + [("00000001", "test", 0)]
    expected += [("00000002", "train", row) for row in range(3)]
    expected += [("00000002", "test", row) for row in range(2)]
    assert rows == [
        {"device": device, "split": split, "text": sentence(device, split, row)}
        for device, split, row in expected
    ]
    assert imported.lines() == [
        "Kept 2 devices with 10 rows.",
        "Dropped 1: fewer than 2 training examples.",
        "Dropped 1: fewer than 1 test examples.",
    ]


def test_texts_may_have_a_fixed_length(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_hdf5(
            tmp_path / f"stackoverflow_{split}.h5", {"a": {"tokens": np.array([b"one", b"two words"])}}
        )

    _, rows = import_rows(
        StackOverflow(path=tmp_path, min_train_examples=1, min_test_examples=1), tmp_path / "out.parquet"
    )

    assert [row["text"] for row in rows] == ["one", "two words"] * 2


def by_digest(devices: list[str]) -> list[str]:
    return sorted(devices, key=lambda device: hashlib.sha256(device.encode()).hexdigest())


@pytest.mark.parametrize("write", LAYOUTS)
def test_the_sample_is_of_the_smallest_digests(tmp_path: Path, write: Write) -> None:
    devices = [f"{number:08}" for number in range(40)]
    source = StackOverflow(
        path=write(tmp_path, dict.fromkeys(devices, (1, 1))),
        min_train_examples=1,
        min_test_examples=1,
        devices=7,
    )

    survey = source.survey(lambda done, total: None)

    assert survey.devices == sorted(by_digest(devices)[:7])
    assert survey.dropped["not in the sample"] == 33


def test_added_devices_only_push_out_those_with_larger_digests(tmp_path: Path) -> None:
    devices = [f"{number:08}" for number in range(40)]

    def sample(count: int) -> set[str]:
        folder = tmp_path / str(count)
        folder.mkdir()
        path = write_with_index(folder, dict.fromkeys(devices[:count], (1, 1)))
        source = StackOverflow(path=path, min_train_examples=1, min_test_examples=1, devices=7)
        return set(source.survey(lambda done, total: None).devices)

    before, after = sample(20), sample(40)

    added = set(devices[20:])
    assert after & added  # otherwise the test shows nothing
    assert after - added == set(by_digest(list(before))[: 7 - len(after & added)])


def test_only_devices_with_enough_examples_are_sampled(tmp_path: Path) -> None:
    devices = [f"{number:08}" for number in range(20)]
    first, *others = by_digest(devices)
    counts = {**dict.fromkeys(devices, (2, 1)), first: (1, 1)}
    source = StackOverflow(
        path=write_folder(tmp_path, counts), min_train_examples=2, min_test_examples=1, devices=3
    )

    survey = source.survey(lambda done, total: None)

    assert survey.devices == sorted(others[:3])


def test_0_devices_are_all_devices(tmp_path: Path) -> None:
    counts = {f"{number:08}": (1, 1) for number in range(12)}
    source = StackOverflow(
        path=write_folder(tmp_path, counts), min_train_examples=1, min_test_examples=1, devices=0
    )

    survey = source.survey(lambda done, total: None)

    assert survey.devices == list(counts)
    assert survey.dropped["not in the sample"] == 0


@pytest.mark.parametrize(("train", "test", "kept"), [(100, 10, 1), (99, 10, 0), (100, 9, 0)])
def test_the_papers_minimum_numbers_are_the_defaults(
    tmp_path: Path, train: int, test: int, kept: int
) -> None:
    source = StackOverflow(path=write_with_index(tmp_path, {"a": (train, test)}))

    survey = source.survey(lambda done, total: None)

    assert len(survey.devices) == kept
    assert survey.paper == 1000


def test_at_most_a_thousand_training_texts_of_a_device_are_kept(tmp_path: Path) -> None:
    source = StackOverflow(path=write_without_index(tmp_path, {"a": (1001, 1002)}))

    _, rows = import_rows(source, tmp_path / "out.parquet")

    texts = {split: [row["text"] for row in rows if row["split"] == split] for split in ("train", "test")}
    assert texts["train"] == [sentence("a", "train", row) for row in range(1000)]
    assert texts["test"] == [sentence("a", "test", row) for row in range(1002)]


@pytest.mark.parametrize("changed", [{"min_train_examples": 101}, {"max_examples": 999}, {"devices": 0}])
def test_the_papers_count_is_reported_for_the_defaults_only(tmp_path: Path, changed: dict[str, int]) -> None:
    source = StackOverflow(path=write_folder(tmp_path, COUNTS), **changed)

    assert source.survey(lambda done, total: None).paper is None


@pytest.mark.parametrize("write", LAYOUTS)
def test_devices_are_chosen_without_reading_rows(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path, COUNTS)
    if path.is_file():
        with sqlite3.connect(path) as base:
            base.execute("UPDATE examples SET serialized_example_proto = x'ff'")
        base.close()
    else:
        for split in ("train", "test"):
            devices = {device: {"tokens": np.zeros(own[split == "test"])} for device, own in COUNTS.items()}
            write_hdf5(path / f"stackoverflow_{split}.h5", devices)

    survey = StackOverflow(path=path, min_train_examples=2, min_test_examples=1).survey(
        lambda done, total: None
    )

    assert survey.devices == ["00000001", "00000002"]


def test_progress_is_reported_every_thousand_devices(tmp_path: Path) -> None:
    counts = {f"{number:08}": (1, 1) for number in range(2001)}
    calls: list[tuple[int, int]] = []
    source = StackOverflow(
        path=write_without_index(tmp_path, counts), min_train_examples=1, min_test_examples=1
    )

    source.survey(lambda done, total: calls.append((done, total)))

    # 2001 devices with two rows each, and one held-out row.
    assert calls == [(0, 2001), (1000, 2001), (2000, 2001), (4003, 4003)]


def test_without_an_index_only_rows_of_kept_devices_are_noted(tmp_path: Path) -> None:
    source = StackOverflow(
        path=write_without_index(tmp_path, COUNTS), min_train_examples=2, min_test_examples=1
    )

    source.survey(lambda done, total: None)

    noted = source._examples._connection.execute(
        "SELECT device, split, count(*) FROM temp.device_rows GROUP BY device, split ORDER BY device, split"
    ).fetchall()
    assert noted == [
        ("00000001", "test", 1),
        ("00000001", "train", 5),
        ("00000002", "test", 2),
        ("00000002", "train", 3),
    ]


@dataclass
class Interrupted:
    """A source that fails once, in the middle of a device."""

    source: StackOverflow
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
def test_an_interrupted_import_resumes(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_DEVICES_PER_PART", 2)
    path = write(tmp_path, dict.fromkeys("abcde", (2, 1)))
    source = StackOverflow(path=path, min_train_examples=1, min_test_examples=1)
    interrupted = Interrupted(source, "d", [])
    with pytest.raises(KeyboardInterrupt):
        import_rows(interrupted, tmp_path / "out.parquet")

    imported, rows = import_rows(interrupted, tmp_path / "out.parquet")

    assert "".join(interrupted.requested) == "abcd" + "cde"
    assert imported.rows == 15
    assert rows == import_rows(source, tmp_path / "whole.parquet")[1]


def refused(path: Path, out: Path) -> str:
    """Return the one-line error of an import that is refused."""
    with pytest.raises(ConfigError) as error:
        import_rows(StackOverflow(path=path, min_train_examples=1, min_test_examples=1), out)
    message = str(error.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_missing_files_are_reported(tmp_path: Path) -> None:
    right = (
        "give the folder with `stackoverflow_train.h5` and `stackoverflow_test.h5`, "
        "or the file `stackoverflow.sqlite`."
    )

    assert refused(tmp_path / "none", tmp_path / "out") == f"There is no `{tmp_path}/none`: {right}"
    assert (
        refused(tmp_path, tmp_path / "out")
        == f"There is no `stackoverflow_train.h5` in `{tmp_path}`: {right}"
    )


@pytest.mark.parametrize("name", ["stackoverflow_train.h5", "stackoverflow_test.h5"])
def test_a_file_that_is_not_hdf5_is_reported(tmp_path: Path, name: str) -> None:
    path = write_folder(tmp_path, COUNTS)
    (path / name).write_bytes(b"not HDF5" * 100)

    assert f"{name}` cannot be read as an HDF5 file" in refused(path, tmp_path / "out.parquet")


@pytest.mark.slow
def test_a_damaged_hdf5_file_is_an_error_or_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = write_folder(tmp_path / "in", COUNTS)
    source = StackOverflow(path=path, min_train_examples=2, min_test_examples=1)
    file = path / "stackoverflow_train.h5"
    whole, rng = file.read_bytes(), random.Random(1)

    for number in range(150):
        damaged = bytearray(whole)
        for _ in range(1 + number % 4):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        file.write_bytes(damaged)
        # Any exception but the project's own fails the test.
        with contextlib.suppress(ConfigError, RunFailed):
            import_rows(source, tmp_path / f"{number}.parquet")


def test_a_dataset_of_a_device_that_is_huge_is_refused_before_it_is_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = write_folder(tmp_path, COUNTS)
    with h5py.File(path / "stackoverflow_test.h5", "a") as file:
        own = file["examples"]["00000002"]
        del own["tokens"]
        # No value of it is on disk.
        own.create_dataset("tokens", (10**6, 10**6), "S8", chunks=(1000, 1000), compression="gzip")

    message = refused(path, tmp_path / "out.parquet")

    assert "device '00000002': `tokens` has 8,000,000,000,000 bytes, more than 256,000,000." in message


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "stackoverflow.sqlite"
    path.write_bytes(b"not a database" * 100)

    assert "`stackoverflow.sqlite`, decompressed: file is not a database." in refused(path, tmp_path / "out")


def test_a_device_without_tokens_is_reported(tmp_path: Path) -> None:
    path = write_folder(tmp_path, COUNTS)
    write_hdf5(path / "stackoverflow_test.h5", {"00000002": {"title": [b"a title"]}})

    message = refused(path, tmp_path / "out.parquet")

    assert f"`{path}/stackoverflow_test.h5`, device '00000002': there must be a dataset `tokens`" in message


BAD = {
    "must have `tokens`, got ['title']": example(title=[b"a title"]),
    "`tokens` must be one byte string, got 2 values": example(tokens=[b"two", b"words"]),
    "`tokens` must be one byte string, got 3": example(tokens=[3]),
    "`tokens` must be UTF-8, got b'\\xff'": example(tokens=[b"\xff"]),
    "must be a serialized `tf.train.Example`": b"\x80",
}


@pytest.mark.parametrize(("why", "record"), BAD.items(), ids=BAD)
def test_a_bad_record_is_reported_with_file_device_and_row(tmp_path: Path, why: str, record: bytes) -> None:
    good = example(tokens=[b"fine"])
    path = write_sqlite(
        tmp_path / "stackoverflow.sqlite", [("test", "a", good), ("train", "a", good), ("train", "a", record)]
    )

    message = refused(path, tmp_path / "out.parquet")

    assert f"`{path}`, device 'a', train row 1" in message
    assert why in message


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_train_examples", 0), ("min_test_examples", -1), ("max_examples", 0), ("devices", -1)],
)
def test_numbers_are_checked(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be at least {value + 1}, got {value}."):
        StackOverflow(path=Path(), **{name: value})
