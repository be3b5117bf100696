"""QMNIST: its idx files, plain and gzipped, and digits by writer."""

import gzip
import hashlib
import io
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from partita.data.importers.qmnist import Qmnist
from partita.data.importers.source import Imported, Survey, import_source
from partita.errors import ConfigError

IMAGES = "qmnist-{}-images-idx3-ubyte"
LABELS = "qmnist-{}-labels-idx2-int"


def images_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def idx(code: int, array: np.ndarray) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return head + array.tobytes()


def labels_of(entries: list[tuple[int, int]]) -> np.ndarray:
    # class, NIST HSF series, writer, digit's index, NIST class code, global index, duplicate, unused
    rows = [[digit, 4, writer, 7, 30 + digit, 900 + i, 0, 0] for i, (digit, writer) in enumerate(entries)]
    return np.array(rows, ">i4").reshape(-1, 8)


def write_part(
    folder: Path, name: str, entries: list[tuple[int, int]], *, seed: int = 0, packed: bool = False
) -> np.ndarray:
    """Write a pair of idx files with these classes and writers, and return the images."""
    folder.mkdir(exist_ok=True)
    images = images_of(len(entries), seed)
    contents = {IMAGES: idx(8, images), LABELS: idx(12, labels_of(entries))}
    for file, data in contents.items():
        path = folder / (file.format(name) + (".gz" if packed else ""))
        path.write_bytes(gzip.compress(data) if packed else data)
    return images


def imported(source: Qmnist, out: Path) -> tuple[Imported, list[dict]]:
    result = import_source(source, out, progress=lambda done, total: None, about="x")
    return result, pq.read_table(out).to_pylist()


def surveyed(folder: Path) -> Survey:
    return Qmnist(path=folder, min_examples=2).survey(lambda done, total: None)


def pixels_of(row: dict) -> np.ndarray:
    image = Image.open(io.BytesIO(row["image"]["bytes"]))
    assert (image.format, image.mode, image.size) == ("PNG", "L", (28, 28))
    return np.asarray(image)


def fraction(image: np.ndarray) -> float:
    return int(hashlib.sha256(image.tobytes()).hexdigest(), 16) / 2**256


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_become_rows_by_writer(tmp_path: Path, packed: bool) -> None:
    folder = tmp_path / "in"
    train = write_part(folder, "train", [(3, 12), (5, 345), (7, 12), (9, 12)], seed=1, packed=packed)
    test = write_part(folder, "test", [(0, 345), (1, 12)], seed=2, packed=packed)

    result, rows = imported(Qmnist(path=folder, min_examples=2), tmp_path / "out.parquet")

    assert list(result.survey.devices) == ["writer0012", "writer0345"]
    assert [(row["device"], row["label"], row["image"]["path"]) for row in rows] == [
        ("writer0012", 3, "train-00000.png"),
        ("writer0012", 7, "train-00002.png"),
        ("writer0012", 9, "train-00003.png"),
        ("writer0012", 1, "test-00001.png"),
        ("writer0345", 5, "train-00001.png"),
        ("writer0345", 0, "test-00000.png"),
    ]
    expected = [train[0], train[2], train[3], test[1], train[1], test[0]]
    np.testing.assert_array_equal(np.stack([pixels_of(row) for row in rows]), np.stack(expected))


@pytest.mark.parametrize("name", ["train", "test"])
def test_one_pair_of_files_is_enough(tmp_path: Path, name: str) -> None:
    write_part(tmp_path, name, [(1, 8), (2, 8)])

    rows = list(Qmnist(path=tmp_path, min_examples=2).rows("writer0008"))

    assert [row["image"]["path"] for row in rows] == [f"{name}-00000.png", f"{name}-00001.png"]


def test_plain_files_are_memory_mapped(tmp_path: Path) -> None:
    write_part(tmp_path, "train", [(1, 8), (2, 8)])

    (part,) = Qmnist(path=tmp_path)._parts

    assert isinstance(part.images, np.memmap)
    assert isinstance(part.labels, np.memmap)


def test_writers_of_fifty_digits_over_both_parts_are_kept(tmp_path: Path) -> None:
    write_part(tmp_path / "in", "train", [(1, 2)] * 49 + [(1, 10_500)] * 30 + [(1, 3)] * 2)
    write_part(tmp_path / "in", "test", [(1, 10_500)] * 20, packed=True)

    result, rows = imported(Qmnist(path=tmp_path / "in"), tmp_path / "out.parquet")

    assert result.lines() == ["Kept 1 device with 50 rows.", "Dropped 2: fewer than 50 digits."]
    assert {row["device"] for row in rows} == {"writer10500"}


def test_a_digit_is_a_test_digit_if_its_digest_is_below_the_share(tmp_path: Path) -> None:
    images = write_part(tmp_path / "in", "train", [(1, 5)] * 200)

    _, rows = imported(Qmnist(path=tmp_path / "in"), tmp_path / "out.parquet")

    expected = ["test" if fraction(image) < 0.25 else "train" for image in images]
    assert [row["split"] for row in rows] == expected
    assert 30 < expected.count("test") < 70


@pytest.mark.parametrize(("share", "tests"), [(1e-9, 1), (1 - 1e-9, 4)])
def test_every_device_has_a_test_and_a_training_row(tmp_path: Path, share: float, tests: int) -> None:
    images = write_part(tmp_path, "train", [(1, 5)] * 5)
    smallest_first = sorted(range(5), key=lambda row: fraction(images[row]))

    rows = list(Qmnist(path=tmp_path, test_share=share).rows("writer0005"))

    assert {row for row in range(5) if rows[row]["split"] == "test"} == set(smallest_first[:tests])


