"""An import: resumed from finished parts, alone with its table, and harmless to files of others."""

import errno
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from partita import durable
from partita.data.importers.source import Row, Survey, import_source
from partita.data.sort import sort_table
from partita.data.writing import SCRATCH, importing, publish
from partita.errors import ConfigError, InUse, RunFailed
from power import recorded, restored

DEVICES = ["ann", "bob", "cem", "dee"]
ROWS = [{"device": device, "split": "train", "text": f"{device} {n}"} for device in DEVICES for n in range(3)]


@dataclass
class Source:
    """Four devices with three rows each; `stop_at` interrupts once, before the rows of a device."""

    stop_at: str = ""
    asked: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=lambda: {"text": "text"})

    def survey(self, progress: object) -> Survey:
        return Survey(DEVICES)

    def rows(self, device: str) -> Iterator[Row]:
        self.asked.append(device)
        if device == self.stop_at:
            self.stop_at = ""
            raise KeyboardInterrupt
        for number in range(3):
            yield {"split": "train", "text": f"{device} {number}"}


@pytest.fixture(autouse=True)
def one_device_per_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.data.importers.source._DEVICES_PER_PART", 1)


def run_import(source: object, out: Path) -> list[dict]:
    import_source(source, out, progress=lambda done, total: None, about="x")
    return pq.read_table(out).to_pylist()


def interrupt(source: Source, out: Path) -> Path:
    """Interrupt an import after two parts, and return its folder."""
    source.stop_at = "cem"
    with pytest.raises(KeyboardInterrupt):
        run_import(source, out)
    source.asked.clear()
    return out.with_name("out.parquet.partita-import")


