"""The functions that an update may declare: each takes effect where it is declared, and nowhere else."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import (
    Evaluation,
    FedAlt,
    Finetuning,
    LocalAlt,
    Method,
    OwnExamples,
    Partition,
    Plan,
    Result,
    Sent,
    Training,
    pipeline,
)
from partita.cli import main
from partita.methods.carried import sent_by
from partita.methods.declared import declared, declared_seams
from partita.params import Params
from small import Affine, affine_devices, affine_task, same_bits

EPOCHS = Finetuning(personal_lr=0.1, epochs=1, batch_size=4)


def train(local: Any, *, finetune: Finetuning | None = EPOCHS, **options: Any) -> Result:
    task = affine_task()
    method = Method(local=local, shared_lr=0.1, batch_size=4)
    plan = Plan(
        personalize=Training(method=method, rounds=3, devices_per_round=3),
        finetune=finetune,
        evaluate=Evaluation(every=2),
    )
    return pipeline(task, Partition(task.model(), personal="offset"), plan, **options)


class Plain(LocalAlt):
    """Declares every function, each as it is without it."""

    @staticmethod
    def begins(shared: Params, personal: Params, kept: Params) -> Params:
        return {}

    @staticmethod
    def predicts(model: nn.Module, examples: OwnExamples) -> nn.Module:
        return model

    @staticmethod
    def weighs(shared: Params, examples: int) -> int:
        return examples

    @staticmethod
    def fills(sent: Tensor) -> Tensor:
        return sent


def test_an_update_that_declares_nothing_new_gives_the_same_bits() -> None:
    # `FedAlt` declares none of them; `Plain` declares all, each with the value that holds without it.
    without, with_all = train(FedAlt().local), train(Plain)

    assert declared_seams(FedAlt().local) == []
    assert declared_seams(Plain) == ["begins", "predicts", "weighs", "fills"]
    assert same_bits(with_all.shared, without.shared)
    assert with_all.devices == without.devices
    for device in affine_devices():
        assert same_bits(with_all.personal(device), without.personal(device))


class Shifted(LocalAlt):
    """A device's own model begins with an offset that is larger by one."""

    @staticmethod
    def begins(shared: Params, personal: Params, kept: Params, *, shift: float = 1.0) -> Params:
        return {"offset": personal["offset"] + shift}


def losses(result: Result, stage: str) -> dict[str, float]:
    rows = result.devices.to_pylist()
    return {r["device"]: r["loss"] for r in rows if (r["stage"], r["split"]) == (stage, "test")}


def test_a_model_begins_as_declared_in_evaluations_and_exports_and_not_in_training() -> None:
    plain, shifted = train(LocalAlt, finetune=None), train(Shifted, finetune=None)

    assert same_bits(shifted.shared, plain.shared)
    assert losses(shifted, "pretrained") == losses(plain, "pretrained")
    for device, loss in losses(shifted, "personalized").items():
        assert same_bits(shifted.personal(device), plain.personal(device))
        own = shifted.model(device)
        assert own.offset.item() == pytest.approx(plain.model(device).offset.item() + 1)
        inputs, targets = affine_devices()[device]["test"]
        assert loss == pytest.approx(0.5 * (own(inputs) - targets).square().mean().item(), rel=1e-5)


def test_fine_tuning_continues_from_what_a_model_begins_with() -> None:
    # Without a learning rate fine-tuning keeps what it begins with, and it is not shifted a second time.
    still = Finetuning(personal_lr=0.0, epochs=1)
    plain, shifted = train(LocalAlt, finetune=None), train(Shifted, finetune=still)

    for device in affine_devices():
        expected = plain.personal(device)["offset"] + 1
        assert shifted.personal(device)["offset"].equal(expected)
        assert shifted.model(device).offset.equal(expected)
    assert losses(shifted, "finetuned") == pytest.approx(losses(shifted, "personalized"))


