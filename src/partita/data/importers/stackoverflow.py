"""Stack Overflow by author, as TensorFlow Federated has it: questions and answers, a sentence each."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from partita.data.importers.source import Kind, Row, Survey, Tick
from partita.data.importers.tff import check_least, choose_devices, open_examples, read_device
from partita.data.importers.tff_examples import Examples, Layout, Side
from partita.errors import ConfigError
from partita.protocol import DeviceId

_LAYOUT = Layout(
    command="partita import stackoverflow",
    hdf5={"train": "stackoverflow_train.h5", "test": "stackoverflow_test.h5"},
    sqlite="stackoverflow.sqlite",
    splits={"train": "train", "test": "test"},
    members=("tokens",),
)
_PAPER = 1000


@dataclass(frozen=True, kw_only=True)
class StackOverflow:
    """A fixed sample of Stack Overflow's authors with enough sentences, a device each.

    A text is the source's `tokens`: words in lower case with a space between. The authors held out by the
    source are not used.
    """

    path: Path
    """The folder of `stackoverflow_train.h5` and `stackoverflow_test.h5`, or `stackoverflow.sqlite`."""
    least_train: int = 100
    """The least training examples of a device that is kept."""
    least_test: int = 10
    """The least test examples of a device that is kept."""
    most_train: int = 1000
    """The most training examples of a device that are kept, the first ones."""
    devices: int = 1000
    """How many devices with enough examples to keep, those whose ids' SHA-256 digests come first; 0: all."""

    def __post_init__(self) -> None:
        check_least(self.least_train, self.least_test)
        if self.most_train < 1:
            raise ConfigError(f"`most_train` must be at least 1, got {self.most_train}.")
        if self.devices < 0:
            raise ConfigError(f"`devices` must be at least 0, got {self.devices}.")

    @property
    def columns(self) -> Mapping[str, Kind]:
        """The content's one column, a text."""
        return {"text": "text"}

    def survey(self, tick: Tick) -> Survey:
        """Return the sample of the authors with enough examples."""
        enough, dropped = choose_devices(self._examples, self._least, tick)
        devices = _sample(enough, self.devices or len(enough))
        dropped["not in the sample"] = len(enough) - len(devices)
        self._examples.keep(devices, tick)
        return Survey(devices, dropped, paper=_PAPER if self == StackOverflow(path=self.path) else None)

    def rows(self, device: DeviceId) -> Iterator[Row]:
        """Yield an author's sentences."""
        most: Mapping[Side, int | None] = {"train": self.most_train, "test": None}
        for side, where, example in read_device(self._examples, device, self._least, most):
            yield {"split": side, "text": _text(example["tokens"], where)}

    @property
    def _least(self) -> Mapping[Side, int]:
        return {"train": self.least_train, "test": self.least_test}

    @cached_property
    def _examples(self) -> Examples:
        return open_examples(_LAYOUT, self.path)


def _sample(devices: Sequence[DeviceId], count: int) -> list[DeviceId]:
    """Return `count` of the devices in the order of ids; what else there is never changes who comes first."""
    digests = {device: hashlib.sha256(device.encode()).digest() for device in devices}
    return sorted(sorted(devices, key=lambda device: digests[device])[:count])


def _text(values: Sequence[Any], where: str) -> str:
    if len(values) != 1 or not isinstance(values[0], bytes):
        got = f"{len(values)} values" if len(values) != 1 else repr(values[0])
        raise ConfigError(f"{where}: `tokens` must be one string of bytes, got {got}.")
    try:
        return values[0].decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: `tokens` must be UTF-8, got {values[0]!r}.") from error
