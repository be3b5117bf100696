"""`partita import` on the command line, and runs on imported tables."""

import json
import struct
import tomllib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from partita.cli import main
from tables import texts, write


def qmnist(folder: Path) -> Path:
    """Write the files of two writers with six digits each, and of one with a single digit."""
    folder.mkdir()
    writers = [7] * 6 + [9] * 6 + [8]
    images = np.arange(len(writers) * 784, dtype=np.uint32).astype(np.uint8).reshape(-1, 28, 28)
    labels = np.zeros((len(writers), 8), ">i4")
    labels[:, 0] = np.arange(len(writers)) % 10
    labels[:, 2] = writers
    header = struct.pack(">IIII", 0x00000803, len(images), 28, 28)
    (folder / "qmnist-train-images-idx3-ubyte").write_bytes(header + images.tobytes())
    header = struct.pack(">III", 0x00000C02, len(labels), 8)
    (folder / "qmnist-train-labels-idx2-int").write_bytes(header + labels.tobytes())
    return folder


def test_a_data_set_is_imported_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    qmnist(tmp_path / "q")

    assert main(["import", "qmnist", "q", "digits.parquet", "min_examples=5"]) == 0

    output = capsys.readouterr().out
    assert "Kept 2 devices with 12 rows." in output
    assert "Dropped 1: fewer than 5 digits." in output
    Path("digits.toml").write_text('[task]\nkind = "image"\ndata = "digits.parquet"\nclasses = 10\n')
    quick = [
        "pretrain.rounds=1",
        "pretrain.devices_per_round=2",
        "personalize.rounds=1",
        "personalize.devices_per_round=2",
    ]
    assert main(["run", "digits.toml", *quick, "out=run"]) == 0
    assert json.loads(Path("run/summary.json").read_text())["stages"]["finetuned"]["devices"] == 2
    # The path in the config is relative to the run's folder.
    assert 'data = "../digits.parquet"' in Path("run/config.toml").read_text()
    assert main(["run", "--resume", "run"]) == 0


def test_an_ungrouped_table_is_sorted_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = texts(devices=3, rows=4, split=lambda device, row: "test" if row == 3 else "train")
    write(tmp_path / "mixed.parquet", [rows[number] for number in (5, 0, 9, 1, 4, 2, 8, 3, 7, 6, 11, 10)])
    Path("words.toml").write_text('[task]\nkind = "text"\ndata = "mixed.parquet"\nmax_length = 4\n')
    quick = ["pretrain.rounds=1", "personalize.rounds=0", "finetune.epochs=0", "pretrain.devices_per_round=2"]

    assert main(["run", "words.toml", *quick]) == 2
    assert "`partita import sort " in capsys.readouterr().err
    assert main(["import", "sort", "mixed.parquet", "sorted.parquet"]) == 0
    assert "Wrote 12 rows." in capsys.readouterr().out
    assert main(["run", "words.toml", "task.data=sorted.parquet", *quick]) == 0


@pytest.mark.slow
def test_devices_are_simulated_for_a_table_without_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr_datasets", reason="the extra `hf` is not installed")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "plain.parquet", [{"height": float(n), "label": n % 3} for n in range(120)])

    assert (
        main(
            [
                "import",
                "dirichlet",
                "plain.parquet",
                "drawn.parquet",
                "devices=4",
                "alpha=1.0",
                "min_examples=5",
            ]
        )
        == 0
    )
    assert main(["import", "shards", "plain.parquet", "cut.parquet", "devices=4"]) == 0

    for name in ("drawn.parquet", "cut.parquet"):
        table = pq.read_table(name)
        assert len(table) == 120
        assert len(set(table["device"].to_pylist())) == 4


def test_values_of_string_keys_are_strings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t.parquet", [{"2": device, "1.0": number} for number, device in enumerate("bab")])

    assert main(["import", "sort", "t.parquet", "a.parquet", "device=2"]) == 0
    assert main(["import", "sort", "t.parquet", "b.parquet", 'device="2"']) == 0
    assert main(["import", "sort", "t.parquet", "c.parquet", "device=1.0"]) == 0

    assert pq.read_table("a.parquet")["1.0"].to_pylist() == [1, 0, 2]
    assert pq.read_table("a.parquet").equals(pq.read_table("b.parquet"))


