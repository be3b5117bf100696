"""Stack Overflow by author, in TensorFlow Federated's files: sentences of questions and answers."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from partita.data.importers.source import Row, Survey
from partita.data.importers.tff import check_minimums, choose_devices, open_examples, read_device
from partita.data.importers.tff_examples import Examples, Layout, Split
from partita.data.writing import ColumnKind, ProgressFn
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
    """Stack Overflow with a device per author, for a fixed sample of the authors with enough sentences.

    A text is the source's `tokens`: lowercase words separated by spaces. The source's held-out authors are
    not used.
    """

    path: Path
    """The folder with `stackoverflow_train.h5` and `stackoverflow_test.h5`, or `stackoverflow.sqlite`."""
    min_train_examples: int = 100
    """Devices with fewer training examples are dropped."""
    min_test_examples: int = 10
    """Devices with fewer test examples are dropped."""
    max_examples: int = 1000
    """The maximum number of training examples per device: the first ones are kept."""
    devices: int = 1000
    """The number of devices: those whose ids have the smallest SHA-256 digests. 0: all."""

    def __post_init__(self) -> None:
        check_minimums(self.min_train_examples, self.min_test_examples)
        if self.max_examples < 1:
            raise ConfigError(f"`max_examples` must be at least 1, got {self.max_examples}.")
        if self.devices < 0:
            raise ConfigError(f"`devices` must be at least 0, got {self.devices}.")

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """The column of content: a text."""
        return {"text": "text"}

    def survey(self, progress: ProgressFn) -> Survey:
        """Return the sample of the authors with enough examples."""
        enough, dropped = choose_devices(self._examples, self._minimums, progress)
        devices = _sample(enough, self.devices or len(enough))
        dropped["not in the sample"] = len(enough) - len(devices)
        self._examples.keep(devices, progress)
        return Survey(devices, dropped, paper=_PAPER if self == StackOverflow(path=self.path) else None)

    def rows(self, device: DeviceId) -> Iterator[Row]:
        """Yield an author's sentences."""
        limits: Mapping[Split, int | None] = {"train": self.max_examples, "test": None}
        for split, where, example in read_device(self._examples, device, self._minimums, limits):
            yield {"split": split, "text": _text(example["tokens"], where)}

    @property
    def _minimums(self) -> Mapping[Split, int]:
        return {"train": self.min_train_examples, "test": self.min_test_examples}

    @cached_property
    def _examples(self) -> Examples:
        return open_examples(_LAYOUT, self.path)


def _sample(devices: Sequence[DeviceId], count: int) -> list[DeviceId]:
    """Return the `count` devices whose ids have the smallest digests, sorted by id."""
    digests = {device: hashlib.sha256(device.encode()).digest() for device in devices}
    return sorted(sorted(devices, key=lambda device: digests[device])[:count])


def _text(values: Sequence[Any], where: str) -> str:
    if len(values) != 1 or not isinstance(values[0], bytes):
        got = f"{len(values)} values" if len(values) != 1 else repr(values[0])
        raise ConfigError(f"{where}: `tokens` must be one byte string, got {got}.")
    try:
        return values[0].decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: `tokens` must be UTF-8, got {values[0]!r}.") from error
