"""The phases that an update declares, against the parts that it lets move."""

from itertools import repeat
from typing import Any

import pytest
import torch

from partita import Carried, Partition, Steps, full
from partita.methods import registry
from partita.methods.carried import kept_by, make_update, phases_of, sent_by
from partita.params import cloned
from small import Affine, square_error


# Not FedRoD, which needs a second head: its phases are only covered by the loop in tests/laws/test_fedrod.py.
@pytest.mark.parametrize("name", [name for name in registry.names() if name != "fedrod"])
def test_an_update_moves_the_parts_of_its_phases_and_no_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, own = registry.find(name).update, full(Affine())
    model = own.prepare(Affine())
    parts, moved, let_move = own.partition.of(model), [], Partition.let_move
    carried = Carried(
        kept=cloned(kept_by(local, own.partition, parts)),
        sent={key: each.tensor for key, each in sent_by(local, own.partition, parts.shared).items()},
    )
    update = make_update(
        local, personal=Steps(count=1, lr=0.1), shared=Steps(count=1, lr=0.1), carried=carried
    )

    def record(self: Partition, model: Any, *moves: Any) -> Any:
        moved.append(moves)
        return let_move(self, model, *moves)

    monkeypatch.setattr(Partition, "let_move", record)
    update(model, own.partition, repeat((torch.ones(2, 3), torch.ones(2))), square_error)

    assert [set(moves) for moves in moved] == [set(moves) for moves in phases_of(local)]
