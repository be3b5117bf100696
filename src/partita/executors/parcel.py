"""The storage of one visit far from the device's own: what came with its order, and what goes back."""

from collections.abc import Sequence

from torch import Tensor

from partita.params import Params, cloned
from partita.protocol import DeviceId


class Parcel:
    """A `Store` that holds the personal part of the visited device, and of no other.

    Whoever sent it saves, commits and restores; see `device.store`.
    """

    def __init__(self) -> None:
        self.saved: Params | None = None
        """The new personal part, if the visit has saved one."""
        self.preserves = False
        """Whether the old one must be preserved before the new one is saved."""
        self._kept: Params | None = None

    def fill(self, kept: Params | None) -> None:
        """Put in what a device keeps, in place, before a visit."""
        self._kept, self.saved, self.preserves = kept, None, False

    def load(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Return a copy of what the device keeps."""
        return None if self._kept is None else cloned(self._kept)

    def save(self, device: DeviceId, label: str, personal: Params) -> None:
        """Take a copy of the new personal part."""
        self.saved = cloned(personal)

    def preserve(self, device: DeviceId, label: str) -> None:
        """Note that the old personal part must be preserved."""
        self.preserves = True

    def sync(self, label: str, asked: Sequence[DeviceId]) -> None:
        """Do nothing: nothing is stored here."""

    def commit(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Do nothing: nothing is stored here."""

    def restore(self, label: str) -> None:
        """Do nothing: nothing is stored here."""
