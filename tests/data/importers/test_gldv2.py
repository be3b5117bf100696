"""GLDv2: its table, its images in nested folders, half of them in the test set."""

import hashlib
import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from partita.data.importers.gldv2 import Gldv2
from partita.data.importers.source import Imported, import_source
from partita.errors import ConfigError


def jpeg(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 0, 0)).save(buffer, "JPEG")
    return buffer.getvalue()


def add_image(folder: Path, name: str, shade: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jpg").write_bytes(jpeg(shade))


def write_table(folder: Path, *rows: str, header: str = "user_id,image_id,class") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "federated_train.csv").write_text("\n".join([header, *rows]) + "\n")


def write_users(folder: Path, sizes: dict[str, int]) -> None:
    """Write a table of users with their numbers of images, in the public layout; the class is the number."""
    rows = []
    for user, size in sizes.items():
        for number in range(size):
            name = hashlib.md5(f"{user} {number}".encode()).hexdigest()[:16]
            rows.append(f"{user},{name},{number}")
            add_image(folder / name[0] / name[1] / name[2], name, number)
    write_table(folder, *rows)


def imported(source: Gldv2, out: Path) -> tuple[Imported, list[dict]]:
    result = import_source(source, out, progress=lambda done, total: None, about="x")
    return result, pq.read_table(out).to_pylist()


def test_a_table_with_images_becomes_rows_by_device(tmp_path: Path) -> None:
    names = ["0a1b2c3d4e5f6071", "ffee00112233aabb", "0a1c000000000000", "9900990099009900"]
    write_table(tmp_path / "in", *(f"17,{name},{2000 + i}" for i, name in enumerate(names)))
    for shade, name in enumerate(names):
        add_image(tmp_path / "in" / name[0] / name[1] / name[2], name, shade)
    first = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:2]

    result, rows = imported(Gldv2(path=tmp_path / "in", min_examples=2), tmp_path / "out.parquet")

    assert result.rows == 4
    assert rows == [
        {
            "device": "17",
            "split": "test" if name in first else "train",
            "image": {"bytes": jpeg(number), "path": f"{name}.jpg"},
            "label": 2000 + number,
        }
        for number, name in enumerate(names)
    ]


def test_devices_of_fifty_images_are_kept_and_half_of_these_rounded_down_are_test_images(
    tmp_path: Path,
) -> None:
    write_users(tmp_path / "in", {"9": 51, "10": 50, "8": 49, "7": 1})

    result, rows = imported(Gldv2(path=tmp_path / "in"), tmp_path / "out.parquet")

    splits = [(row["device"], row["split"]) for row in rows]
    assert list(result.survey.devices) == ["10", "9"]
    assert result.lines() == [
        "Kept 2 devices with 101 rows.",
        "Dropped 2: fewer than 50 images.",
        "2 devices: the paper has 823.",
    ]
    assert [device for device, _ in splits] == ["10"] * 50 + ["9"] * 51
    assert (splits.count(("10", "test")), splits.count(("10", "train"))) == (25, 25)
    assert (splits.count(("9", "test")), splits.count(("9", "train"))) == (25, 26)


def test_the_paper_is_only_compared_for_its_own_filter(tmp_path: Path) -> None:
    write_users(tmp_path, {"1": 4})

    assert Gldv2(path=tmp_path).survey(lambda done, total: None).paper == 823
    assert Gldv2(path=tmp_path, min_examples=4).survey(lambda done, total: None).paper is None


def test_images_in_any_folder_are_found_and_the_public_layout_comes_first(tmp_path: Path) -> None:
    write_table(tmp_path, "u,abc1,0", "u,abd2,1", "u,x,2")
    add_image(tmp_path / "a" / "b" / "c", "abc1", 10)
    add_image(tmp_path / "0", "abc1", 99)
    add_image(tmp_path / "images" / "train" / "a", "abd2", 11)
    add_image(tmp_path / "images" / "train" / "a", "other", 98)
    add_image(tmp_path, "x", 12)

    rows = list(Gldv2(path=tmp_path, min_examples=2).rows("u"))

    assert [row["image"]["bytes"] for row in rows] == [jpeg(10), jpeg(11), jpeg(12)]


