"""Full personalization, as a partition: every device has a whole model, pulled towards the shared one.

Ditto: Fair and Robust Federated Learning Through Personalization
    T. Li, S. Hu, A. Beirami, V. Smith. ICML 2021.
    https://arxiv.org/abs/2012.04221
"""

import copy
from functools import partial
from typing import Any, Unpack

from torch import Tensor, nn

from partita.params import Params, pull
from partita.partition import Partition, Regularization


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
    return pull(dict(model.get_submodule("personal").named_parameters()), shared, strength=strength)


def followed(shared: Params) -> dict[str, Tensor]:
    """Return the personal part of a `Full` model that is as the shared one."""
    return {f"personal.{name.removeprefix('shared.')}": tensor for name, tensor in shared.items()}


def full(
    model: nn.Module, *, proximal: float = 0.1, follows: bool = False, **others: Unpack[Regularization]
) -> Partition:
    """Return the partition that gives each device a whole model, pulled towards the shared one.

    It minimizes the average over devices of F_i(v_i) + (proximal / 2) ||v_i - u||^2.

    Args:
        model: the model to give.
        proximal: the strength of the pull.
        follows: whether a device that has kept no model begins with the shared one as it is then, and not
            as it was at the beginning.
        others: `dropout`, `l2` and `l2_to`, as in `Partition`.
    """
    if not 0 <= proximal < float("inf"):
        raise ValueError(f"`proximal` must be a finite number, 0 or above, got {proximal!r}.")
    return Partition(
        model,
        personal="personal.*",
        shared="shared.*",
        prepare=Full,
        penalty=partial(proximity, strength=proximal) if proximal else None,
        begin=followed if follows else None,
        **others,
    )
