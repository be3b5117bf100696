"""What holds the personal part back: the pull of l2, and training that keeps nothing of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from partita import (
    FedAlt,
    FedAvg,
    FedSim,
    Finetuning,
    Partition,
    Personalization,
    Plan,
    Regularization,
    Steps,
    Training,
    pipeline,
    run,
)
from partita.cli import main
from partita.device.store import DiskStore
from partita.params import cloned
from small import Affine, Both, affine_devices, affine_task, point_task, same_bits


def test_without_strength_nothing_is_pulled() -> None:
    # v: 1 - 1/2 (1 - 3) = 2;  2 - 1/2 (2 - 3) = 5/2.  u: 1/2 (3 - 5/2) = 1/4.
    partition = Personalization(
        Partition(Both(), personal="v"), regularization=Regularization(l2=0.0, l2_to="start")
    )

    result = run(point_task(), partition, FedAlt(shared_lr=0.5, personal_epochs=2), rounds=1)

    assert (result.personal("d0")["v"].item(), result.shared["u"].item()) == (5 / 2, 1 / 4)


# From u = 0, v = 1 at the target 3, with rates of 1/2 and l2 = 1/2, two steps on v with u = 0:
#   zero:   v: 1 - 1/2 (-2 + 1/2 * 1) = 7/4;  7/4 - 1/2 (-5/4 + 1/2 * 7/4) = 31/16
#   start:  v: 1 - 1/2 (-2 + 1/2 * 0) = 2;    2 - 1/2 (-1 + 1/2 * 1)       = 9/4
# Then one step on u:  1/2 (3 - v).
PULLS = [("zero", 31 / 16, 17 / 32), ("start", 9 / 4, 3 / 8)]


@pytest.mark.parametrize(("toward", "v", "u"), PULLS)
def test_l2_pulls_the_personal_part_and_nothing_else_in_an_update(toward: Any, v: float, u: float) -> None:
    task = point_task()
    partition = Personalization(
        Partition(Both(), personal="v"), regularization=Regularization(l2=0.5, l2_to=toward)
    )

    result = run(task, partition, FedAlt(shared_lr=0.5, personal_epochs=2), rounds=1)

    assert result.personal("d0")["v"].item() == v
    assert result.shared["u"].item() == u


def test_in_a_later_round_the_start_is_still_the_start() -> None:
    # The second round begins with v = 9/4 and u = 3/8, and pulls v to 1:
    #   v: 9/4 - 1/2 (-3/8 + 1/2 * 5/4) = 17/8;  17/8 - 1/2 (-1/2 + 1/2 * 9/8) = 67/32
    #   u: 3/8 - 1/2 (3/8 + 67/32 - 3) = 41/64
    partition = Personalization(
        Partition(Both(), personal="v"), regularization=Regularization(l2=0.5, l2_to="start")
    )

    result = run(point_task(), partition, FedAlt(shared_lr=0.5, personal_epochs=2), rounds=2)

    assert result.personal("d0")["v"].item() == 67 / 32
    assert result.shared["u"].item() == 41 / 64


@pytest.mark.parametrize(("toward", "v"), [(toward, v) for toward, v, _ in PULLS])
def test_l2_pulls_in_finetuning(toward: Any, v: float) -> None:
    partition = Personalization(
        Partition(Both(), personal="v"), regularization=Regularization(l2=0.5, l2_to=toward)
    )

    result = pipeline(point_task(), partition, Plan(finetune=Finetuning(personal_lr=0.5, epochs=2)))

    assert result.personal("d0")["v"].item() == v
    assert result.shared["u"].item() == 0.0


def test_the_start_that_l2_pulls_to_is_the_pretrained_one() -> None:
    # Pretraining: u = 0 + 1/4 * 2 = 1/2, v = 3/2. Then v: 3/2 + 1/2 * 1 = 2;  2 - 1/2 (-1/2 + 1/2 * 1/2) = 17/8.
    partition = Personalization(
        Partition(Both(), personal="v"), regularization=Regularization(l2=0.5, l2_to="start")
    )
    plan = Plan(
        pretrain=Training(method=FedAvg(shared_lr=0.25), rounds=1, devices_per_round=1),
        finetune=Finetuning(personal_lr=0.5, epochs=2),
    )

    result = pipeline(point_task(), partition, plan)

    assert result.shared["u"].item() == 0.5
    assert result.personal("d0")["v"].item() == 17 / 8


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("partition.l2=-1", "[partition] `l2` must be a finite number, 0 or above, got -1.0."),
        ("partition.l2=nan", "[partition] `l2` must be a finite number, 0 or above, got nan."),
        ("partition.l2=inf", "[partition] `l2` must be a finite number, 0 or above, got inf."),
        ("partition.l2_to=middle", "`partition.l2_to` must be 'zero' or 'start', got 'middle'."),
        (
            "personalize.proximal=-1",
            "[personalize] `proximal` must be a finite number, 0 or above, got -1.0.",
        ),
        ("partition.l2=strong", "`partition.l2` must be a number, got 'strong'."),
    ],
)
def test_a_bad_strength_is_refused_in_one_line(
    override: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["run", override]) == 2

    assert capsys.readouterr().err == f"partita: {words}\n"
    assert list(tmp_path.iterdir()) == []


def seen_by(kind: Callable[..., Any], seen: list[dict[str, Tensor]]) -> Callable[..., Any]:
    """The same update, which writes down the personal part with which every visit begins."""

    def spying(*, personal: Steps, shared: Steps) -> Any:
        def update(model: Any, partition: Partition, batches: Any, loss: Any) -> list[float]:
            seen.append(cloned(partition.of(model).personal))
            return kind(personal=personal, shared=shared)(model, partition, batches, loss)

        return update

    return spying


@pytest.mark.parametrize("method", [FedAlt, FedSim])
def test_stateless_visits_all_begin_with_the_same_v_and_store_nothing(method: Any, tmp_path: Path) -> None:
    task = affine_task()
    seen: list[dict[str, Tensor]] = []
    spy = method(shared_lr=0.1, local=seen_by(method(shared_lr=0.1).local, seen), stateful=False)
    pretrain = Training(method=FedAvg(shared_lr=0.1), rounds=2, devices_per_round=3)
    personalize = Training(method=spy, rounds=4, devices_per_round=3)
    partition = Partition(Affine(), personal="offset")

    result = pipeline(task, partition, Plan(pretrain=pretrain, personalize=personalize), out=tmp_path / "run")

    assert len(seen) == 12
    assert seen[0]["offset"].item() != 0.0
    assert all(same_bits(one, seen[0]) for one in seen)
    assert list((tmp_path / "run/personal").iterdir()) == []
    assert all(same_bits(result.personal(device), seen[0]) for device in task.devices)


@pytest.mark.parametrize("method", [FedAlt, FedSim])
def test_after_stateless_training_v_is_finetuned_from_its_start_and_stored(
    method: Any, tmp_path: Path
) -> None:
    task = affine_task()
    plan = Plan(
        pretrain=Training(method=FedAvg(shared_lr=0.1), rounds=2, devices_per_round=3),
        personalize=Training(
            method=method(shared_lr=0.1, personal_lr=0.3, stateful=False), rounds=3, devices_per_round=3
        ),
        finetune=Finetuning(personal_lr=0.25, epochs=1, batch_size=100),
    )
    partition = Partition(Affine(), personal="offset")
    start = pipeline(task, partition, Plan(pretrain=plan.pretrain)).personal("d0")["offset"].item()

    result = pipeline(task, partition, plan, out=tmp_path / "run")

    slope = result.shared["slope.weight"].numpy().ravel().astype(float)
    store = DiskStore(tmp_path / "run/personal")
    for device, splits in affine_devices().items():
        inputs, targets = (field.numpy().astype(float) for field in splits["train"])
        expected = start - 0.25 * (inputs @ slope + start - targets).mean()
        assert result.personal(device)["offset"].item() == pytest.approx(expected, abs=1e-5)
        assert same_bits(store.load(device) or {}, result.personal(device))
