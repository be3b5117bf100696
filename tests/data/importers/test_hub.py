"""Datasets of the `datasets` library, created and imported without a network."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Array2D, Audio, ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from PIL import Image as PillowImage

from partita.data.importers.hub import import_hub
from partita.errors import ConfigError

FEATURES = Features(
    {
        "image": Image(),
        "label": ClassLabel(names=["cat", "dog"]),
        "writer": Value("string"),
        "note": Value("string"),
    }
)


def png(shade: int) -> bytes:
    file = io.BytesIO()
    PillowImage.new("L", (2, 2), shade).save(file, "PNG")
    return file.getvalue()


def images(writers: str, first: int) -> Dataset:
    """Return a row for each letter, which is the writer; shades are numbered from `first`."""
    rows = [
        {
            "image": {"bytes": png(first + number), "path": None},
            "label": number % 2,
            "writer": writer,
            "note": None if number == 0 else f"n{first + number}",
        }
        for number, writer in enumerate(writers)
    ]
    return Dataset.from_list(rows, features=FEATURES)


def three_splits() -> DatasetDict:
    parts = {"train": images("bab", 0), "validation": images("a", 10), "test": images("ba", 20)}
    return DatasetDict(parts)


def write_stored(folder: Path, rows: list[dict[str, Any]], features: Features) -> str:
    """Write rows as given: the library would decode media before writing them."""
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, features.arrow_schema), folder / "train.parquet")
    return str(folder)


def rows_of(out: Path) -> list[dict[str, Any]]:
    return pq.read_table(out).to_pylist()


def check_three_splits(out: Path) -> None:
    found = [
        (row["device"], row["split"], row["image"]["bytes"], row["label"], row["note"])
        for row in rows_of(out)
    ]
    assert found == [
        ("a", "train", png(1), 1, "n1"),
        ("a", "validation", png(10), 0, None),
        ("a", "test", png(21), 1, "n21"),
        ("b", "train", png(0), 0, None),
        ("b", "train", png(2), 0, "n2"),
        ("b", "test", png(20), 0, None),
    ]


def test_a_data_set_saved_to_disk_is_imported_with_its_splits(tmp_path: Path) -> None:
    three_splits().save_to_disk(str(tmp_path / "saved"))

    imported = import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet", device="writer")

    check_three_splits(tmp_path / "out.parquet")
    assert imported.rows == 6
    assert list(imported.survey.devices) == ["a", "b"]
    assert imported.lines() == ["Kept 2 devices with 6 rows."]


def test_a_folder_of_parquet_files_is_imported_with_its_splits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split, part in three_splits().items():
        part.to_parquet(str(tmp_path / "data" / f"{split}-00000-of-00001.parquet"))

    import_hub(
        str(tmp_path / "data"), tmp_path / "out.parquet", device="writer", cache=str(tmp_path / "cache")
    )

    check_three_splits(tmp_path / "out.parquet")
    assert (tmp_path / "cache").is_dir()


def test_columns_have_the_types_of_our_tables_and_datasets_opens_them(tmp_path: Path) -> None:
    three_splits().save_to_disk(str(tmp_path / "saved"))

    import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet", device="writer")

    schema = pq.read_schema(tmp_path / "out.parquet")
    assert schema.names == ["device", "split", "image", "label", "note"]
    assert schema.field("device").type == pa.string()
    assert schema.field("image").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    assert schema.field("label").type == pa.int64()
    again = Dataset.from_parquet(str(tmp_path / "out.parquet"), cache_dir=str(tmp_path / "cache"))
    assert again.features["label"].names == ["cat", "dog"]
    assert again[0]["image"].getpixel((0, 0)) == 1


def test_media_are_never_decoded(tmp_path: Path) -> None:
    # Neither an image nor a recording: decoding either would fail.
    media = {
        "image": {"bytes": b"not an image", "path": "x.png"},
        "audio": {"bytes": b"not audio", "path": "y.wav"},
    }
    features = Features({"who": Value("string"), "image": Image(), "audio": Audio()})
    source = write_stored(tmp_path / "data", [{"who": "a", **media}], features)

    import_hub(source, tmp_path / "out.parquet", device="who", cache=str(tmp_path / "cache"))

    assert rows_of(tmp_path / "out.parquet") == [{"device": "a", **media}]


def test_files_stored_by_path_are_copied_into_the_table(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(9))
    rows = [{"who": "x", "image": {"bytes": None, "path": str(tmp_path / "a.png")}}]
    source = write_stored(tmp_path / "data", rows, Features({"who": Value("string"), "image": Image()}))

    import_hub(source, tmp_path / "out.parquet", device="who", cache=str(tmp_path / "cache"))

    assert rows_of(tmp_path / "out.parquet") == [{"device": "x", "image": {"bytes": png(9), "path": "a.png"}}]


def test_a_missing_file_is_a_one_line_error(tmp_path: Path) -> None:
    rows = [{"who": "x", "image": {"bytes": None, "path": str(tmp_path / "gone.png")}}]
    source = write_stored(tmp_path / "data", rows, Features({"who": Value("string"), "image": Image()}))

    with pytest.raises(ConfigError, match="data', rows from 0: .*gone.png") as error:
        import_hub(source, tmp_path / "out.parquet", device="who", cache=str(tmp_path / "cache"))

    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "data"]


def test_a_data_set_with_only_train_has_no_split_column(tmp_path: Path) -> None:
    DatasetDict({"train": images("ba", 0)}).save_to_disk(str(tmp_path / "dict"))
    images("ba", 0).save_to_disk(str(tmp_path / "single"))

    for name in ("dict", "single"):
        import_hub(str(tmp_path / name), tmp_path / f"{name}.parquet", device="writer")

        assert [row["device"] for row in rows_of(tmp_path / f"{name}.parquet")] == ["a", "b"]
        assert "split" not in pq.read_schema(tmp_path / f"{name}.parquet").names


def test_other_splits_are_listed_and_one_can_be_selected(tmp_path: Path) -> None:
    parts = {"train": images("a", 0), "unsupervised": images("cb", 5)}
    DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))

    with pytest.raises(
        ConfigError, match="has the splits train, unsupervised: select .* 'unsupervised' is none of"
    ):
        import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet", device="writer")
    with pytest.raises(ConfigError, match="has no split 'dev'. Its splits: train, unsupervised.$"):
        import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet", device="writer", split="dev")
    import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet", device="writer", split="unsupervised")

    assert [(row["device"], row["image"]["bytes"]) for row in rows_of(tmp_path / "out.parquet")] == [
        ("b", png(6)),
        ("c", png(5)),
    ]
    assert "split" not in pq.read_schema(tmp_path / "out.parquet").names


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (Value("int32"), [10, 9, -1], ["-1", "10", "9"]),
        (ClassLabel(names=["zoe", "adam", "mia"]), [0, 1, 2], ["adam", "mia", "zoe"]),
        (Value("large_string"), ["b", "a", "c"], ["a", "b", "c"]),
        (Value("float64"), [0.5, 2.5, 1.5], ["0.5", "1.5", "2.5"]),
    ],
)
def test_ids_become_strings(tmp_path: Path, kind: Any, values: list[Any], expected: list[str]) -> None:
    made = Dataset.from_dict(
        {"who": values, "n": [0, 1, 2]}, features=Features({"who": kind, "n": Value("int64")})
    )
    made.save_to_disk(str(tmp_path / "saved"))

    import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet", device="who")

    assert [row["device"] for row in rows_of(tmp_path / "out.parquet")] == expected


# The library leaves the file open.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_csv_file_is_imported(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("who,text\nb,one\na,two\nb,three\n")

    import_hub(
        str(tmp_path / "data.csv"), tmp_path / "out.parquet", device="who", cache=str(tmp_path / "cache")
    )

    assert rows_of(tmp_path / "out.parquet") == [
        {"device": "a", "text": "two"},
        {"device": "b", "text": "one"},
        {"device": "b", "text": "three"},
    ]


def test_arrays_are_stored_as_lists(tmp_path: Path) -> None:
    features = Features({"who": Value("string"), "grid": Array2D((2, 2), "float32")})
    grids = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    Dataset.from_dict({"who": ["b", "a"], "grid": grids}, features=features).save_to_disk(
        str(tmp_path / "saved")
    )

    import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet", device="who")

    assert [row["grid"] for row in rows_of(tmp_path / "out.parquet")] == [[[4, 5], [6, 7]], [[0, 1], [2, 3]]]


def test_many_batches_keep_every_row_in_order(tmp_path: Path) -> None:
    devices = [str(number % 7) for number in range(1050)]
    Dataset.from_dict({"who": devices, "n": list(range(1050))}).save_to_disk(str(tmp_path / "saved"))

    import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet", device="who")

    found = [(row["device"], row["n"]) for row in rows_of(tmp_path / "out.parquet")]
    assert found == sorted((str(number % 7), number) for number in range(1050))


def test_without_devices_rows_stay_in_their_order_with_their_splits(tmp_path: Path) -> None:
    three_splits().save_to_disk(str(tmp_path / "saved"))

    lines = import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet").lines()

    found = rows_of(tmp_path / "out.parquet")
    assert lines[0].startswith("Wrote 6 rows without devices: `partita import dirichlet`")
    assert [(row["split"], row["writer"]) for row in found] == [
        *(("train", "b"), ("train", "a"), ("train", "b")),
        *(("validation", "a"), ("test", "b"), ("test", "a")),
    ]
    assert "device" not in found[0]


def test_a_row_without_a_device_is_an_error_with_its_location(tmp_path: Path) -> None:
    parts = {
        "train": Dataset.from_dict({"who": ["a"]}),
        "test": Dataset.from_dict({"who": ["a"] * 150 + [None]}),
    }
    DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))

    with pytest.raises(ConfigError, match="saved', split 'test', row 150: `who` is empty"):
        import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet", device="who")

    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_label_of_minus_one_is_a_missing_device(tmp_path: Path) -> None:
    features = Features({"who": ClassLabel(names=["a", "b"])})
    Dataset.from_dict({"who": [1, -1]}, features=features).save_to_disk(str(tmp_path / "saved"))

    with pytest.raises(ConfigError, match="row 1: `who` is empty"):
        import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet", device="who")


@pytest.mark.parametrize(
    ("columns", "device", "message"),
    [
        ({"who": ["a"], "n": [1]}, "writer", "has no column 'writer'. Its columns: who, n.$"),
        ({"who": [["a"]]}, "who", "`who` of .* must hold strings or numbers, got list"),
        ({"device": ["a"], "n": [1]}, "", "has a column `device`: import it with `device=device`"),
        ({"who": ["a"], "device": ["b"]}, "who", "has a column `device` already"),
    ],
)
def test_invalid_columns_are_refused(
    tmp_path: Path, columns: dict[str, Any], device: str, message: str
) -> None:
    kinds = {
        "who": List(Value("string")) if columns.get("who") == [["a"]] else Value("string"),
        "n": Value("int64"),
        "device": Value("string"),
    }
    features = Features({name: kinds[name] for name in columns})
    Dataset.from_dict(columns, features=features).save_to_disk(str(tmp_path / "saved"))

    with pytest.raises(ConfigError, match=message):
        import_hub(str(tmp_path / "saved"), tmp_path / "out.parquet", device=device)

    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_table_without_rows_is_refused_with_the_cause(tmp_path: Path) -> None:
    # The library cannot read files without rows, and its own message does not give the cause.
    source = write_stored(tmp_path / "data", [], Features({"who": Value("string")}))

    with pytest.raises(ConfigError, match="cannot be loaded: BatchSize must be greater than 0"):
        import_hub(source, tmp_path / "out.parquet", device="who", cache=str(tmp_path / "cache"))


def test_an_existing_split_column_and_splits_with_different_columns_are_refused(tmp_path: Path) -> None:
    one = Dataset.from_dict({"who": ["a"], "split": ["x"]})
    DatasetDict({"train": one, "test": one}).save_to_disk(str(tmp_path / "taken"))
    other = Dataset.from_dict({"who": ["a"], "more": [1]})
    DatasetDict({"train": one.remove_columns("split"), "test": other}).save_to_disk(str(tmp_path / "differ"))

    with pytest.raises(ConfigError, match="has a column `split` already"):
        import_hub(str(tmp_path / "taken"), tmp_path / "out.parquet", device="who")
    with pytest.raises(ConfigError, match="Split 'test' of .* has other columns than the first split"):
        import_hub(str(tmp_path / "differ"), tmp_path / "out.parquet", device="who")


def test_a_data_set_that_cannot_be_loaded_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "train.parquet").write_text("nonsense")
    (tmp_path / "notes.docx").write_text("nonsense")

    for name in ("empty", "bad", "notes.docx", "nothing"):
        with pytest.raises(
            ConfigError, match=f"{name}' cannot be loaded: .* It must be a name on the Hub"
        ) as error:
            import_hub(
                str(tmp_path / name), tmp_path / "out.parquet", device="who", cache=str(tmp_path / "cache")
            )
        assert "\n" not in str(error.value)


def test_an_unreachable_hub_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        import_hub("someone/some-data", tmp_path / "out.parquet", device="who", cache=str(tmp_path / "cache"))

    assert str(error.value).startswith(
        "The dataset 'someone/some-data' cannot be loaded: Couldn't reach 'someone/some-data' on the Hub"
    )
    assert "\n" not in str(error.value)


def test_an_existing_table_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "out.parquet").write_text("precious")

    with pytest.raises(ConfigError, match="out.parquet` exists already"):
        import_hub("no/such", tmp_path / "out.parquet", device="who")


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)

    with pytest.raises(ConfigError) as error:
        import_hub("any/thing", tmp_path / "out.parquet", device="who")

    assert str(error.value) == "`partita import hf` needs datasets: pip install 'partita[hf]'."
