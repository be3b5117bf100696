"""The peak memory of a visit against sums worked by hand: u has 3 values and v has 1, 4 bytes each.

In a step on u, the largest: the model, u as received and its gradient are 3 U + V.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from partita import Devices, FedAlt, FedAvg, FedSim, Finetuning, Partition, Plan, Task, Training
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


def test_parts_that_move_one_after_the_other_do_not_need_their_gradients_together() -> None:
    found = costs(personalize=training(FedAlt(batch_size=3)))

    assert found == {"visit_bytes": 3 * U + V + 3 * SAVED, "visit_examples": 3}


def test_where_both_parts_move_at_once_it_is_the_papers_formula() -> None:
    found = costs(personalize=training(FedSim(batch_size=3)))

    assert found == {"visit_bytes": 3 * U + 2 * V + 3 * SAVED, "visit_examples": 3}


def test_an_update_that_does_not_say_what_moves_counts_as_one_that_moves_both_parts() -> None:
    def own(**_: object) -> Any:
        return lambda model, partition, batches, loss: []

    found = costs(personalize=training(Method(local=own, batch_size=3)))

    assert found == {"visit_bytes": 3 * U + 2 * V + 3 * SAVED, "visit_examples": 3}


def test_writing_a_large_personal_part_takes_twice_its_size() -> None:
    # Now u is the offset, 4 bytes, and v has 12; a step on v needs less than the file: 12 + 16.
    found = costs(personal=("slope.*",), personalize=training(FedAlt(batch_size=1)))
    alone = costs(personal=("slope.*",), personalize=training(FedAlt(batch_size=1, stateful=False)))

    assert found["visit_bytes"] == (V + U) + V + (U + SAVED)
    assert alone["visit_bytes"] == found["visit_bytes"]


def test_a_tied_tensor_has_two_gradients_beside_their_sum() -> None:
    def twice(model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0]).square().mean() + model(batch[0]).abs().mean()

    def once(model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0]).square().mean()

    found = [
        costs(affine_task(loss=loss), personalize=training(FedAlt(batch_size=1))) for loss in (once, twice)
    ]

    # u is used twice; the second time its input is saved already, its output and the sign's input are not.
    assert found[1]["visit_bytes"] - found[0]["visit_bytes"] == 2 * U + 4


def test_no_batch_is_larger_than_the_largest_device() -> None:
    found = costs(personalize=training(FedAlt(batch_size=1000)))

    # The devices have 5, 6, ..., 10 training examples; those of the first one are repeated.
    assert found == {"visit_bytes": 3 * U + V + 10 * SAVED, "visit_examples": 10}


def test_where_the_largest_device_is_not_known_the_batch_size_counts() -> None:
    known = affine_devices()
    lazy = affine_task(devices=Devices(known, known.__getitem__))
    told = affine_task(devices=Devices(known, known.__getitem__, largest=lambda: 10))

    # Not the number of examples of the first device, 5.
    unknown, largest = (costs(task, personalize=training(FedAlt(batch_size=32))) for task in (lazy, told))

    assert unknown == {"visit_bytes": 3 * U + V + 32 * SAVED, "visit_examples": 32}
    assert largest == {"visit_bytes": 3 * U + V + 10 * SAVED, "visit_examples": 10}


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

    # In the step on u: two moments of every value, and a step of 4 bytes.
    assert found["visit_bytes"] == 3 * U + V + 3 * SAVED + 2 * U + 4


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
