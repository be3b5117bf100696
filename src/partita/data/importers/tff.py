"""Data sets of TensorFlow Federated: opening their files, and choosing devices with enough examples."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from partita.data.importers.tff_examples import SPLITS, Example, Examples, Layout, Split, location
from partita.data.importers.tff_hdf5 import Hdf5Examples
from partita.data.importers.tff_sqlite import SqliteExamples
from partita.data.writing import ProgressFn
from partita.errors import ConfigError
from partita.protocol import DeviceId

_NAMES: Mapping[Split, str] = {"train": "training", "test": "test"}


def open_examples(layout: Layout, path: Path) -> Examples:
    """Return the examples at `path`: a folder of HDF5 files, or an SQLite file."""
    files = " and ".join(f"`{name}`" for name in layout.hdf5.values())
    right = f"give the folder with {files}, or the file `{layout.sqlite}`"
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
    examples: Examples, minimums: Mapping[Split, int], progress: ProgressFn
) -> tuple[list[DeviceId], dict[str, int]]:
    """Return the devices with enough examples in each split, and the number of the others by reason."""
    reasons = {split: f"fewer than {minimums[split]} {_NAMES[split]} examples" for split in SPLITS}
    dropped = dict.fromkeys(reasons.values(), 0)
    kept: list[DeviceId] = []
    for device, train, test in examples.counts(progress):
        if train < minimums["train"]:
            dropped[reasons["train"]] += 1
        elif test < minimums["test"]:
            dropped[reasons["test"]] += 1
        else:
            kept.append(device)
    return kept, dropped


def read_device(
    examples: Examples, device: DeviceId, minimums: Mapping[Split, int], limits: Mapping[Split, int | None]
) -> Iterator[tuple[Split, str, Example]]:
    """Yield a device's examples, training examples first, each with its split and its location."""
    for split in SPLITS:
        file, limit = examples.file(split), limits[split]
        found = 0
        for example in examples.read(device, split, limit):
            yield split, location(file, device, split, found), example
            found += 1
        expected = minimums[split] if limit is None else min(minimums[split], limit)
        if found < expected:
            raise ConfigError(
                f"`{file}`, device {device!r}: there must be at least {expected} {_NAMES[split]} examples, "
                f"as the file's own counts say, got {found}."
            )


def check_minimums(train: int, test: int) -> None:
    """Raise a `ConfigError` unless both are valid minimum numbers of examples."""
    if train < 1:
        raise ConfigError(f"`min_train_examples` must be at least 1, got {train}.")
    if test < 0:
        raise ConfigError(f"`min_test_examples` must be at least 0, got {test}.")
