"""Precision: bf16 in the passes, float32 in every parameter, and a run that keeps its precision."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import FedAlt, Finetuning, Partition, Plan, Result, Training, pipeline, run
from partita.cli import main
from partita.device.accelerators import check_available
from partita.device.settings import Computing
from partita.errors import ConfigError
from partita.runs.folder import RunFolder
from small import Normed, affine_devices, affine_task, negative_error, same_bits, square_error

PARTITION = Partition(Normed(), personal="head.*")
BF16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")


@pytest.fixture
def has_bf16() -> None:
    if not any(torch.cpu.get_capabilities().get(name) for name in BF16):
        pytest.skip("this CPU has no instructions for bfloat16")


def trained(precision: Any, **changes: Any) -> Result:
    plan = Plan(
        personalize=Training(method=FedAlt(shared_lr=0.1, batch_size=4), rounds=1, devices_per_round=2),
        finetune=Finetuning(epochs=1, batch_size=4),
    )
    devices = {device: data for device, data in affine_devices().items() if device in ("d1", "d2")}
    task = affine_task(**({"model": Normed, "devices": devices} | changes))
    return pipeline(task, PARTITION, plan, precision=precision, accelerator="cpu")


@pytest.mark.usefixtures("has_bf16")
def test_passes_are_in_bf16_and_everything_that_stays_is_in_float32() -> None:
    outputs: set[torch.dtype] = set()
    predicted: set[torch.dtype] = set()
    gradients: set[torch.dtype] = set()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        output = model(batch[0])
        outputs.add(output.dtype)
        if output.requires_grad:
            next(p for p in model.parameters() if p.requires_grad).register_hook(
                lambda g: gradients.add(g.dtype)
            )
        return 0.5 * (output - batch[1]).square().mean()

    def metric(predictions: Tensor, targets: Tensor) -> float:
        predicted.add(predictions.dtype)
        return negative_error(predictions, targets)

    exact = trained("float32")
    outputs.clear()
    result = trained("bf16", loss=loss, metrics={"closeness": metric})

    # The check of the task before a run is in float32.
    assert outputs == {torch.bfloat16, torch.float32}
    assert gradients == predicted == {torch.float32}
    kept = [result.shared, result.personal("d1"), result.personal("d2")]
    assert {t.dtype for part in kept for t in part.values() if t.is_floating_point()} == {torch.float32}
    assert not same_bits(result.shared, exact.shared)
    for name, tensor in exact.shared.items():
        torch.testing.assert_close(result.shared[name], tensor, rtol=0.05, atol=0.05)


@pytest.mark.usefixtures("has_bf16")
def test_a_loss_can_leave_bf16_locally() -> None:
    def full(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return square_error(model, batch)

    assert same_bits(trained("bf16", loss=full).shared, trained("float32").shared)


@pytest.mark.usefixtures("has_bf16")
@pytest.mark.parametrize(("first", "then"), [("float32", "bf16"), ("bf16", "float32")])
def test_a_run_is_resumed_in_its_own_precision_alone(first: Any, then: Any, tmp_path: Path) -> None:
    def go(precision: Any, *, resume: bool) -> Result:
        settings = {"out": tmp_path / "run", "resume": resume, "precision": precision}
        return run(affine_task(model=Normed), PARTITION, FedAlt(batch_size=5), rounds=1, **settings)

    whole = go(first, resume=False)

    with pytest.raises(ConfigError, match="started with other values of `precision`"):
        go(then, resume=True)
    assert same_bits(go(first, resume=True).shared, whole.shared)


def test_the_default_precision_is_not_in_the_fingerprint_so_that_older_runs_resume(tmp_path: Path) -> None:
    run(affine_task(), Partition(affine_task().model()), FedAlt(), rounds=1, out=tmp_path / "run")

    assert "precision" not in RunFolder(tmp_path / "run").commit_file.read_text()


@pytest.mark.parametrize("capabilities", [{"avx2": True, "avx512_f": True}, {"neon": True, "bf16": False}])
def test_bf16_is_refused_on_a_cpu_without_its_instructions(
    capabilities: dict[str, bool],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('name = "mine"\naccelerator = "cpu"\nprecision = "bf16"\n')

    assert main(["run", "mine.toml"]) == 2

    error = capsys.readouterr().err
    assert "this CPU has no instructions for bfloat16" in error
    assert "20 to 34 times slower" in error
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", BF16)
def test_bf16_is_accepted_with_any_of_its_instructions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {name: True})

    check_available(Computing(accelerator="cpu", precision="bf16"))
