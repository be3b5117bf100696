"""Overrides on the command line: lists by commas, and files from the current folder."""

import inspect
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest

from partita.cli import main
from partita.config.files import find_files
from partita.config.loading import MODELS, TASKS
from partita.config.overrides import LISTS
from partita.config.reading import read_config
from partita.config.schema import Config
from partita.config.sections import alternatives
from partita.data.options import TableOptions
from partita.errors import ConfigError
from partita.studies.variants import in_full
from tables import write

OWN = '[task]\nkind = "my_task:make"\n'


def takes_lists(hint: Any) -> bool:
    """Whether a list is the only kind of value but None."""
    kinds = [kind for kind in alternatives(hint) if kind is not type(None)]
    return all(get_origin(kind) in (list, Sequence) for kind in kinds)


def test_every_key_of_a_list_takes_commas() -> None:
    found: set[str] = set()
    for section in fields(Config):
        kind = get_type_hints(Config)[section.name]
        if is_dataclass(kind):
            found |= {
                f"{section.name}.{key}" for key, hint in get_type_hints(kind).items() if takes_lists(hint)
            }
    for section, paths in (("task", TASKS), ("model", MODELS)):
        for module, _, name in (path.partition(":") for path in paths.values()):
            hints = inspect.signature(getattr(import_module(module), name)).parameters
            found |= {f"{section}.{key}" for key, own in hints.items() if takes_lists(own.annotation)}
    found |= {f"task.{key}" for key, hint in get_type_hints(TableOptions).items() if takes_lists(hint)}

    compared = {key for key in found if in_full([f"{key}=a,b"]) == [f'{key}=["a", "b"]']}
    assert found == {*LISTS, *compared}
    assert compared == {"compare.methods", "compare.partitions", "compare.columns"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("perplexity,accuracy", ["perplexity", "accuracy"]),
        ("auroc", ["auroc"]),
        ('["auroc", "top5"]', ["auroc", "top5"]),
    ],
)
def test_lists_are_read_with_commas_too(text: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("")

    assert read_config(tmp_path / "own.toml", [f"task.metrics={text}"]).task.options["metrics"] == expected


def test_arguments_of_a_task_of_ones_own_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("")
    Path("conf").mkdir()
    Path("conf/own.toml").write_text(OWN)

    config = read_config(Path("conf/own.toml"), ["task.data=a", "task.columns=x,y"])

    assert config.task.options == {"data": "a", "columns": "x,y"}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config in `conf`, and the current folder beside it, with a table in each."""
    monkeypatch.delenv("PARTITA_DATA", raising=False)
    for name in ("conf", "here"):
        (tmp_path / name).mkdir()
        rows = [{"device": name, "x": float(x), "label": x % 2} for x in range(20)]
        write(tmp_path / name / "both.parquet", rows)
    write(tmp_path / "conf/beside.parquet", [{"device": "a", "x": 1.0, "label": 0}])
    (tmp_path / "conf/own.toml").write_text('[task]\nkind = "tabular"\ndata = "both.parquet"\n')
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "conf/both.parquet"),
        (["task.data=both.parquet"], "here/both.parquet"),
        (["task.data=../here/both.parquet"], "here/both.parquet"),
        (["task.data=beside.parquet"], "conf/beside.parquet"),
    ],
)
def test_a_file_on_the_command_line_is_from_the_current_folder(
    folders: Path, overrides: list[str], expected: str
) -> None:
    config = read_config(folders / "conf/own.toml", overrides)

    assert find_files(config, folders / "conf")["task.data"].resolve() == folders / expected


def test_without_a_config_a_file_is_from_the_current_folder(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["task.kind=tabular", "task.columns=x", "pretrain.devices_per_round=1"]

    assert main(["describe", *asked, "task.data=both.parquet", "model.name="]) == 0

    assert "(1 devices)" in capsys.readouterr().out


def test_a_missing_file_lists_where_it_was_looked_for(folders: Path) -> None:
    config = read_config(folders / "conf/own.toml", ["task.data=none.parquet"])

    with pytest.raises(ConfigError) as error:
        find_files(config, folders / "conf")

    assert str(error.value) == (
        f"`task.data` = 'none.parquet' is not in `{folders / 'conf'}`, nor, if the command line names it, in "
        f"`{folders / 'here'}`. Files are also found in the folder $PARTITA_DATA."
    )
