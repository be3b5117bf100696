"""Full personalization, as a partition: every device has a whole model, pulled towards the shared one.

Ditto: Fair and Robust Federated Learning Through Personalization
    T. Li, S. Hu, A. Beirami, V. Smith. ICML 2021.
    https://arxiv.org/abs/2012.04221
"""

import copy
from functools import partial
from typing import Any

from torch import Tensor, nn

from partita.partition import Partition


class Full(nn.Module):
    """A whole model for the device (`personal`) beside the one that all share (`shared`).

    The forward pass uses the device's; what the two have to do with each other is in the penalty.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.shared = copy.deepcopy(model)
        self.personal = model

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return the output of the device's model."""
        return self.personal(*inputs, **options)

    def __getattr__(self, name: str) -> Any:
        """Find what the model itself would have, so that a loss may use it."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("personal"), name)


def proximity(model: nn.Module, *, strength: float) -> Tensor:
    """Return (strength / 2) ||personal - shared||^2 of a `Full` model."""
    shared = dict(model.get_submodule("shared").named_parameters())
    # `mse_loss` keeps the two tensors for the backward pass and not their difference, a third model.
    squares = [
        nn.functional.mse_loss(own, shared[name], reduction="sum")
        for name, own in model.get_submodule("personal").named_parameters()
    ]
    return 0.5 * strength * sum(squares[1:], squares[0])


def full(model: nn.Module, *, proximal: float = 0.1, dropout: float = 0.0) -> Partition:
    """Return the partition that gives each device a whole model, pulled towards the shared one.

    It minimises the average over devices of F_i(v_i) + (proximal / 2) ||v_i - u||^2.

    Args:
        model: the model to give.
        proximal: the strength of the pull.
        dropout: as in `Partition`.
    """
    if not 0 <= proximal < float("inf"):
        raise ValueError(f"`proximal` must be a finite number, 0 or above, got {proximal!r}.")
    return Partition(
        model,
        personal="personal.*",
        shared="shared.*",
        prepare=Full,
        penalty=partial(proximity, strength=proximal) if proximal else None,
        dropout=dropout,
    )
