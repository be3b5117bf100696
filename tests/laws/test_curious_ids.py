"""Any text is a device id: through table, run, resume and report it stays itself, and inside its folder."""

import json
import unicodedata
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drawn
from partita.cli import main
from partita.protocol import key_of
from partita.runs.folder import RunFolder
from partita.runs.tensors import kept_tensors
from tables import write

CONFIG = """
workers = 1
[task]
kind = "tabular"
data = "t.parquet"
[pretrain]
rounds = 1
devices_per_round = 3
[personalize]
rounds = 2
devices_per_round = {devices}
[finetune]
epochs = 1
"""
IDS = drawn.CURIOUS_IDS


def write_table(folder: Path) -> None:
    rows = [
        {"device": device, "x": float(row), "label": row % 2, "split": "test" if row == 3 else "train"}
        for device in IDS
        for row in range(4)
    ]
    write(folder / "t.parquet", rows)
    (folder / "c.toml").write_text(CONFIG.format(devices=len(IDS)))


def test_curious_ids_stay_themselves_and_inside_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    write_table(tmp_path / "inner")
    monkeypatch.chdir(tmp_path / "inner")
    (tmp_path / "x").write_text("mine")

    assert main(["run", "c.toml", "out=r", "--quiet"]) == 0
    assert main(["run", "--resume", "r", "--quiet"]) == 0

    run = RunFolder("r")
    assert set(run.devices["device"].to_pylist()) == set(IDS)
    assert all(kept_tensors(run, device) for device in IDS)
    assert len(list(Path("r/personal").iterdir())) == len(IDS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inner", "x"]
    assert (tmp_path / "x").read_text() == "mine"


@pytest.mark.slow
def test_a_stopped_run_of_curious_ids_resumes_to_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path)
    monkeypatch.chdir(tmp_path)

    def stop(line: object, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("partita.progress.display.Display.watch", lambda self, *row: stop(*row))
        assert main(["run", "c.toml", "out=stopped", "--quiet"]) == 130
    assert main(["run", "--resume", "stopped", "--quiet"]) == 0
    assert main(["run", "c.toml", "out=whole", "--quiet"]) == 0

    both = [pq.read_table(f"{name}/devices.parquet").to_pylist() for name in ("stopped", "whole")]
    assert both[0] == both[1]
    assert json.loads(Path("stopped/summary.json").read_bytes())["stages"].keys() == {
        "pretrained",
        "personalized",
        "finetuned",
    }


@pytest.mark.parametrize("value", ["", None])
def test_a_row_without_an_id_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str | None
) -> None:
    write_table(tmp_path)
    rows = pq.read_table(tmp_path / "t.parquet").to_pylist()
    write(tmp_path / "t.parquet", [*rows, {**rows[0], "device": value}])
    monkeypatch.chdir(tmp_path)

    assert main(["run", "c.toml", "out=r"]) == 2

    assert f"`t.parquet`, row {len(rows)}: `device` is empty." in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@given(ids=st.lists(drawn.ids, min_size=2, max_size=6, unique=True))
@drawn.bounded()
def test_every_id_has_a_file_name_of_its_own_on_any_file_system(ids: list[str]) -> None:
    keys = [key_of(device) for device in ids]

    # Some file systems ignore case, some the form in which a letter is composed, some names have 255 bytes.
    assert len({unicodedata.normalize("NFD", key).casefold() for key in keys}) == len(ids)
    for key in keys:
        assert Path("folder", key).parent == Path("folder")
        assert key.isascii()
        assert key.isprintable()
        assert len(key) < 100
        assert not key.startswith(".")
