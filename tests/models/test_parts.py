"""Partitions by name."""

import pytest
import torch
from torch import nn

from partita import full
from partita.models.convnet import ConvNet
from partita.models.full import Full, proximity
from partita.models.parts import named_partition, named_patterns, partition_names


def test_counts_by_hand() -> None:
    # stem 9*16+16, body 9*16*32+32, hidden (32*4*4)*64+64, head 64*10+10
    stem, body, hidden, head = 160, 4640, 32832, 650
    total = stem + body + hidden + head
    model = ConvNet()

    counts = {
        name: tuple(named_partition(model, name).partition.count(part) for part in ("personal", "shared"))
        for name in partition_names(model)
    }

    assert counts == {
        "none": (0, total),
        "input": (stem, total - stem),
        "output": (head, total - head),
        "head": (head, total - head),
        # A norm of 2c and a convolution of c^2 after each convolution, of 16 and 32 channels.
        "adapter": (2 * 16 + 16**2 + 2 * 32 + 32**2, total),
        "full": (total, total),
    }


def test_a_model_that_names_nothing_can_still_be_none_or_full() -> None:
    assert partition_names(nn.Linear(1, 1)) == ["none", "full"]
    with pytest.raises(ValueError, match="Linear names no part 'output'. Known: none, full"):
        named_partition(nn.Linear(1, 1), "output")


def test_full_uses_the_devices_copy_and_pulls_it_to_the_shared_one() -> None:
    partition = full(nn.Linear(1, 1), proximal=3.0)
    model = partition.prepare(nn.Linear(1, 1))
    model.personal.weight.data.fill_(2.0)
    model.shared.weight.data.fill_(0.5)
    model.personal.bias.data.copy_(model.shared.bias.data)

    assert model(torch.ones(1, 1)).item() == pytest.approx(2.0 + model.personal.bias.item())
    # 3/2 (2 - 1/2)^2
    assert partition.penalty is not None
    assert partition.penalty(model).item() == pytest.approx(3.375)
    assert proximity(model, strength=1.0).item() == pytest.approx(1.125)


def test_full_gives_a_loss_what_the_model_has() -> None:
    class Encoder(nn.Linear):
        def encode(self, inputs: torch.Tensor) -> torch.Tensor:
            return self(inputs) * 2

    model = Full(Encoder(1, 1))

    assert torch.equal(model.encode(torch.ones(1, 1)), model.personal.encode(torch.ones(1, 1)))
    with pytest.raises(AttributeError, match="decode"):
        _ = model.decode


def test_without_a_pull_there_is_no_penalty() -> None:
    assert full(nn.Linear(1, 1), proximal=0.0).penalty is None


def test_a_pull_keeps_no_third_model_for_the_backward_pass() -> None:
    model = full(nn.Linear(3, 3)).prepare(nn.Linear(3, 3))
    saved: list[int] = []

    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        proximity(model, strength=1.0)

    assert set(saved) <= {parameter.data_ptr() for parameter in model.parameters()}


class Norms(nn.Module):
    """Norms of every kind: with statistics, without, without any tensor, and one in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 1)
        self.batch = nn.BatchNorm2d(4)
        self.group = nn.GroupNorm(2, 4)
        self.bare = nn.InstanceNorm2d(4)
        self.layers = nn.ModuleList([nn.LayerNorm(4), nn.Linear(4, 4), nn.RMSNorm(4)])
        self.again = self.layers[0]


def test_norm_is_all_that_norms_hold_and_nothing_else() -> None:
    partition = named_partition(Norms(), "norm").partition

    assert partition.names("shared") == ("first.weight", "first.bias", "layers.1.weight", "layers.1.bias")
    assert partition.names("personal") == (
        *("batch.weight", "batch.bias", "batch.running_mean", "batch.running_var"),
        *("batch.num_batches_tracked", "group.weight", "group.bias"),
        *("layers.0.weight", "layers.0.bias", "layers.2.weight"),
    )


def test_a_models_own_part_called_norm_comes_first() -> None:
    class Named(Norms):
        @property
        def parts(self) -> dict[str, str]:
            return {"norm": "group.*"}

    assert named_partition(Named(), "norm").partition.names("personal") == ("group.weight", "group.bias")


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential(nn.Conv1d(1, 2, 1), nn.InstanceNorm1d(2))])
def test_a_model_without_anything_in_its_norms_has_no_such_part(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="has no normalization layers, such as BatchNorm or GroupNorm."):
        named_partition(model, "norm")


def test_patterns_of_a_part_by_its_name() -> None:
    assert named_patterns(ConvNet(), "output") == ["head.*"]
    assert named_patterns(nn.Sequential(nn.Linear(1, 1), nn.LayerNorm(1)), "norm") == ["1.*"]
    with pytest.raises(
        ValueError, match="The part 'adapter' adds modules to the model: it can only be `personal`"
    ):
        named_patterns(ConvNet(), "adapter")
