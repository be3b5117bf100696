"""SCAFFOLD against its Algorithm 1 in NumPy, and the tensors that a method keeps and sends."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from partita import (
    Averaging,
    Evaluation,
    FedAvg,
    Finetuning,
    LocalAlt,
    LocalScaffold,
    Method,
    Partition,
    Plan,
    Result,
    Sent,
    Task,
    Training,
    pipeline,
)
from partita.executors.serial import SerialExecutor
from partita.params import Params, cloned
from partita.protocol import Evaluate, Failure, Finetune, Order, Reply, Update, derive_seed
from partita.tasks.build import one_thread
from small import Affine, Normed, affine_devices, affine_task, normed_task, same_bits

ROUNDS, COHORT, STEPS, RATE, SERVER_RATE = 6, 2, 3, 0.1, 0.75


def scaffold(**settings: Any) -> Method:
    return Method(
        local=LocalScaffold,
        **({"shared_lr": RATE, "shared_steps": STEPS, "batch_size": 1000, "weights": "equal"} | settings),
    )


def train(
    method: Method,
    *,
    rounds: int = ROUNDS,
    task: Task | None = None,
    partition: Partition | None = None,
    finetune: Finetuning | None = None,
    **options: Any,
) -> Result:
    task = task or affine_task()
    training = Training(
        method=method, rounds=rounds, devices_per_round=COHORT, server=Averaging(lr=SERVER_RATE)
    )
    plan = Plan(personalize=training, finetune=finetune, evaluate=Evaluation(every=2))
    return pipeline(task, partition or Partition(task.model()), plan, **options)


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Order, Reply | Failure]]:
    """Every order of a run with what came back, the changes of updates included."""
    exchanged: list[tuple[Order, Reply | Failure]] = []

    class Listening(SerialExecutor):
        def _ask(self, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
            for order in orders:
                with one_thread():
                    answer = self._visitor(order)
                exchanged.append((order, answer))
                yield answer

    monkeypatch.setattr("partita.studies.local.SerialExecutor", Listening)
    return exchanged


def flat(params: Params, prefix: str = "") -> np.ndarray:
    """The slope and the offset, or their control variates, as one vector."""
    tensors = [params[f"{prefix}{name}"] for name in ("slope.weight", "offset")]
    return torch.cat([tensor.flatten() for tensor in tensors]).double().numpy()


def kept_by(result: Result, device: str) -> Params:
    return result._models.record.kept(device) or {}


def algorithm_1(rounds: int) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """x and c before each round and after the last, and every c_i: full batches, option II, float64."""
    torch.manual_seed(derive_seed(1, "model"))
    x, c = flat(Affine().state_dict()), np.zeros(4)
    data = []
    for splits in affine_devices().values():
        inputs, targets = (field.numpy().astype(float) for field in splits["train"])
        data.append((np.column_stack([inputs, np.ones(len(targets))]), targets))
    own = np.zeros((len(data), 4))
    xs, cs = [x], [c]
    for t in range(rounds):
        sampler = random.Random(derive_seed(1, "personalized", t, "cohort"))
        dys, dcs = [], []
        for i in sampler.sample(range(len(data)), COHORT):
            y = x.copy()
            for _ in range(STEPS):
                columns, targets = data[i]
                gradient = columns.T @ (columns @ y - targets) / len(targets)
                y = y - RATE * (gradient - own[i] + c)
            new = own[i] - c + (x - y) / (STEPS * RATE)
            dys.append(y - x)
            dcs.append(new - own[i])
            own[i] = new
        x = x + SERVER_RATE / COHORT * np.sum(dys, axis=0)
        c = c + np.sum(dcs, axis=0) / len(data)
        xs.append(x)
        cs.append(c)
    return xs, cs, own


def test_scaffold_is_its_algorithm_in_every_round(traffic: list[tuple[Order, Reply]]) -> None:
    result = train(scaffold())

    xs, cs, own = algorithm_1(ROUNDS)
    updates = [order for order, _ in traffic if isinstance(order.work, Update)]
    assert len(updates) == ROUNDS * COHORT
    for order in updates:
        np.testing.assert_allclose(flat(order.shared), xs[order.round], atol=5e-6)
        np.testing.assert_allclose(flat(order.shared, "control/"), cs[order.round], atol=5e-6)
    np.testing.assert_allclose(flat(result.shared), xs[-1], atol=5e-6)
    asked = {order.device for order in updates}
    for number, device in enumerate(affine_devices()):
        if device in asked:
            np.testing.assert_allclose(flat(kept_by(result, device), "control/"), own[number], atol=5e-6)
        else:
            assert not kept_by(result, device)
            assert not own[number].any()


def test_control_variates_change_the_result() -> None:
    plain = FedAvg(shared_lr=RATE, shared_steps=STEPS, batch_size=1000, weights="equal")

    first, later = (
        [train(method, rounds=rounds).shared for method in (scaffold(), plain)] for rounds in (1, 4)
    )

    # All controls are 0 in the first round, in which SCAFFOLD is FedAvg.
    assert same_bits(*first)
    assert not same_bits(*later)


def test_control_variates_are_sent_with_updates_alone(traffic: list[tuple[Order, Reply]]) -> None:
    train(scaffold())

    model = {"slope.weight", "offset"}
    controls = {"control/slope.weight", "control/offset"}
    for order, reply in traffic:
        if isinstance(order.work, Update):
            assert set(order.shared) == model | controls
            assert set(reply.change or {}) == model | controls
        else:
            assert isinstance(order.work, Evaluate)
            assert set(order.shared) == model
            assert reply.change is None
        assert not order.start.personal
    assert {type(order.work) for order, _ in traffic} == {Update, Evaluate}


def test_sent_tensors_are_counted_in_bytes() -> None:
    lines: list[Any] = []

    train(scaffold(), watch=lambda line, *_: lines.append(line))

    # Four numbers of four bytes, and a control for each in an update.
    sizes = {"update": {"down": COHORT * 32, "up": COHORT * 32}, "evaluate": {"down": 6 * 16, "up": 0}}
    assert {line["work"] for line in lines} == set(sizes)
    assert all(line["bytes"] == sizes[line["work"]] for line in lines)


def test_a_device_keeps_exactly_the_declared_tensors(tmp_path: Path) -> None:
    result = train(scaffold(), out=tmp_path / "run")

    kept = [kept_by(result, device) for device in affine_devices()]
    assert all(set(one) == {"control/slope.weight", "control/offset"} for one in kept if one)
    assert any(kept)
    # Nothing of it is in what the run leaves behind as its model.
    assert set(result.shared) == {"slope.weight", "offset"}
    assert result.personal("d0") == {}


def test_only_trained_parameters_have_a_control_variate() -> None:
    task = normed_task()

    result = train(scaffold(batch_size=3, shared_lr=0.05), task=task)

    (names, *others) = [set(kept) for device in task.devices if (kept := kept_by(result, device))]
    assert names == {f"control/{name}" for name, _ in Normed().named_parameters()}
    assert all(other == names for other in others)
    assert result.shared["body.1.num_batches_tracked"].item() > 0


def test_a_personal_part_is_kept_beside_the_control_variates_and_finetuned(
    traffic: list[tuple[Order, Reply]],
) -> None:
    task = affine_task()
    partition = Partition(task.model(), personal="offset")

    trained = train(scaffold(), partition=partition)
    finetuned = train(scaffold(), partition=partition, finetune=Finetuning(personal_lr=0.1, epochs=1))

    asked = next(order.device for order, _ in traffic if isinstance(order.work, Update))
    assert set(kept_by(trained, asked)) == {"offset", "control/slope.weight"}
    assert set(trained.personal(asked)) == {"offset"}
    assert same_bits(trained.shared, finetuned.shared)
    assert all(finetuned.personal(device)["offset"].item() != 0.0 for device in task.devices)
    for order, reply in traffic:
        if isinstance(order.work, Finetune):
            assert (set(order.shared), reply.change) == ({"slope.weight"}, None)


def test_a_device_that_fails_changes_no_control_variate(traffic: list[tuple[Order, Reply]]) -> None:
    devices = affine_devices(2)
    inputs, targets = devices["d1"]["train"]
    devices["d1"]["train"] = inputs, targets * float("nan")

    result = train(scaffold(), rounds=2, task=affine_task(devices=devices))

    # One of two devices is heard: c is its control, over 2.
    last = [order for order, _ in traffic if isinstance(order.work, Update)][-1]
    first = next(
        reply for order, reply in traffic if (order.device, order.round) == ("d0", 0) and reply.change
    )
    np.testing.assert_allclose(
        flat(last.shared, "control/"), flat(first.change or {}, "control/") / 2, rtol=1e-6
    )
    assert not kept_by(result, "d1")


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits_wherever_it_stopped(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def read(folder: Path) -> dict[str, bytes]:
        names = {"rounds.jsonl", "commit.json", "config.toml"}
        files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        return {str(name): path.read_bytes() for name, path in files.items() if path.name not in names}

    turns: list[int] = []
    train(scaffold(), rounds=4, out=tmp_path / "whole", watch=lambda line, done, total: turns.append(total))
    whole = read(tmp_path / "whole")
    assert len([name for name in whole if name.startswith("personal/")]) > COHORT

    for moment in range(1, turns[0]):

        def stop(line: Any, done: int, total: int, *, at: int = moment) -> None:
            if done == at:
                raise Killed

        folder = tmp_path / f"run-{moment}"
        with pytest.raises(Killed):
            train(scaffold(), rounds=4, out=folder, watch=stop)
        train(scaffold(), rounds=4, out=folder, resume=True)

        assert read(folder) == whole


class Carrying(LocalAlt):
    """Sends tensors under names of the model's."""

    def __init__(self, *, carried: Any, **steps: Any) -> None:
        super().__init__(**steps)

    @staticmethod
    def sends(shared: Params) -> dict[str, Sent]:
        return {name: Sent(tensor) for name, tensor in cloned(shared).items()}


class Keeping(LocalAlt):
    """Keeps a tensor under a name of the model's."""

    def __init__(self, *, carried: Any, **steps: Any) -> None:
        super().__init__(**steps)

    @staticmethod
    def keeps(shared: Params, personal: Params) -> Params:
        return {"offset": torch.zeros(1)}


@pytest.mark.parametrize(("local", "name"), [(Carrying, "slope.weight"), (Keeping, "offset")])
def test_a_method_that_carries_a_name_of_the_model_is_refused(local: Any, name: str) -> None:
    partition = Partition(Affine(), personal="offset")

    with pytest.raises(ValueError, match=f"cannot carry '{name}': the model has a tensor of that name."):
        train(Method(local=local, shared_lr=0.1), partition=partition)
