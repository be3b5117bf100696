"""The phases that an update declares, against the parts that it lets move."""

from itertools import pairwise, repeat
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import Carried, LocalRoD, OwnExamples, Partition, Personalization, Steps, full
from partita.data.examples import examples_of
from partita.methods import registry
from partita.methods.carried import kept_by, make_update, phases_of, sent_by
from partita.methods.descent import LossFn
from partita.models.parts import named_partition
from partita.params import cloned
from small import Affine, class_task, square_error


def in_two_models() -> tuple[Personalization, nn.Module, OwnExamples | None, LossFn]:
    own = full(Affine())
    return own, own.prepare(Affine()), None, square_error


def with_second_head() -> tuple[Personalization, nn.Module, OwnExamples | None, LossFn]:
    task = class_task()
    own = named_partition(task.model(), "second_head")
    examples = OwnExamples(examples_of(task.devices["d0"]["train"]), 4, task.predict)
    return own, own.prepare(task.model()), examples, task.loss


@pytest.mark.parametrize("name", registry.names())
def test_an_update_moves_the_parts_of_its_phases_and_no_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = registry.find(name).update
    own, model, examples, loss = with_second_head() if name == "fedrod" else in_two_models()
    batch = examples.batch_at(torch.arange(4)) if examples else (torch.ones(2, 3), torch.ones(2))
    parts, moved, let_move = own.partition.of(model), [], Partition.let_move
    carried = Carried(
        kept=cloned(kept_by(local, own.partition, parts)),
        sent={key: each.tensor for key, each in sent_by(local, own.partition, parts.shared).items()},
    )
    steps = Steps(count=1, lr=0.1)
    update = make_update(local, personal=steps, shared=steps, carried=carried, examples=examples)

    def record(self: Partition, model: Any, *moves: Any) -> Any:
        moved.append(moves)
        return let_move(self, model, *moves)

    monkeypatch.setattr(Partition, "let_move", record)
    update(model, own.partition, repeat(batch), loss)

    assert [set(moves) for moves in moved] == [set(moves) for moves in phases_of(local)]


def test_each_phase_of_fedrod_changes_its_part_alone() -> None:
    own, model, examples, loss = with_second_head()
    assert examples is not None
    batch, seen = examples.batch_at(torch.arange(4)), list[dict[str, Tensor]]()

    def recording(model: nn.Module, batch: Any) -> Tensor:
        seen.append(cloned(dict(model.state_dict())))
        return loss(model, batch)

    update = LocalRoD(shared=Steps(count=2, lr=0.5), personal=Steps(count=2, lr=0.5), examples=examples)
    update(model, own.partition, repeat(batch), recording)

    # Two steps on the shared part, two on the second head; a state is seen before each step.
    states = [*seen, dict(model.state_dict())]
    changed = [{n for n in one if not one[n].equal(other[n])} for one, other in pairwise(states)]
    shared, personal = (set(own.partition.names(part)) for part in ("shared", "personal"))
    assert changed == [shared, shared, personal, personal]
