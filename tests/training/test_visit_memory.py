"""The peak memory of a visit against sums worked by hand: u has 3 values and v has 1, 4 bytes each."""

from collections.abc import Sequence
from typing import Any

import torch

from partita import Devices, FedAlt, FedAvg, Finetuning, Partition, Plan, Task, Training
from partita.methods import registry
from partita.methods.method import Method
from partita.partition import Personalization
from partita.training.costs import cost_model_of
from partita.training.visit_memory import visit_costs
from small import affine_devices, affine_task

U, V = 12, 4
SAVED = 12 + 4
"""What backpropagation keeps of an example: its 3 inputs for the gradient of u, and its error."""


def costs(task: Task | None = None, personal: Sequence[str] = ("offset",), **stages: Any) -> dict[str, Any]:
    task = task or affine_task()
    own = Personalization(Partition(task.model(), personal=personal))
    return visit_costs(cost_model_of(task, seed=1), own, Plan(**stages))


def training(method: Method) -> Training:
    return Training(method=method, rounds=1, devices_per_round=2)


def test_a_training_round_is_the_papers_formula_at_the_batch_size() -> None:
    found = costs(personalize=training(FedAlt(batch_size=3)))

    assert found == {"visit_bytes": 3 * U + 2 * V + 3 * SAVED, "visit_examples": 3}


def test_no_batch_is_larger_than_the_largest_device() -> None:
    found = costs(personalize=training(FedAlt(batch_size=1000)))

    # The devices have 5, 6, ..., 10 training examples; those of the first one are repeated.
    assert found == {"visit_bytes": 3 * U + 2 * V + 10 * SAVED, "visit_examples": 10}


def test_where_the_largest_device_is_not_known_the_batch_size_counts() -> None:
    known = affine_devices()
    lazy = affine_task(devices=Devices(known, known.__getitem__))
    told = affine_task(devices=Devices(known, known.__getitem__, largest=lambda: 10))

    # Not the number of examples of the first device, 5.
    unknown, largest = (costs(task, personalize=training(FedAlt(batch_size=32))) for task in (lazy, told))

    assert unknown == {"visit_bytes": 3 * U + 2 * V + 32 * SAVED, "visit_examples": 32}
    assert largest == {"visit_bytes": 3 * U + 2 * V + 10 * SAVED, "visit_examples": 10}


def test_the_model_takes_the_same_gradients_afterwards() -> None:
    task = affine_task()
    model = cost_model_of(task, seed=1)
    model.model.offset.requires_grad_(False)
    before = {name: parameter.requires_grad for name, parameter in model.model.named_parameters()}
    own = Personalization(Partition(task.model(), personal="offset"))

    visit_costs(model, own, Plan(finetune=Finetuning(epochs=1, batch_size=3)))

    assert {name: p.requires_grad for name, p in model.model.named_parameters()} == before


def test_the_state_of_the_optimizer_counts() -> None:
    found = costs(personalize=training(FedAlt(batch_size=3, optimizer=torch.optim.Adam)))

    # Two moments of every value, and a step of 4 bytes for each of the two tensors.
    assert found["visit_bytes"] == 3 * U + 2 * V + 3 * SAVED + 2 * (U + V) + 2 * 4


def test_what_a_method_keeps_and_sends_counts() -> None:
    method = Method(local=registry.find("scaffold").update, batch_size=3)
    plain, controlled = (
        costs(personal=(), personalize=training(each))["visit_bytes"]
        for each in (FedAvg(batch_size=3), method)
    )

    # A device's own control, and the server's now and as it was received.
    assert controlled - plain == 3 * (U + V)


def test_finetuning_has_no_gradient_of_the_shared_part() -> None:
    found = costs(finetune=Finetuning(epochs=1, batch_size=3))

    # No input is kept where u takes no gradient.
    assert found == {"visit_bytes": 2 * U + 2 * V + 3 * 4, "visit_examples": 3}


def test_the_largest_stage_counts() -> None:
    stages = {
        "pretrain": training(FedAvg(batch_size=2)),
        "personalize": training(FedAlt(batch_size=4)),
        "finetune": Finetuning(epochs=1, batch_size=3),
    }

    assert costs(**stages) == costs(personalize=stages["personalize"])


def test_a_loss_that_fails_is_a_reason() -> None:
    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("no loss")

    found = costs(affine_task(loss=fail), personalize=training(FedAlt()))

    assert found == {"visit_bytes": None, "visit_examples": None, "visit_reason": "RuntimeError: no loss"}


def test_without_training_there_is_no_visit_to_count() -> None:
    assert costs() == {"visit_bytes": None, "visit_examples": None}
