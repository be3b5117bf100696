"""The personal parts of a comparison."""

from typing import Any

import pytest
from torch import nn

from compared import values
from partita import Adapters
from partita.models.convnet import ConvNet
from partita.studies.cells import base_of, cells_of
from partita.studies.partitions import Compared, compared_partitions


def compared(model: nn.Module, **partition: Any) -> Compared:
    config = values("fedalt", partition=partition, compare={"partitions": [], "seeds": 1})
    return compared_partitions(base_of(config), model)


class Named(nn.Sequential):
    def __init__(self, **parts: Any) -> None:
        super().__init__(nn.Linear(2, 2), nn.Linear(2, 1))
        self.parts = parts


@pytest.mark.parametrize(
    ("personal", "parts", "names"),
    [
        (["1.*"], {}, ["1.*"]),
        ("output", {"output": "1.*", "adapter": Adapters(after="0")}, ["output", "adapter"]),
        ("none", {"input": "0.*", "head": "1.*"}, ["input"]),
        ("head", {"input": "0.*", "head": "1.*"}, ["input", "head"]),
    ],
)
def test_without_a_list_the_parts_of_the_paper_and_of_the_config_are_compared(
    personal: Any, parts: dict[str, Any], names: list[str]
) -> None:
    assert compared(Named(**parts), personal=personal).names == names


def test_a_part_of_the_model_that_is_frozen_is_left_out_with_the_reason() -> None:
    found = compared(ConvNet(), personal="output", frozen=["stem.*"])

    assert found.names == ["output", "adapter"]
    assert found.notes == [
        "The personal part `input` is not compared: [partition] `stem.weight` is selected as personal and as frozen."
    ]


def test_a_frozen_rest_is_the_same_tensors_beside_every_other_partition() -> None:
    config = values(
        "finetune",
        "fedalt",
        partition={"personal": ["head.*"], "shared": ["hidden.*"], "frozen": "rest"},
        compare={"partitions": ["head.*", "hidden.*"], "seeds": 1},
    )
    frozen = ["body.bias", "body.weight", "stem.bias", "stem.weight"]

    found = cells_of(config, devices=6, partitions=compared_partitions(base_of(config), ConvNet()))

    sections = {cell.kind: cell.values["partition"] for cell in found}
    own = {"personal": ["head.*"], "shared": ["hidden.*"], "frozen": "rest"}
    assert sections == {
        "start": {"personal": "none", "frozen": frozen},
        "local": {"frozen": frozen},
        "fedavg": {"frozen": frozen},
        "finetune": {"frozen": frozen},
        "finetune-continued": {"frozen": frozen},
        "fedalt-head.": own,
        "fedalt-hidden.": {"personal": ["hidden.*"], "frozen": frozen},
    }
