"""Tensors by name: remembered, and looked up again where a module holds others."""

import copy
import gc
import weakref

import torch
from torch import Tensor, nn

from partita.partition import Partition
from partita.partition.tensors import look_inside, tensors_of


class Layers(nn.Module):
    """A model with everything that can be replaced: parameters, buffers of both kinds, layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.again = self.layer
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("mask", torch.ones(2), persistent=False)


class Saves(nn.Linear):
    """A layer whose state is not what it holds."""

    def state_dict(self, *arguments: object, **options: object) -> dict[str, Tensor]:
        return {"copy": self.weight.detach().clone()}


class AlwaysEval(nn.Linear):
    """A layer with its own way of being put in train mode."""

    def train(self, mode: bool = True) -> "AlwaysEval":
        return super().train(mode=False)


def walked(model: nn.Module) -> list[tuple[str, int]]:
    return [(name, id(tensor)) for name, tensor in model.state_dict(keep_vars=True).items()]


def found(model: nn.Module) -> list[tuple[str, int]]:
    return [(name, id(tensor)) for name, tensor in tensors_of(model).items()]


def test_tensors_are_those_of_the_state_after_any_replacement() -> None:
    model = Layers()

    def replace_layer() -> None:
        model.again = nn.Linear(2, 2)

    changes = (
        lambda: None,
        lambda: setattr(model, "count", torch.ones(1)),
        lambda: setattr(model.layer, "weight", nn.Parameter(torch.zeros(2, 2))),
        replace_layer,
        lambda: model.add_module("more", nn.Linear(1, 1)),
        lambda: model.register_buffer("further", torch.zeros(1)),
        lambda: delattr(model, "norm"),
        lambda: model.register_module("later", None),
        lambda: setattr(model, "later", nn.Linear(1, 1)),
        lambda: setattr(model.layer, "_parameters", dict(model.again._parameters)),
        lambda: setattr(model.layer, "bias", None),
    )
    for change in changes:
        change()

        assert found(model) == walked(model)
        assert tensors_of(model) is tensors_of(model)


def test_a_replaced_buffer_that_is_not_in_the_state_is_seen() -> None:
    model = Layers()
    assert look_inside(model).scratch["mask"] is model.mask

    model.mask = torch.zeros(2)

    assert list(look_inside(model).scratch) == ["mask"]
    assert look_inside(model).scratch["mask"] is model.mask


def test_a_state_that_modules_do_not_hold_is_asked_for_each_time() -> None:
    model = Saves(2, 2)
    first = tensors_of(model)["copy"].clone()

    with torch.no_grad():
        model.weight.add_(1)

    assert torch.equal(tensors_of(model)["copy"], first + 1)


def test_parts_follow_a_replaced_tensor_and_a_copied_model() -> None:
    model = Layers()
    partition = Partition(model, personal="norm.*")
    assert partition.of(model) is partition.of(model)

    model.norm.running_mean = torch.ones(2)
    twin = copy.deepcopy(model)

    assert partition.of(model).personal["norm.running_mean"] is model.norm.running_mean
    assert partition.of(twin).personal["norm.running_mean"] is twin.norm.running_mean


def test_modes_are_set_as_by_the_model_itself() -> None:
    model = nn.Sequential(nn.Dropout(), AlwaysEval(1, 1), nn.Sequential(nn.Dropout()))
    model.eval()

    look_inside(model).set_training(training=True)
    assert [module.training for module in model.modules()] == [True, True, False, True, True]

    look_inside(model).set_training(training=False)
    assert not any(module.training for module in model.modules())


def test_no_parameter_takes_a_gradient_where_none_is_wanted() -> None:
    model = Layers()

    look_inside(model).stop_gradients()

    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_remembered_model_is_freed() -> None:
    model = Layers()
    Partition(model).of(model)
    model.layer.parent = [model]  # A cycle through a child.
    alive = weakref.ref(model)

    del model
    gc.collect()

    assert alive() is None
