"""Data sets of TensorFlow Federated: their files opened, and the devices with enough examples chosen."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from partita.data.importers.source import Tick
from partita.data.importers.tff_examples import SIDES, Example, Examples, Layout, Side, place
from partita.data.importers.tff_hdf5 import Hdf5Examples
from partita.data.importers.tff_sqlite import SqliteExamples
from partita.errors import ConfigError
from partita.protocol import DeviceId

_NAMES: Mapping[Side, str] = {"train": "training", "test": "test"}


def open_examples(layout: Layout, path: Path) -> Examples:
    """Return the examples at `path`: a folder of HDF5 files, or an SQLite file."""
    right = f"give the folder of {_listed(layout)}, or the file `{layout.sqlite}`"
    if path.is_dir():
        for name in layout.hdf5.values():
            if not (path / name).is_file():
                raise ConfigError(f"There is no `{name}` in `{path}`: {right}.")
        return Hdf5Examples(layout, path)
    if not path.is_file():
        raise ConfigError(f"There is no `{path}`: {right}.")
    if path.name in layout.hdf5.values():
        raise ConfigError(f"`{path}` is one of several files: {right}.")
    return SqliteExamples(layout, path)


def choose_devices(
    examples: Examples, least: Mapping[Side, int], tick: Tick
) -> tuple[list[DeviceId], dict[str, int]]:
    """Return the devices with enough examples of each side, and how many have not by the first reason."""
    reasons = {side: f"fewer than {least[side]} {_NAMES[side]} examples" for side in SIDES}
    dropped = dict.fromkeys(reasons.values(), 0)
    kept: list[DeviceId] = []
    for device, train, test in examples.counts(tick):
        if train < least["train"]:
            dropped[reasons["train"]] += 1
        elif test < least["test"]:
            dropped[reasons["test"]] += 1
        else:
            kept.append(device)
    return kept, dropped


def read_device(
    examples: Examples, device: DeviceId, least: Mapping[Side, int], most: Mapping[Side, int | None]
) -> Iterator[tuple[Side, str, Example]]:
    """Yield a device's examples, those to train on first, with their side and how errors name them."""
    for side in SIDES:
        file, limit = examples.file(side), most[side]
        found = 0
        for example in examples.read(device, side, limit):
            yield side, place(file, device, side, found), example
            found += 1
        expected = least[side] if limit is None else min(least[side], limit)
        if found < expected:
            raise ConfigError(
                f"`{file}`, device {device!r}: there must be at least {expected} {_NAMES[side]} examples, "
                f"as the file counts them, got {found}."
            )


def check_least(train: int, test: int) -> None:
    """Check the least numbers of examples of a device."""
    if train < 1:
        raise ConfigError(f"`least_train` must be at least 1, got {train}.")
    if test < 0:
        raise ConfigError(f"`least_test` must be at least 0, got {test}.")


def _listed(layout: Layout) -> str:
    return " and ".join(f"`{name}`" for name in layout.hdf5.values())
