"""Frozen tensors that came unchanged from a file: a run does not write them, and every reader has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import partita
from partita.cli import main
from partita.errors import ConfigError
from partita.params import from_bytes, to_bytes
from partita.runs.folder import RunFolder
from partita.runs.frozen import bytes_without, frozen_in
from partita.runs.tensors import shared_tensors, tensors_in
from partita.sealed_tensors import sealed_bytes
from small import Normed, same_bits

FROZEN = ("body.0.weight", "body.0.bias")
ROUNDS = "rounds = 1\ndevices_per_round = 2\nbatch_size = 3\n"


def weights() -> dict[str, Tensor]:
    torch.manual_seed(5)
    return {f"base.{name}": tensor.clone() for name, tensor in Normed().state_dict().items()}


def config(folder: Path, start: str = "base.safetensors", more: str = "") -> Path:
    path = folder / "run.toml"
    path.write_text(
        f'name = "run"\nworkers = 1\n[task]\nkind = "small:normed_task"\n[model]\nstart = "{start}"\n'
        f'[model.start_names]\n"^base." = ""\n[partition]\npersonal = "output"\nfrozen = "body.0.*"\n'
        f"[pretrain]\n{ROUNDS}[personalize]\n{ROUNDS}[finetune]\nepochs = 1\nbatch_size = 3\n{more}"
    )
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a baseline, which begins with a file and freezes a layer."""
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "base.safetensors").write_bytes(to_bytes(weights()))
    assert main(["run", str(config(folder, more="baseline = true\n")), f"out={folder / 'run'}"]) == 0
    return RunFolder(folder / "run")


@pytest.mark.slow
def test_only_what_is_not_in_the_file_is_written(run: RunFolder) -> None:
    content = run.shared_file("pretrained").read_bytes()

    assert frozen_in(content) == {name: f"base.{name}" for name in sorted(FROZEN)}
    assert from_bytes(content).keys() == Normed().state_dict().keys() - set(FROZEN)


def test_a_reader_has_the_whole_model(run: RunFolder) -> None:
    given = weights()

    pretrained = shared_tensors(run, "pretrained")

    assert pretrained.keys() == Normed().state_dict().keys()
    assert all(torch.equal(pretrained[name], given[f"base.{name}"]) for name in FROZEN)
    model = partita.open(run.path).model("d0")
    assert same_bits({n: model.state_dict()[n] for n in FROZEN}, {n: pretrained[n] for n in FROZEN})


def test_the_baseline_begins_with_the_whole_model_and_names_its_frozen_part_too(run: RunFolder) -> None:
    inner = run.baseline

    assert inner is not None
    assert set(frozen_in(inner.shared_file("pretrained").read_bytes())) == set(FROZEN)
    assert same_bits(shared_tensors(inner, "pretrained"), shared_tensors(run, "pretrained"))


def test_the_results_are_those_of_a_run_that_writes_everything(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.studies.run._frozen_in_file", lambda built: {})
    (tmp_path / "base.safetensors").write_bytes(to_bytes(weights()))

    assert main(["run", str(config(tmp_path)), f"out={tmp_path / 'run'}"]) == 0

    other = RunFolder(tmp_path / "run")
    assert not frozen_in(other.shared_file("pretrained").read_bytes())
    for name in ("pretrained", "personalized", "start"):
        assert same_bits(shared_tensors(other, name), shared_tensors(run, name))
    assert other.devices.equals(run.devices)
    assert other.summary == run.summary


def test_tensors_of_another_type_than_in_the_file_are_written(tmp_path: Path) -> None:
    halved = {name: t.half() if t.is_floating_point() else t for name, t in weights().items()}
    (tmp_path / "base.safetensors").write_bytes(to_bytes(halved))

    assert main(["run", str(config(tmp_path)), f"out={tmp_path / 'run'}"]) == 0

    content = RunFolder(tmp_path / "run").shared_file("pretrained").read_bytes()
    assert from_bytes(content).keys() == Normed().state_dict().keys()


def test_a_run_that_begins_with_such_a_run_has_the_whole_model(run: RunFolder, tmp_path: Path) -> None:
    start = run.shared_file("pretrained")
    text = config(tmp_path, start=str(start)).read_text().replace('[model.start_names]\n"^base." = ""\n', "")
    (tmp_path / "run.toml").write_text(text)

    assert main(["run", str(tmp_path / "run.toml"), "pretrain.rounds=0", f"out={tmp_path / 'next'}"]) == 0

    assert same_bits(
        shared_tensors(RunFolder(tmp_path / "next"), "pretrained"), shared_tensors(run, "pretrained")
    )


def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run that was stopped after pretraining."""
    (tmp_path / "base.safetensors").write_bytes(to_bytes(weights()))
    counted = []

    def stop(*_: Any) -> None:
        counted.append(1)
        if len(counted) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("partita.training.pipeline.Pipeline._report", stop)
    assert main(["run", str(config(tmp_path)), f"out={tmp_path / 'run'}"]) == 130
    monkeypatch.undo()
    return tmp_path / "run"


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped(tmp_path, monkeypatch)

    assert main(["run", "--resume", str(folder)]) == 0

    assert RunFolder(folder).devices.equals(run.devices)
    assert same_bits(shared_tensors(RunFolder(folder), "pretrained"), shared_tensors(run, "pretrained"))


@pytest.mark.parametrize("how", ["gone", "changed", "copied"])
def test_a_file_that_is_gone_or_changed_is_said_in_one_line(how: str, tmp_path: Path) -> None:
    start, folder = tmp_path / "base.safetensors", tmp_path / "run"
    start.write_bytes(to_bytes(weights()))
    assert main(["run", str(config(tmp_path)), f"out={folder}"]) == 0
    file = RunFolder(folder).shared_file("pretrained")
    if how == "gone":
        start.unlink()
    elif how == "changed":
        start.write_bytes(to_bytes({name: tensor + 1 for name, tensor in weights().items()}))
    else:
        file = file.rename(tmp_path / "copy.safetensors")

    with pytest.raises(ConfigError) as error:
        tensors_in(file)

    expected = {"gone": "which is gone", "changed": "has other content", "copied": "is a copy of a file"}
    assert expected[how] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_moved_with_the_data_is_found(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folder = tmp_path / "data", tmp_path / "moved" / "run"
    data.mkdir()
    (data / "base.safetensors").write_bytes(to_bytes(weights()))
    (folder / "shared").mkdir(parents=True)
    for path in (run.config_file, run.shared_file("pretrained")):
        (folder / path.relative_to(run.path)).write_bytes(path.read_bytes())
    monkeypatch.setenv("PARTITA_DATA", str(data))

    assert same_bits(shared_tensors(RunFolder(folder), "pretrained"), shared_tensors(run, "pretrained"))


def test_names_that_the_tensors_lack_are_not_named() -> None:
    params: Mapping[str, Tensor] = {"a": torch.zeros(1), "b": torch.ones(1)}

    content = bytes_without(params, {"b": "x", "c": "y"})

    assert frozen_in(content) == {"b": "x"}
    assert list(from_bytes(content)) == ["a"]
    assert bytes_without(params, {"c": "y"}) == sealed_bytes(params)
