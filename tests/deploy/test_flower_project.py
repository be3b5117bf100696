"""`partita flower new`: an app of a few lines, with all that the config needs and Flower can pack."""

import ast
import tomllib
from pathlib import Path

import pytest

from deployed import write_config
from partita.cli import main
from partita.config.reading import read_config
from partita.deploy.building import build_for_server, computes_with, for_server
from tables import write

TABULAR = """
[task]
kind = "tabular"
data = "all.parquet"
derived = "values/derived.json"
[partition]
personal = "output"
"""


def config_in(app: Path) -> Path:
    return app / "partita_app" / "config.toml"


def test_an_app_has_a_dozen_lines_that_name_the_components(tmp_path: Path) -> None:
    config = write_config(tmp_path)

    assert main(["flower", "new", str(tmp_path / "my pilot"), str(config), "--devices", "3"]) == 0

    project = tomllib.loads((tmp_path / "my pilot" / "pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    assert project["project"]["name"] == "my-pilot"
    assert app["components"] == {"serverapp": "partita_app.app:server", "clientapp": "partita_app.app:client"}
    assert app["config"]["devices"] == 3
    assert app["config"]["home"] == str(tmp_path / "my pilot-home")
    module = (tmp_path / "my pilot" / "partita_app" / "app.py").read_text()
    assert len(module.splitlines()) <= 12
    names = {
        target.id
        for node in ast.parse(module).body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    assert {"server", "client"} <= names


def test_the_config_of_an_app_computes_with_the_same_as_the_one_it_was_made_from(tmp_path: Path) -> None:
    rows = [{"device": "ann", "a": float(row), "b": 1.0, "label": row % 2} for row in range(20)]
    write(tmp_path / "all.parquet", rows)
    (tmp_path / "whole.toml").write_text(TABULAR.replace('derived = "values/derived.json"\n', ""))
    (tmp_path / "values").mkdir()
    derived = tmp_path / "values" / "derived.json"
    assert main(["describe", str(tmp_path / "whole.toml"), "--derived", str(derived)]) == 0
    config = tmp_path / "config.toml"
    config.write_text(TABULAR)

    assert main(["flower", "new", str(tmp_path / "app"), str(config), "personalize.personal_lr=0.3"]) == 0

    made = config_in(tmp_path / "app")
    assert "data" not in tomllib.loads(made.read_text())["task"]
    assert (made.parent / "derived.json").read_bytes() == derived.read_bytes()
    digests = []
    for path, overrides in ((config, ["personalize.personal_lr=0.3"]), (made, [])):
        settings = for_server(read_config(path, overrides))
        digests.append(computes_with(settings, build_for_server(settings, path.parent), path.parent))
    assert digests[0] == digests[1]


def test_modules_beside_the_config_become_part_of_the_app(tmp_path: Path) -> None:
    source = "def quiet(folder, values):\n    return lambda *line: None\n"
    (tmp_path / "own_flower_watcher.py").write_text(source)
    config = write_config(tmp_path)
    config.write_text(config.read_text() + '\n[report]\nwatchers = ["own_flower_watcher:quiet"]\n')

    assert main(["flower", "new", str(tmp_path / "app"), str(config)]) == 0

    assert (tmp_path / "app" / "partita_app" / "own_flower_watcher.py").read_text() == source


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["taken", "config.toml"], "exists already"),
        (["app", "missing.toml"], "Cannot read the config"),
        (["app", "underived.toml"], "derives values"),
        (["app", "config.toml", "finetune.baseline=true"], "`finetune.baseline`"),
        (["app", "config.toml", "--devices", "0"], "must be at least 1"),
    ],
)
def test_an_app_that_cannot_be_is_one_clear_line_and_nothing_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    write_config(tmp_path)
    (tmp_path / "underived.toml").write_text(TABULAR.replace('derived = "values/derived.json"\n', ""))
    (tmp_path / "taken").mkdir()
    monkeypatch.chdir(tmp_path)

    assert main(["flower", "new", *arguments]) == 2

    error = capsys.readouterr().err
    assert reason in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "app").exists()
