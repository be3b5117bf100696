"""A device's model, loaded before its visit, and the tensors that the device keeps after it.

The personal part comes from the device's own store and goes back there, with all else that the method
declares to keep.
"""

from collections.abc import Mapping

import torch

from partita.device.answers import check_finite
from partita.device.placement import Placement
from partita.device.roles import Role
from partita.device.store import Store, check_shapes
from partita.device.workbench import Workbench
from partita.errors import ConfigError
from partita.methods.carried import Carried, carries, kept_by, sent_by
from partita.methods.own_model import begin
from partita.params import Params, cloned, copy_into
from partita.partition import Partition, Personalization
from partita.partition.padding import narrowed
from partita.protocol import Evaluate, Order, Stage


class Loader:
    """Loads models for visits, and saves what devices keep.

    Args:
        roles: how devices learn in each stage.
        store: storage of personal parts.
        place: where visits compute.
    """

    def __init__(self, roles: Mapping[Stage, Role], store: Store, place: Placement) -> None:
        self._roles = roles
        self._store = store
        self._place = place
        self._starts: dict[str, Params] = {}

    def load(self, bench: Workbench, order: Order) -> Params:
        """Load every part of the visit's model, in place, and return all that the device has kept."""
        # An update that draws a batch before it says what moves is taken to move everything.
        trains = not isinstance(order.work, Evaluate)
        parts = bench.partition.let_move(bench.model, "personal", "shared") if trains else bench.parts
        copy_into(parts.shared, sent_of(order, parts.shared))
        kept = self._kept(order, bench.partition)
        try:
            copy_into(parts.personal, self._personal(order, bench.personalization, kept))
        except ValueError as error:
            raise ConfigError(
                f"The personal part of device {order.device!r} does not fit its model: {error}"
            ) from error
        bench.restore_scratch()
        return kept

    def begin(self, bench: Workbench, order: Order, kept: Params) -> None:
        """Let the device's own model begin as its method declares, in place."""
        begin(self._roles[order.stage].own, bench.model, bench.partition, kept, self._place.to)

    def carried(self, bench: Workbench, order: Order, kept: Params) -> Carried:
        """Return the tensors that the stage's method declares besides the model."""
        local = self._roles[order.stage].method.local
        if not carries(local):
            return Carried(kept={}, sent={})
        parts = bench.parts
        first = kept_by(local, bench.partition, parts)
        sent = sent_by(local, bench.partition, parts.shared)
        return Carried(
            kept=cloned(self._place.to({name: kept.get(name, tensor) for name, tensor in first.items()})),
            sent=cloned(self._place.to(sent_of(order, {name: each.tensor for name, each in sent.items()}))),
        )

    def save(self, personal: Params, order: Order, shapes: Mapping[str, torch.Size]) -> None:
        """Save what a device keeps, unless it is nothing.

        Raises:
            CannotDo: a value is not finite.
        """
        if personal:
            personal = self._place.back(personal)
            check_shapes(order.device, personal, shapes)
            check_finite("personal part", personal)
            if order.keep is not None:
                self._store.preserve(order.device, order.keep)
            self._store.save(order.device, order.label, personal)

    def start(self, order: Order) -> Params:
        """Return the initial personal part of an order that was sent with it, or with one before."""
        return self._starts.get(order.start.digest, {})

    def _kept(self, order: Order, partition: Partition) -> Params:
        if order.start.personal is not None:
            self._starts[order.start.digest] = order.start.personal
        if not partition.names("personal") and not carries(self._roles[order.stage].method.local):
            return {}
        return self._store.load(order.device) or {}

    def _personal(self, order: Order, own: Personalization, kept: Params) -> Params:
        """Return the personal part that the visit begins with: the device's saved one, or the initial one."""
        is_global = isinstance(order.work, Evaluate) and order.work.model == "global"
        uses_kept = self._roles[order.stage].method.stateful and not is_global
        if uses_kept and (personal := own.partition.personal_in(kept)):
            return personal
        if own.start is not None and not is_global:
            return own.start(order.shared)
        return self._starts[order.start.digest]


def sent_of(order: Order, like: Params) -> Params:
    """Return the tensors of an order that have the names of others, as much of each as these have."""
    return {name: narrowed(order.shared[name], tensor.shape) for name, tensor in like.items()}