def test_columns_may_be_in_any_order_and_after_a_byte_order_mark(tmp_path: Path) -> None:
    write_table(tmp_path, "5,a0,ann", "6,a1,ann", header="\ufeffclass,image_id,user_id")
    add_image(tmp_path, "a0", 0)
    add_image(tmp_path, "a1", 1)

    rows = list(Gldv2(path=tmp_path, min_examples=2).rows("ann"))

    assert [row["label"] for row in rows] == [5, 6]


def test_a_missing_image_is_an_error_with_row_and_device(tmp_path: Path) -> None:
    write_table(tmp_path, "ann,a0,1", "ann,a1,2")
    add_image(tmp_path, "a0", 0)

    with pytest.raises(ConfigError) as caught:
        imported(Gldv2(path=tmp_path, min_examples=2), tmp_path / "out.parquet")

    table = tmp_path / "federated_train.csv"
    assert str(caught.value) == (
        f"There is no image `a1.jpg` in `{tmp_path}` or its subfolders (row 3 of `{table}`, device 'ann')."
    )
    assert not (tmp_path / "out.parquet").exists()


def test_an_import_resumes_once_the_missing_image_exists(tmp_path: Path) -> None:
    write_table(tmp_path, "ann,a0,1", "ann,a1,2")
    add_image(tmp_path, "a0", 0)
    with pytest.raises(ConfigError, match="no image `a1.jpg`"):
        imported(Gldv2(path=tmp_path, min_examples=2), tmp_path / "out.parquet")
    add_image(tmp_path, "a1", 1)

    result, _ = imported(Gldv2(path=tmp_path, min_examples=2), tmp_path / "out.parquet")

    assert result.rows == 2


def test_a_missing_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read `.*federated_train.csv`: No such file or directory."):
        Gldv2(path=tmp_path).survey(lambda done, total: None)


@pytest.mark.parametrize(
    ("header", "row", "wrong"),
    [
        ("user_id,class", "1,2", "has no column `image_id`; its header is `user_id,class`"),
        ("user_id,image_id,class", "1,a0", r"`class` must be .*, got '' \(row 2 of .*, device '1'\)"),
        ("user_id,image_id,class", "1,a0,cat", r"`class` must be .*, got 'cat' \(row 2 of .*, device '1'\)"),
        ("user_id,image_id,class", "1,a0,-3", r"`class` must be .*, got '-3' \(row 2 of .*, device '1'\)"),
        (
            "user_id,image_id,class",
            f"1,a0,{10**22}",
            r"`class` must be .* of at most 18 digits, got '10000000000000000000000' \(row 2",
        ),
        ("user_id,image_id,class", f"1,a0,{'7' * 9999}", r"`class` must be .*, got '7+ \.\.\. 7+' \("),
        ("user_id,image_id,class", "1,/etc/passwd,4", r"`image_id` must be a file name .*'/etc/passwd'"),
        ("user_id,image_id,class", "1,../../x,4", r"`image_id` must be a file name .*, got '../../x' \("),
        ("user_id,image_id,class", "1,a\0b,4", r"`image_id` must be a file name|line contains NUL"),
        ("user_id,image_id,class", f"1,{'é' * 101},4", r"`image_id` must be .* of at most 200 bytes"),
        ("user_id,image_id,class", "1,,4", r"needs `user_id` and `image_id`, got '1' and ''"),
        ("user_id,image_id,class", ",a0,4", r"needs `user_id` and `image_id`, got '' and 'a0'"),
    ],
)
def test_an_invalid_table_is_refused(tmp_path: Path, header: str, row: str, wrong: str) -> None:
    write_table(tmp_path, row, header=header)

    with pytest.raises(ConfigError, match=wrong):
        Gldv2(path=tmp_path).survey(lambda done, total: None)


def test_a_table_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "federated_train.csv").write_bytes(b"user_id,image_id,class\n\xff\xfe,a,1\n")

    with pytest.raises(ConfigError, match="federated_train.csv` is not a CSV file"):
        Gldv2(path=tmp_path).survey(lambda done, total: None)


def test_a_device_needs_two_images() -> None:
    with pytest.raises(ConfigError, match="`min_examples` must be at least 2, .*, got 1"):
        Gldv2(path=Path(), min_examples=1)
