"""Whatever a config, a table or a file contains, the answer is a result or one line: never a traceback.

`HOSTILE_EXAMPLES=5000 pytest tests/test_hostile.py` tries more cases, others each time; a slow test tries thousands.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

import drawn
from partita.cli import main
from partita.config.building import build
from partita.config.importing import import_data
from partita.config.reading import config_of, read_config
from partita.errors import ConfigError, InUse, RunFailed
from partita.studies.describe import describe


def answered(work: Callable[[], Any]) -> bool:
    """Return whether work was done; only the project's own errors, of one line, may end it otherwise."""
    try:
        work()
    except (ConfigError, InUse, RunFailed):
        return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@given(config=drawn.configs())
@drawn.bounded()
def test_any_config_is_built_or_refused(config: dict[str, Any], folder: Path) -> None:
    answered(lambda: build(config_of({"name": "x", **config}), folder))


@given(config=drawn.configs())
@drawn.bounded()
def test_any_config_in_a_file_is_described_or_refused(config: dict[str, Any], folder: Path) -> None:
    path = folder / "c.toml"
    try:
        path.write_text(tomli_w.dumps(config), encoding="utf-8")
    except (TypeError, UnicodeEncodeError, ValueError):
        return  # TOML has no such values.

    answered(lambda: describe(read_config(path), folder))


@given(
    text=st.one_of(
        st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode(errors="ignore"))
    )
)
@drawn.bounded()
def test_any_file_is_read_as_a_config_or_refused(text: bytes, folder: Path) -> None:
    path = folder / "any.toml"
    path.write_bytes(text)

    answered(lambda: read_config(path))


@given(overrides=st.lists(st.text(max_size=30), max_size=3))
@drawn.bounded()
def test_any_override_is_read_or_refused(overrides: list[str], folder: Path) -> None:
    path = folder / "empty.toml"
    path.write_text("")

    answered(lambda: read_config(path, overrides))


TASKS = ("image", "text", "speech", "tabular")


@given(
    table=drawn.tables(),
    kind=st.sampled_from(TASKS),
    options=drawn.table_options(),
    own=st.dictionaries(
        st.sampled_from(["size", "classes", "vocabulary", "tokens", "metrics", "max_length"]),
        drawn.values,
        max_size=1,
    ),
)
@drawn.bounded(1.5)
def test_any_table_is_used_or_refused(
    table: pa.Table, kind: str, options: dict[str, Any], own: dict[str, Any], folder: Path
) -> None:
    pq.write_table(table, folder / "t.parquet", row_group_size=5)
    small = {"rounds": 1, "devices_per_round": 1}
    config = {"name": "x", "task": {"kind": kind, "data": "t.parquet", **options, **own}, "pretrain": small}
    config |= {"personalize": small, "workers": 1}

    def use() -> None:
        task = build(config_of(config), folder).task
        for device in task.devices:
            dict(task.devices[device])

    answered(use)


@given(table=drawn.tables(), kind=st.sampled_from(["sort", "dirichlet", "shards"]))
@drawn.bounded()
def test_any_table_is_converted_or_refused(table: pa.Table, kind: str, folder: Path) -> None:
    pq.write_table(table, folder / "in.parquet")
    out = folder / "out.parquet"
    out.unlink(missing_ok=True)

    answered(lambda: import_data(kind, str(folder / "in.parquet"), out, [], lambda done, total: None))


@given(
    harm=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.floats(0, 1),
)
@drawn.bounded()
def test_a_damaged_table_is_used_or_refused(harm: list[tuple[float, int]], cut: float, folder: Path) -> None:
    path = folder / "damaged.parquet"
    rows = [
        {
            "device": f"d{row // 4}",
            "x": float(row),
            "label": row % 2,
            "split": "test" if row % 4 == 3 else "train",
        }
        for row in range(12)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=5)
    content = bytearray(path.read_bytes())
    for place, value in harm:
        content[int(place * (len(content) - 1))] = value
    path.write_bytes(content if cut > 0.3 else content[: int(cut * len(content))])
    small = {"rounds": 1, "devices_per_round": 1}
    config = {
        "name": "x",
        "workers": 1,
        "task": {"kind": "tabular", "data": path.name},
        "pretrain": small,
        "personalize": small,
    }

    def use() -> None:
        task = build(config_of(config), folder).task
        for device in task.devices:
            dict(task.devices[device])

    answered(use)


@given(content=st.binary(max_size=300), header=st.integers(0, 2**64 - 1))
@drawn.bounded()
def test_any_file_of_initial_weights_is_loaded_or_refused(content: bytes, header: int, folder: Path) -> None:
    for start in (
        content,
        header.to_bytes(8, "little") + content,
        len(content).to_bytes(8, "little") + content,
    ):
        (folder / "w.safetensors").write_bytes(start)
        config = {
            "name": "x",
            "task": {"kind": "synthetic"},
            "model": {"start": "w.safetensors"},
            "workers": 1,
        }

        answered(partial(build, config_of(config), folder))


@given(arguments=st.lists(st.text(max_size=12), max_size=4))
@drawn.bounded()
def test_any_arguments_are_understood_or_refused(arguments: list[str]) -> None:
    try:
        code = main(["describe", "none.toml", *arguments])
    except SystemExit as end:
        code = end.code
    assert code in (0, 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thousands_of_new_cases_end_without_a_traceback() -> None:
    tests = Path(__file__).parent
    files = [str(tests / "test_hostile.py"), str(tests / "laws/test_curious_ids.py")]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "any or damaged or every",
    ]

    done = subprocess.run(
        [*command, "--timeout=500", "--hypothesis-show-statistics", *files],
        cwd=tests.parent,
        env={**os.environ, "HOSTILE_EXAMPLES": "300"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-5000:]
    assert sum(map(int, re.findall(r"(\d+) passing", done.stdout))) >= 3000