def test_a_data_set_without_devices_is_imported_and_assigned_to_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")
    monkeypatch.chdir(tmp_path)
    rows = {"height": [float(n) for n in range(60)], "label": [n % 3 for n in range(60)]}
    parts = {split: datasets.Dataset.from_dict(rows) for split in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk("saved")

    assert main(["import", "hf", "saved", "plain.parquet"]) == 0

    output = capsys.readouterr().out
    assert (
        "Wrote 120 rows without devices: `partita import dirichlet` or `shards` assigns them to simulated devices."
        in output
    )
    assert pq.read_table("plain.parquet").column_names == ["split", "height", "label"]
    assert main(["import", "shards", "plain.parquet", "devices.parquet", "devices=4"]) == 0
    assert len(set(pq.read_table("devices.parquet")["device"].to_pylist())) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nist", "q", "out.parquet"],
            "The kind of `partita import` must be one of emnist, stackoverflow, gldv2",
        ),
        (["qmnist", "none", "out.parquet"], "none"),
        (
            ["qmnist", "q", "out.parquet", "min_exampels=3"],
            "`partita import qmnist` has no key `min_exampels`. Did you mean `min_examples`? Its keys: min_examples, "
            "test_share.",
        ),
        (
            ["sort", "q", "out.parquet", "frobnicate=3"],
            "`partita import sort` has no key `frobnicate`. Its keys: device, memory.",
        ),
        (
            ["qmnist", "q", "out.parquet", "min_examples=many"],
            "`import qmnist.min_examples` must be a whole number, got 'many'.",
        ),
        (["qmnist", "q", "there.parquet"], "`there.parquet` exists already"),
        (["qmnist", "q", "no/out.parquet"], "There is no folder `no`"),
        (["sort", "none.parquet", "out.parquet"], "none.parquet"),
        (["sort", "q", "out.parquet", "progress=3"], "`progress` is not a key of `partita import`"),
        (
            ["qmnist", "q", "out.parquet", "min_examples=50"],
            "There is no device to import (3 fewer than 50 digits).",
        ),
    ],
)
def test_an_error_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    qmnist(tmp_path / "q")
    Path("there.parquet").write_text("mine")

    assert main(["import", *arguments]) == 2

    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("partita: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert Path("there.parquet").read_text() == "mine"
    assert not Path("out.parquet").exists()


def test_data_is_also_looked_for_in_partita_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("words.toml").write_text('[task]\nkind = "text"\ndata = "words.parquet"\nmin_test_examples = 1\n')
    rows = texts(devices=3, rows=9)
    write(tmp_path / "data/words.parquet", rows)

    assert main(["run", "words.toml"]) == 2
    assert "`task.data` = 'words.parquet' is not in" in capsys.readouterr().err
    monkeypatch.setenv("PARTITA_DATA", str(tmp_path / "data"))
    assert main(["describe", "words.toml"]) == 0
    assert "Partitions of NextWordTransformer" in capsys.readouterr().out


def test_skipped_rows_are_counted_at_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = texts(devices=2, rows=6, split=lambda device, row: "test" if row == 5 else "train")
    rows[2]["text"] = None
    write(tmp_path / "words.parquet", rows)
    Path("words.toml").write_text('[task]\nkind = "text"\ndata = "words.parquet"\nmax_length = 4\n')
    quick = ["pretrain.rounds=1", "personalize.rounds=0", "finetune.epochs=0", "pretrain.devices_per_round=2"]

    assert main(["run", "words.toml", *quick]) == 2
    assert "`words.parquet`, row 2, device 'd0': `text` is empty" in capsys.readouterr().err
    assert main(["run", "words.toml", "task.skip_bad=true", *quick]) == 0
    assert "Warning: 1 bad row was skipped (`words.parquet`, row 2, device 'd0'" in capsys.readouterr().out


WORDS = '[task]\nkind = "text"\ndata = "words.parquet"\nmax_length = 4\n'
SHORT = ["pretrain.rounds=1", "personalize.rounds=1", "finetune.epochs=1", "pretrain.devices_per_round=2"]
SHORT += ["personalize.devices_per_round=2", "evaluate.every=0"]


def split_of(_: int, row: int) -> str:
    return "test" if row == 5 else "train"


def test_a_bad_test_row_does_not_lose_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.toml").write_text(WORDS)
    rows = texts(devices=2, rows=6, split=split_of)
    rows[5]["text"] = None
    write(tmp_path / "words.parquet", rows)

    assert main(["run", "words.toml", *SHORT, "out=a"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "`words.parquet`, row 5, device 'd0': `text` is empty" in line
    assert line.endswith("Resume with `partita run --resume a task.skip_bad=true`.")
    trained = Path("a/rounds.jsonl").read_text()
    assert main(["run", "--resume", "a", "task.skip_bad=false"]) == 2
    assert main(["run", "--resume", "a", "task.skip_bad=true", "seed=3"]) == 2
    assert "leave out `seed=3`" in capsys.readouterr().err
    assert "skip_bad" not in Path("a/config.toml").read_text()
    assert main(["run", "--resume", "a", "task.skip_bad=true"]) == 0

    assert trained
    assert Path("a/rounds.jsonl").read_text().startswith(trained)
    assert "skip_bad = true" in Path("a/config.toml").read_text()
    assert main(["run", "words.toml", *SHORT, "task.skip_bad=true", "out=b"]) == 0
    for name in ("summary.json", "devices.parquet", "shared/personalized.safetensors"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()
    resumed, whole = (tomllib.loads(Path(name, "config.toml").read_text()) for name in "ab")
    assert resumed["made_with"].pop("command") != whole["made_with"].pop("command")
    assert resumed == whole


def test_skipped_rows_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.toml").write_text(WORDS)
    rows = texts(devices=2, rows=6, split=split_of)
    rows[2]["text"] = rows[11]["text"] = None
    write(tmp_path / "words.parquet", rows)

    assert main(["run", "words.toml", *SHORT, "task.skip_bad=true", "out=a"]) == 0
    first = capsys.readouterr().out
    logged = Path("a/skipped.jsonl").read_text()
    assert main(["run", "--resume", "a"]) == 0

    assert "Warning: 2 bad rows were skipped (`words.parquet`, row 2, device 'd0': `text` is empty)." in first
    assert capsys.readouterr().out == first
    assert Path("a/skipped.jsonl").read_text() == logged
    assert [json.loads(line) for line in logged.splitlines()] == [
        {"file": "words.parquet", "row": 2, "device": "d0", "reason": "`text` is empty"},
        {"file": "words.parquet", "row": 11, "device": "d1", "reason": "`text` is empty"},
    ]


def test_a_run_without_any_good_row_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.toml").write_text(WORDS)
    write(tmp_path / "words.parquet", texts(devices=2, rows=6, split=split_of, text=lambda device, row: row))

    assert main(["run", "words.toml", *SHORT, "task.skip_bad=true"]) == 1

    line = capsys.readouterr().err.splitlines()[-1]
    assert "The device has no training examples." in line
    assert (
        "Warning: 10 bad rows were skipped (`words.parquet`, row 0, device 'd0': `text` must be a string"
        in line
    )


def test_the_baseline_of_a_run_finds_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.toml").write_text(WORDS)
    rows = texts(devices=2, rows=6, split=split_of)
    rows[2]["text"] = None
    write(tmp_path / "words.parquet", rows)

    assert main(["run", "words.toml", *SHORT, "finetune.baseline=true", "task.skip_bad=true", "out=a"]) == 0
    first = capsys.readouterr().out
    assert main(["run", "--resume", "a"]) == 0

    assert capsys.readouterr().out == first
    assert 'data = "../../words.parquet"' in Path("a/finetune/config.toml").read_text()
    assert Path("a/finetune/skipped.jsonl").read_text() == Path("a/skipped.jsonl").read_text()
    assert main(["run", "--resume", "a/finetune"]) == 0
