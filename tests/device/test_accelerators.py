"""Accelerators: which one a worker uses, what this machine lacks, and that naming them starts no CUDA."""

from pathlib import Path
from typing import Any

import pytest
import torch

from partita import Partition, run
from partita.cli import main
from partita.device.accelerators import accelerator_of, accelerators_named, check_available
from partita.device.settings import Computing
from partita.errors import ConfigError
from partita.executors.settings import Execution
from partita.methods.fedavg import FedAvg
from small import Affine, affine_task


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have two GPUs, and every other use of CUDA be an error."""

    def used(*_: Any, **__: Any) -> None:
        raise AssertionError("CUDA was used.")

    for name in (
        "is_available",
        "init",
        "_lazy_init",
        "current_device",
        "get_device_properties",
        "mem_get_info",
    ):
        monkeypatch.setattr(torch.cuda, name, used)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("auto", ["cuda:0", "cuda:1"]),
        ("cuda", ["cuda:0", "cuda:1"]),
        ("cuda:1", ["cuda:1"]),
        ("cpu", ["cpu"]),
    ],
)
def test_a_name_means_these_accelerators(name: str, expected: list[str], gpus: None) -> None:
    assert list(map(str, accelerators_named(name))) == expected
    check_available(Computing(accelerator=name))


def test_workers_take_gpus_in_turn(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.device.accelerators._check_cuda", lambda computing, accelerator: None)

    found = [accelerator_of(Computing(accelerator="cuda"), worker) for worker in range(3)]

    assert list(map(str, found)) == ["cuda:0", "cuda:1", "cuda:0"]


def test_by_default_there_is_a_worker_for_each_gpu_or_else_for_each_core(gpus: None) -> None:
    assert Execution(accelerator="cuda").processes == 2
    assert Execution(accelerator="cuda:1").processes == 1
    assert Execution(accelerator="cuda", workers=5).processes == 5
    assert Execution(accelerator="cpu").processes == Execution(accelerator="cpu", workers=0).processes >= 1


@pytest.mark.usefixtures("_no_gpus")
@pytest.mark.parametrize("name", ["cuda", "cuda:3"])
def test_a_missing_gpu_is_one_line_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('name = "mine"\n')

    for command in ("run", "compare"):
        assert main([command, "mine.toml", f"accelerator={name}"]) == 2

        error = capsys.readouterr().err
        assert f"`accelerator` = '{name}': this machine has 0 CUDA devices" in error
        assert "use 'cpu' or 'auto'." in error
        assert error.count("\n") == 1
    assert not Path("runs").exists()


def test_the_line_lists_the_gpus_that_there_are(gpus: None) -> None:
    with pytest.raises(ValueError, match="2 CUDA devices; use 'cuda:0', 'cuda:1', 'cpu' or 'auto'"):
        check_available(Computing(accelerator="cuda:2"))


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "CPU", ""])
def test_an_unknown_accelerator_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"`accelerator` must be 'auto', 'cpu', 'cuda', 'cuda:N'"):
        Computing(accelerator=name)


def test_mps_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    with pytest.raises(ConfigError, match="no MPS device; use 'cpu' or 'auto'"):
        accelerator_of(Computing(accelerator="mps"))


def test_a_run_on_the_cpu_uses_no_cuda(gpus: None) -> None:
    run(affine_task(), Partition(Affine()), FedAvg(), rounds=1, accelerator="cpu")

    assert not torch.cuda.is_initialized()


def test_a_process_in_which_cuda_does_not_start_says_what_to_do(
    gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(accelerator: torch.device) -> None:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")

    monkeypatch.setattr(torch.cuda, "device", refuse)

    with pytest.raises(
        ConfigError, match=r"in forked subprocess\. With workers, no code of your own may use CUDA"
    ):
        accelerator_of(Computing(accelerator="cuda"))
