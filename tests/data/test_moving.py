"""Moving: every tensor in a batch of any kind, and nothing else."""

from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from partita.data.moving import moved

META = torch.device("meta")


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Record:
    tensor: Tensor
    name: str
    length: int = field(init=False, default=3)


class Own:
    """A batch that knows how to move itself."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def to(self, device: torch.device) -> "Own":
        return Own(self.tensor.to(device))


def test_tensors_move_in_containers_of_any_kind_which_keep_their_own() -> None:
    one = torch.ones(2)
    batch: dict[str, Any] = {
        "tuple": (one, [one, "text"]),
        "pair": Pair(one, one),
        "record": Record(one, "name"),
        "own": Own(one),
        "ordered": OrderedDict(a=one),
        "user": UserDict(a=one),
        "packed": pack_sequence([one]),
        "texts": ["one", "two"],
        "none": None,
        "number": 3,
    }

    there = moved(batch, META)

    found = [
        *(there["tuple"][0], there["tuple"][1][0], *there["pair"], there["record"].tensor),
        *(there["own"].tensor, there["ordered"]["a"], there["user"]["a"], there["packed"].data),
    ]
    assert {tensor.device for tensor in found} == {META}
    assert {kind: type(there[kind]) for kind in ("pair", "record", "own", "ordered", "user", "packed")} == {
        "pair": Pair,
        "record": Record,
        "own": Own,
        "ordered": OrderedDict,
        "user": UserDict,
        "packed": PackedSequence,
    }
    assert (there["tuple"][1][1], there["texts"], there["none"], there["number"]) == (
        "text",
        ["one", "two"],
        None,
        3,
    )
    assert (there["record"].name, there["record"].length) == ("name", 3)
    assert one.device.type == batch["record"].tensor.device.type == "cpu"