def test_an_import_resumes_after_a_power_loss_at_any_moment(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()

    with recorded(tmp_path / "disk") as disk:
        run_import(Source(), tmp_path / "disk/out.parquet")

    table = (tmp_path / "disk/out.parquet").read_bytes()
    assert disk.synced()["out.parquet"] == table
    for number, image in enumerate(disk.images):
        out = restored(image, tmp_path / f"{number}") / "out.parquet"
        if out.exists():
            assert out.read_bytes() == table
        else:
            assert run_import(Source(), out) == ROWS


def test_a_sorted_table_is_on_disk_or_absent(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    run_import(Source(), tmp_path / "table.parquet")

    with recorded(tmp_path / "disk") as disk:
        sort_table(tmp_path / "table.parquet", tmp_path / "disk/out.parquet")

    table = (tmp_path / "disk/out.parquet").read_bytes()
    assert {image["out.parquet"] for image in disk.images if "out.parquet" in image} == {table}
    assert disk.synced()["out.parquet"] == table


def test_files_of_others_beside_the_table_stay(tmp_path: Path) -> None:
    names = [
        "out.parquet.parts/state.json",
        "out.parquet.parts/000000.parquet",
        "out.parquet.tmp",
        "whole.tmp",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")

    assert run_import(Source(), tmp_path / "out.parquet") == ROWS
    sort_table(tmp_path / "out.parquet", tmp_path / "sorted.parquet")

    assert [(tmp_path / name).read_text() for name in names] == ["mine"] * 4
    assert {path.name for path in tmp_path.iterdir()} == {
        "out.parquet", "sorted.parquet", "out.parquet.parts", "out.parquet.tmp", "whole.tmp"
    }  # fmt: skip


def test_a_folder_without_the_marker_of_an_import_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out.parquet.partita-import"
    folder.mkdir()
    (folder / "state.partita").write_text("mine")

    with pytest.raises(ConfigError, match="out.parquet.partita-import` is not the folder of an import"):
        run_import(Source(), tmp_path / "out.parquet")

    assert [path.name for path in tmp_path.rglob("*")] == [folder.name, "state.partita"]


def test_a_file_of_others_in_the_folder_of_an_import_stays(tmp_path: Path) -> None:
    folder = interrupt(Source(), tmp_path / "out.parquet")
    (folder / "notes.txt").write_text("mine")

    assert run_import(Source(), tmp_path / "out.parquet") == ROWS

    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_an_import_that_fails_before_its_first_part_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_import(Source(stop_at="ann"), tmp_path / "out.parquet")

    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("other", ["import", "sort"])
def test_a_table_that_is_being_written_is_refused(other: str, tmp_path: Path) -> None:
    run_import(Source(), tmp_path / "source.parquet")
    out = tmp_path / "out.parquet"
    refused: list[str] = []

    class Busy(Source):
        def rows(self, device: str) -> Iterator[Row]:
            with pytest.raises(InUse, match="Another process is writing `.*out.parquet`."):
                run_import(Source(), out) if other == "import" else sort_table(
                    tmp_path / "source.parquet", out
                )
            refused.append(device)
            return super().rows(device)

    assert run_import(Busy(), out) == ROWS
    assert refused == DEVICES


def test_a_table_is_whole_although_the_files_of_its_import_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(folder))

    monkeypatch.setattr("partita.data.writing.clear", fail)

    with importing(tmp_path / "out.parquet") as folder:
        (folder / f"whole{SCRATCH}").write_bytes(b"x")
        publish(folder / f"whole{SCRATCH}", tmp_path / "out.parquet")

    assert (tmp_path / "out.parquet").read_bytes() == b"x"
    assert "cannot be deleted: Read-only file system." in caplog.text


def test_a_table_whose_name_cannot_be_written_to_disk_is_no_table_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, sync = tmp_path / "out.parquet", durable.sync_folder

    def fail(folder: Path) -> None:
        if folder == tmp_path and out.exists():
            raise OSError(errno.EIO, "Input/output error", str(folder))
        sync(folder)

    with monkeypatch.context() as patched:
        patched.setattr("partita.durable.sync_folder", fail)
        with pytest.raises(OSError, match="Input/output error"):
            run_import(Source(), out)

    assert not out.exists()
    assert run_import(Source(), out) == ROWS


def test_a_table_that_appears_during_an_import_is_not_replaced(tmp_path: Path) -> None:
    class Slow(Source):
        def rows(self, device: str) -> Iterator[Row]:
            (tmp_path / "out.parquet").write_text("mine")
            return super().rows(device)

    with pytest.raises(ConfigError, match="exists already"):
        run_import(Slow(), tmp_path / "out.parquet")

    assert (tmp_path / "out.parquet").read_text() == "mine"


def damage(folder: Path) -> None:
    path = folder / "part-000001.partita"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def swap(folder: Path) -> None:
    first, second = (folder / f"part-{number:06}.partita" for number in (0, 1))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def lose(folder: Path) -> None:
    (folder / "part-000001.partita").unlink()


@pytest.mark.parametrize(("change", "again"), [(damage, ["bob"]), (swap, ["ann", "bob"]), (lose, ["bob"])])
def test_a_changed_part_is_imported_again(
    change: object, again: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source()
    change(interrupt(source, tmp_path / "out.parquet"))

    with caplog.at_level(logging.WARNING):
        rows = run_import(source, tmp_path / "out.parquet")

    assert rows == ROWS
    assert source.asked == [*again, "cem", "dee"]
    assert caplog.text.count("has changed since it was written: importing it again.") == len(again)


def test_a_part_that_changes_before_it_is_copied_ends_the_import(tmp_path: Path) -> None:
    folder = tmp_path / "out.parquet.partita-import"

    class Unlucky(Source):
        def rows(self, device: str) -> Iterator[Row]:
            if device == "dee":
                damage(folder)
            return super().rows(device)

    with pytest.raises(RunFailed, match="part-000001.partita` has changed .*: run the same command again"):
        run_import(Unlucky(), tmp_path / "out.parquet")

    assert not (tmp_path / "out.parquet").exists()
    source = Source()
    assert run_import(source, tmp_path / "out.parquet") == ROWS
    assert source.asked == ["bob"]


def test_parts_of_another_import_are_not_used(tmp_path: Path) -> None:
    folder = interrupt(Source(), tmp_path / "out.parquet")
    state = json.loads((folder / "state.partita").read_text())
    (folder / "state.partita").write_text(json.dumps({**state, "digest": "another"}))
    source = Source()

    assert run_import(source, tmp_path / "out.parquet") == ROWS

    assert source.asked == DEVICES
