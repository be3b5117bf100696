"""A model's file that is damaged, hostile or of another version is refused in one line, and runs no code."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import partita
from partita.cli import main
from partita.errors import ConfigError
from partita.exports.recipes import NotNamed, recipe_of
from partita.models.convnet import ConvNet
from partita.params import from_bytes, metadata_of, to_bytes


@pytest.fixture
def file(run_of: Callable[[str], Path], tmp_path: Path) -> Path:
    main(["export", str(run_of("tabular")), "d0", str(tmp_path / "m.safetensors")])
    return tmp_path / "m.safetensors"


def changed(file: Path, **changes: Any) -> Path:
    """Replace values of the metadata of a file, and return it."""
    content = file.read_bytes()
    values = json.loads(metadata_of(content)["partita"]) | changes
    file.write_bytes(to_bytes(from_bytes(content), partita=json.dumps(values)))
    return file


def building(file: Path, **changes: Any) -> dict[str, Any]:
    return {**partita.model_metadata(file)["build"], **changes}


def test_no_changed_bit_of_a_file_is_used(file: Path) -> None:
    content = file.read_bytes()
    expected = partita.load(file).state_dict()

    for place in range(0, len(content), 97):
        damaged = bytearray(content)
        damaged[place] ^= 4
        file.write_bytes(bytes(damaged))
        found = loaded_or_refused(file)
        # A changed letter of what it says about the run or the device is not noticed.
        assert found is None or all(torch.equal(found[name], expected[name]) for name in expected)
    for size in (0, 5, 100, len(content) - 1):
        file.write_bytes(content[:size])
        with pytest.raises(ConfigError, match="is damaged"):
            partita.load(file)


def loaded_or_refused(file: Path) -> dict[str, torch.Tensor] | None:
    try:
        return partita.load(file).state_dict()
    except ConfigError:
        return None


@pytest.mark.parametrize("path", ["os:system", "subprocess:run", "builtins:exec", "exported:make_halves"])
def test_code_that_is_not_ours_is_not_called(path: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "system", lambda **_: pytest.fail("It was called."))
    changed(file, build=building(file, function=path, options={"command": "true"}))

    with pytest.raises(ConfigError, match=f"is built by `{path}`, which is not Partita's code"):
        partita.load(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"function": "partita.cli:main", "options": {"arguments": []}}, "does not import here"),
        ({"function": "partita.models.none:Nothing"}, "does not import here"),
        ({"function": "partita.tasks.tabular:Perceptron", "options": {"x": 1}}, "cannot be built: TypeError"),
        ({"options": {"inputs": 2, "outputs": 2, "hidden": 10**12}}, "has the shape"),
        ({"function": 3}, "does not say how its model is built"),
        ({"steps": [{"function": "os:system", "options": {}}]}, "`os:system`, which is not Partita's code"),
        ({"steps": [{"dance": 1}]}, "does not say how its model is built"),
        ({"steps": [{"untie": {"no": "where"}}]}, "cannot be built"),
        ({"steps": 5}, "does not say how its model is built"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_one_line(changes: dict[str, Any], message: str, file: Path) -> None:
    changed(file, build=building(file, **changes))

    with pytest.raises(ConfigError, match=message) as error:
        partita.load(file)

    assert "\n" not in str(error.value)


def test_another_format_and_other_files_are_recognized(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has the format 2, and this version of Partita reads 1"):
        partita.load(changed(file, format=2))
    file.write_bytes(to_bytes({"u": torch.zeros(2)}))
    with pytest.raises(ConfigError, match="is not a model's file: write one with `partita export`"):
        partita.load(file)
    with pytest.raises(ConfigError, match="There is no file"):
        partita.load(tmp_path / "none")


def test_loading_leaves_the_random_state_alone(file: Path) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()

    partita.load(file)

    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_only_python_has_is_refused_with_what_to_do() -> None:
    with pytest.raises(NotNamed, match="`test_a_model_that_only.*lambda>`, which no import path names"):
        recipe_of(lambda: nn.Linear(2, 2), None)
    with pytest.raises(NotNamed, match="with arguments that are no JSON values"):
        recipe_of(partial(ConvNet, width=torch.tensor(4)), None)


@pytest.mark.slow
def test_the_command_names_the_format_that_needs_no_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    from exported import finished

    module = type(sys)("closures")
    module.task = closure_task  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "closures", module)
    run = finished(tmp_path, "synthetic", **{"task.kind": "closures:task", "task.form": None})
    capsys.readouterr()

    assert main(["export", str(run), "d0", str(tmp_path / "m.safetensors")]) == 2
    error = capsys.readouterr().err
    assert main(["export", str(run), "d0", str(tmp_path / "m.pt2"), "--format", "torch-export"]) == 0

    assert "no import path names" in error
    assert "export a program with `--format torch-export`." in error
    assert error.count("\n") == 1


def closure_task(**_: Any) -> partita.Task:
    from small import Affine, affine_task

    features = 3
    return affine_task(model=lambda: Affine(features))