def test_added_rows_do_not_change_the_split_of_others(tmp_path: Path) -> None:
    write_part(tmp_path, "test", [(1, 5)] * 60, seed=3)
    before = list(Qmnist(path=tmp_path).rows("writer0005"))
    write_part(tmp_path, "train", [(1, 5)] * 60, seed=4)

    after = list(Qmnist(path=tmp_path).rows("writer0005"))

    assert after[60:] == before


def test_a_folder_without_idx_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no idx files: it needs `qmnist-train-images-idx3-ubyte` and"):
        surveyed(tmp_path)
    with pytest.raises(ConfigError, match="There is no folder `.*nowhere`"):
        surveyed(tmp_path / "nowhere")


@pytest.mark.parametrize(("missing", "found"), [(LABELS, IMAGES), (IMAGES, LABELS)])
def test_half_a_pair_is_refused(tmp_path: Path, missing: str, found: str) -> None:
    write_part(tmp_path, "train", [(1, 5)] * 2)
    write_part(tmp_path, "test", [(1, 5)] * 2)
    (tmp_path / missing.format("test")).unlink()

    with pytest.raises(ConfigError, match=f"has `{found.format('test')}` but no `{missing.format('test')}`"):
        surveyed(tmp_path)


@pytest.mark.parametrize("file", [IMAGES, LABELS])
@pytest.mark.parametrize(
    ("harm", "wrong"),
    [
        (lambda data: data[:-1], r"must have [\d,]+ bytes for 3 entries, got [\d,]+"),
        (lambda data: data + b"\0", r"must have [\d,]+ bytes for 3 entries, got [\d,]+"),
        (lambda data: b"\0\0\x0d" + data[3:], r"with the magic number 0000(0803|0c02), got 00000d0"),
        (
            lambda data: data[:3] + b"\x01" + data[4:],
            r"with the magic number 0000(0803|0c02), got 0000(08|0c)01",
        ),
        (lambda data: data[:6], r"with the magic number .* in 6 bytes"),
        (lambda data: b"", r"with the magic number .*, got nothing in 0 bytes"),
        (lambda data: data[:11] + b"\x1b" + data[12:], r"must hold entries of shape .*, got \(27"),
    ],
)
def test_a_damaged_idx_file_is_an_error_with_its_name(
    tmp_path: Path, file: str, harm: Callable[[bytes], bytes], wrong: str
) -> None:
    write_part(tmp_path, "train", [(1, 5)] * 3)
    path = tmp_path / file.format("train")
    path.write_bytes(harm(path.read_bytes()))

    with pytest.raises(ConfigError, match=f"`.*{path.name}` .*{wrong}"):
        surveyed(tmp_path)


@pytest.mark.parametrize("harm", [lambda data: data[:-20], lambda data: b"not gzip at all"])
def test_a_damaged_gzip_file_is_an_error_with_its_name(
    tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    write_part(tmp_path, "train", [(1, 5)] * 3, packed=True)
    path = tmp_path / f"{IMAGES.format('train')}.gz"
    path.write_bytes(harm(path.read_bytes()))

    with pytest.raises(ConfigError, match=f"Cannot read `.*{path.name}`"):
        surveyed(tmp_path)


def test_a_gzip_file_is_read_no_further_than_its_header_announces(tmp_path: Path) -> None:
    write_part(tmp_path, "train", [(1, 5)] * 3, packed=True)
    path = tmp_path / f"{IMAGES.format('train')}.gz"
    path.write_bytes(gzip.compress(idx(8, images_of(3)) + bytes(50_000_000)))
    tracemalloc.start()

    with pytest.raises(ConfigError, match="must have 2,368 bytes for 3 entries, got more"):
        surveyed(tmp_path)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_gzip_file_that_announces_too_many_entries_is_refused(tmp_path: Path) -> None:
    write_part(tmp_path, "train", [(1, 5)] * 3, packed=True)
    path = tmp_path / f"{IMAGES.format('train')}.gz"
    path.write_bytes(gzip.compress(struct.pack(">BBBBIII", 0, 0, 8, 3, 2**32 - 1, 28, 28)))

    with pytest.raises(ConfigError, match="announces 4,294,967,295 entries, more than the 500,000"):
        surveyed(tmp_path)


def test_images_and_labels_must_have_the_same_number(tmp_path: Path) -> None:
    write_part(tmp_path, "train", [(1, 5)] * 3)
    (tmp_path / LABELS.format("train")).write_bytes(idx(12, labels_of([(1, 5)] * 2)))

    with pytest.raises(ConfigError, match="must have the same number of rows, got 3 images and 2 labels"):
        surveyed(tmp_path)


@pytest.mark.parametrize(
    ("entry", "given"),
    [((10, 6), "class 10 and writer 6 in row 1 of"), ((3, -2), "class 3 and writer -2 in row 1 of")],
)
def test_a_label_out_of_range_is_an_error_with_its_row(
    tmp_path: Path, entry: tuple[int, int], given: str
) -> None:
    write_part(tmp_path, "train", [(1, 5), entry, (2, 5)])

    with pytest.raises(ConfigError, match=f"{given} `.*{LABELS.format('train')}`, device 'writer"):
        surveyed(tmp_path)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="`min_examples` must be at least 2, .*, got 1"):
        Qmnist(path=Path(), min_examples=1)
    with pytest.raises(ConfigError, match="`test_share` must be between 0 and 1, got 1.0"):
        Qmnist(path=Path(), test_share=1.0)
