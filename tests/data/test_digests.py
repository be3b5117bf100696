"""Digests of tables: by content, and computed once."""

import hashlib
import os
from pathlib import Path

import pytest

from partita.data import digests
from partita.data.digests import describe_file, describe_table
from tables import texts, write


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_table_is_known_by_its_sha256_and_its_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(devices=3, rows=6))

    assert describe_table(path) == f"sha256 {sha256(path.read_bytes())}, 18 rows"
    assert describe_file(path) == f"sha256 {sha256(path.read_bytes())}"


def test_a_folder_is_known_by_the_names_and_digests_of_its_files(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", texts(devices=1, rows=6))
    second = write(tmp_path / "b.parquet", texts(devices=2, rows=2))

    lines = f"{sha256(first.read_bytes())} a.parquet\n{sha256(second.read_bytes())} b.parquet\n"
    assert describe_table(tmp_path) == f"sha256 {sha256(lines.encode())}, 10 rows"


def test_a_digest_is_computed_once_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.parquet", texts())
    computed: list[Path] = []
    compute = digests._digest
    monkeypatch.setattr(digests, "_digest", lambda file: computed.append(file) or compute(file))
    first = describe_table(path)

    assert describe_table(path) == first
    assert computed == [path]
    # A file of the same size, with its time of modification set back.
    before, content = path.stat(), bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert describe_table(path) == f"sha256 {sha256(content)}, 18 rows"
    (tmp_path / "t.parquet.content.sha256").write_text("broken")
    assert describe_table(path) == f"sha256 {sha256(content)}, 18 rows"
    assert len(computed) == 3


def test_a_damaged_file_of_the_digest_is_not_used(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts())
    expected = describe_table(path)
    kept = tmp_path / "t.parquet.content.sha256"
    content = kept.read_bytes()

    for place in range(len(content)):
        kept.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert describe_table(path) == expected


def test_the_digest_is_in_the_cache_folder_if_the_tables_folder_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    path = write(tmp_path / "data/t.parquet", texts())
    replace = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if target.parent == path.parent:
            raise PermissionError
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)

    assert describe_table(path) == f"sha256 {sha256(path.read_bytes())}, 18 rows"
    assert len(list((tmp_path / "cache/partita").glob("t.parquet.*.sha256"))) == 1
    assert [file.name for file in path.parent.iterdir()] == ["t.parquet"]
