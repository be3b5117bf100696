"""Full personalization: every device has a whole model, pulled toward the shared one.

Ditto: Fair and Robust Federated Learning Through Personalization
    T. Li, S. Hu, A. Beirami, V. Smith. ICML 2021.
    https://arxiv.org/abs/2012.04221
"""

import copy
from collections.abc import Set
from functools import partial
from typing import Any

from torch import Tensor, nn

from partita.params import Params, pull
from partita.partition import Partition, Personalization, Regularization, Selection
from partita.partition.selection import exactly, is_rest
from partita.partition.tensors import tensors_of


class Full(nn.Module):
    """A whole model for the device (`personal`) beside the one that all devices share (`shared`).

    The forward pass uses the device's model; only the penalty connects the two. Both have the same frozen
    tensors, by the names in `frozen`.
    """

    def __init__(self, model: nn.Module, *, frozen: Set[str] = frozenset()) -> None:
        super().__init__()
        kept = [tensor for name, tensor in tensors_of(model).items() if name in frozen]
        self.shared = copy.deepcopy(model, {id(tensor): tensor for tensor in kept})
        self.personal = model

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return the output of the device's model."""
        return self.personal(*inputs, **options)

    def __getattr__(self, name: str) -> Any:
        """Look up attributes of the device's model, so that a loss may use them."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("personal"), name)


def proximity(model: nn.Module, *, strength: float) -> Tensor:
    """Return (strength / 2) ||personal - shared||^2 of a `Full` model."""
    shared = dict(model.get_submodule("shared").named_parameters())
    own = dict(model.get_submodule("personal").named_parameters())
    moving = {name: parameter for name, parameter in own.items() if parameter is not shared[name]}
    return pull(moving, shared, strength=strength)


def copy_of_shared(shared: Params) -> dict[str, Tensor]:
    """Return the personal part of a `Full` model that equals its shared part."""
    return {f"personal.{name.removeprefix('shared.')}": tensor for name, tensor in shared.items()}


def full(
    model: nn.Module,
    *,
    proximal: float = 0.1,
    follows: bool = False,
    frozen: Selection = (),
    regularization: Regularization | None = None,
) -> Personalization:
    """Give each device a whole model, pulled toward the shared one.

    It minimizes the average over devices of F_i(v_i) + (proximal / 2) ||v_i - u||^2.

    Args:
        model: the plain model.
        proximal: strength of the pull.
        follows: whether a device that has kept no model starts from the current shared model instead of
            from the one that all devices started with.
        frozen: tensors of the plain model that are neither trained nor sent: all models have the same.
        regularization: dropout and L2 penalty on the device's model.
    """
    if is_rest(frozen):
        raise ValueError("The partition `full` is the rest: `frozen` must be a list of patterns, got 'rest'.")
    if not 0 <= proximal < float("inf"):
        raise ValueError(f"`proximal` must be a finite number, 0 or above, got {proximal!r}.")
    plain = Partition(model, frozen=frozen)
    if not plain.trained("shared"):
        raise ValueError("The partition `full` needs a parameter that is not frozen.")
    state, names = tensors_of(model), plain.frozen_before.always
    partition = Partition(
        model,
        personal=exactly(f"personal.{name}" for name in state if name not in names),
        shared=exactly(f"shared.{name}" for name in state if name not in names),
        frozen=exactly(f"{model}.{name}" for model in ("shared", "personal") for name in names),
        prepare=partial(Full, frozen=names),
    )
    return Personalization(
        partition,
        regularization=regularization or Regularization(),
        penalty=partial(proximity, strength=proximal) if proximal else None,
        start=copy_of_shared if follows else None,
    )