class Constant(nn.Module):
    """Predicts the mean target of the device's own examples."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.value.expand(len(inputs))


class Mean(LocalAlt):
    """Predicts for each device with the mean of its training targets."""

    @staticmethod
    def predicts(model: nn.Module, examples: OwnExamples) -> nn.Module:
        assert not model.training
        _, targets = examples.predict(model, examples.batch_at(torch.arange(len(examples))))
        return Constant(targets.mean())


def test_a_device_predicts_as_declared_in_every_stage_but_the_pretrained_one() -> None:
    plain, mean = train(LocalAlt), train(Mean)

    assert same_bits(mean.shared, plain.shared)
    assert losses(mean, "pretrained") == losses(plain, "pretrained")
    for device, splits in affine_devices().items():
        inputs, targets = splits["test"]
        value = splits["train"][1].mean()
        for stage in ("personalized", "finetuned"):
            expected = 0.5 * (value - targets).square().mean().item()
            assert losses(mean, stage)[device] == pytest.approx(expected, rel=1e-5)
        assert mean.model(device)(inputs)[0].item() == pytest.approx(value.item())
        assert isinstance(mean.model(device, "global"), Affine)


class Heavy(LocalAlt):
    """Replies count by the square of the number of examples."""

    @staticmethod
    def weighs(shared: Params, examples: int) -> int:
        return examples**2


def test_a_reply_carries_the_declared_weight() -> None:
    # One round: the mean of the devices' changes, computed from runs in which each device is alone.
    def step(local: Any, devices: Mapping[str, Any]) -> Params:
        task = affine_task(devices=devices)
        method = Method(local=local, shared_lr=0.1, batch_size=100)
        plan = Plan(personalize=Training(method=method, rounds=1, devices_per_round=len(devices)))
        return pipeline(task, Partition(task.model(), personal="offset"), plan).shared

    devices = affine_devices(3)
    alone = [step(LocalAlt, {device: splits})["slope.weight"].double() for device, splits in devices.items()]
    weights = torch.tensor([5.0, 6.0, 7.0]).double() ** 2

    together = step(Heavy, devices)["slope.weight"].double()

    expected = sum(w * one for w, one in zip(weights, alone, strict=True)) / weights.sum()
    assert together.allclose(expected, atol=1e-6)


def test_hyperparameters_are_given_to_declared_functions_by_name() -> None:
    class Scaled(Shifted):
        def __init__(self, *, shift: float = 2.0, **steps: Any) -> None:
            super().__init__(**steps)

    zero = {"offset": torch.zeros(1)}
    for local, shift in ((Scaled, 2.0), (partial(Scaled, shift=5.0), 5.0)):
        begins = declared(local, "begins")
        assert begins is not None
        assert begins({}, zero, {})["offset"].item() == shift


class Unknown(LocalAlt):
    @staticmethod
    def begins(shared: Params, personal: Params, kept: Params) -> Params:
        return {"nothing": torch.zeros(1)}


def test_a_value_for_a_tensor_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot begin with 'nothing': neither part has that tensor"):
        train(Unknown)


class LocalPAC(LocalAlt):
    """As in FedPAC, personal heads would go to the server, which combines them for each device."""

    def __init__(self, *, carried: Any, **steps: Any) -> None:
        super().__init__(**steps)

    @staticmethod
    def sends(shared: Params, personal: Params) -> dict[str, Sent]:
        return {f"head/{name}": Sent(tensor) for name, tensor in personal.items()}


class NamedPAC(LocalAlt):
    """Would send personal tensors under their own names."""

    def __init__(self, *, carried: Any, **steps: Any) -> None:
        super().__init__(**steps)

    @staticmethod
    def sends(shared: Params) -> dict[str, Sent]:
        return {"offset": Sent(torch.zeros(1))}


@pytest.mark.parametrize(
    ("local", "words"),
    [
        (LocalPAC, "`sends` must be a function of the shared part alone, got one of shared, personal"),
        (NamedPAC, "cannot carry 'offset'"),
    ],
)
def test_a_method_that_declares_to_send_personal_parameters_is_refused(local: Any, words: str) -> None:
    model = Affine()
    partition = Partition(model, personal="offset")

    with pytest.raises(ValueError, match=words):
        sent_by(local, partition, partition.of(model).shared)
    with pytest.raises(ValueError, match=words):
        train(local)


CONFIG = """
[task]
kind = "small:affine_task"
[partition]
personal = "output"
[pretrain]
rounds = 0
[personalize]
rounds = 1
devices_per_round = 2
"""


def test_in_a_config_it_is_one_line_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("small.LocalPAC", LocalPAC, raising=False)
    (tmp_path / "mine.toml").write_text(CONFIG)

    assert main(["run", "mine.toml", "personalize.method=small:LocalPAC"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("partita: `personalize.method`: `sends` must be a function of the shared part")
    assert line.endswith("so no method can declare to send them.")
    assert not (tmp_path / "runs").exists()


def test_describe_lists_what_a_method_keeps_sends_and_declares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(CONFIG)

    def lines(method: str) -> list[str]:
        assert main(["describe", "mine.toml", f"personalize.method={method}"]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("`")]

    assert lines("fedalt") == []
    assert lines("fedala") == [
        "`fedala` keeps on a device, besides v: `ala/old/slope.weight` (1 x 3), "
        "`ala/mixing/slope.weight` (1 x 3), `ala/learned` (1).",
        "`fedala` declares: `begins` (how a device's own model begins).",
    ]
    assert lines("scaffold")[1].startswith("`scaffold` sends besides the change of u: `control/")
