"""The personal parts that devices must have after the committed rounds of a run.

Every file says which round it is of, and `rounds.jsonl` says in which rounds a device was counted. So a file
that is missing, or is an older copy, is noticed.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from partita.device.part_files import ROUND, SUFFIX, about_file
from partita.device.store import DiskStore
from partita.errors import Damaged
from partita.protocol import DeviceId, Stage, label_of
from partita.seals import damaged
from partita.training.journal import RoundRow

KEEPING, RESETS = "keeping", "resets"
"""The entries of `commit.json` with the stages in which all counted devices keep something, and with devices
that have started again."""


@dataclass(frozen=True, kw_only=True)
class Reset:
    """A device that has lost its personal part and has started again."""

    device: DeviceId
    rounds: int
    """The number of lines of `rounds.jsonl` before."""


def resets_in(commit: Mapping[str, Any]) -> list[Reset]:
    """Return the devices that have started again, in order."""
    return [Reset(**values) for values in commit.get(RESETS, ())]


Lines = Callable[[], Iterable[RoundRow]]
"""Returns the committed lines of `rounds.jsonl`, those of unseen devices too."""


def expected_parts(commit: Mapping[str, Any], lines: Lines) -> dict[DeviceId, str]:
    """Return the label of the round that each device's personal part is of, by the content of `commit.json`.

    A stage that has stopped early has gone back to its best round, whose number its final evaluation has.
    """
    return _labels(commit, lines, _ends(lines))


def part_problems(commit: Mapping[str, Any], lines: Lines, store: DiskStore) -> Iterator[Damaged]:
    """Yield an error for each personal part that is missing, is of another round, or must not exist yet.

    Only the headers of files are read.
    """
    ends = _ends(lines)
    labels = _labels(commit, lines, ends)
    earlier, best, stage = labels, commit["best"], commit["stage"]
    if best is not None and stage not in ends and (store.copies.is_restoring or not store.copies):
        # Devices may have gone back to the best round already, which no commit has recorded yet.
        earlier = _labels(commit, lines, {**ends, stage: best})
    for device, label in labels.items():
        try:
            found = store.round_of(device)
        except Damaged as error:
            yield error
            continue
        if found not in (label, earlier.get(device)) and not store.has_saved(device, label):
            yield store.damaged(device, found and f"it is of the round `{found}`, and not of `{label}`")
    yield from _unexpected(commit, {*labels, *earlier}, store)


def _unexpected(commit: Mapping[str, Any], expected: set[DeviceId], store: DiskStore) -> Iterator[Damaged]:
    """Yield an error for each personal part of a device that no committed round has counted.

    Such a file comes from a copy of the folder that was made later, or from another run.
    """
    expected |= {reset.device for reset in resets_in(commit)}
    paths = {store.path_of(device) for device in expected}
    for path in sorted(store.folder.glob(f"*{SUFFIX}")):
        if path in paths:
            continue
        try:
            found = about_file(path) or {}
        except ValueError as error:
            yield damaged(path, str(error))
            continue
        label = found.get(ROUND, "").rstrip()
        if commit.get(KEEPING, {}).get(label.rpartition("-")[0]) is not False:
            yield damaged(path, f"it is of the round `{label}`, in which no device of that name was counted")


def check_parts(commit: Mapping[str, Any], lines: Lines, store: DiskStore) -> None:
    """Move the personal parts of the last commit to their places, and raise if one is not as it must be."""
    store.commit(commit["label"], commit["counted"], commit["asked"])
    for problem in part_problems(commit, lines, store):
        raise problem
    if commit["best"] is not None:
        store.copies.check(label_of(Stage(commit["stage"]), commit["best"]))


def _ends(lines: Lines) -> dict[str, int]:
    """Return the number of rounds after which each stage has ended, as its final evaluation says."""
    return {
        line["stage"]: line["round"]
        for line in lines()
        if line["work"] == "evaluate" and line["final"] and line.get("seen", True)
    }


def _labels(commit: Mapping[str, Any], lines: Lines, ends: Mapping[str, int]) -> dict[DeviceId, str]:
    """Return the label of each device's last counted round, before the rounds at which stages end."""
    keeping, resets = commit.get(KEEPING, {}), resets_in(commit)
    labels: dict[DeviceId, str] = {}
    for number, line in enumerate(chain(lines(), [None])):
        for reset in resets:
            if reset.rounds == number:
                labels.pop(reset.device, None)
        if line is None or line["work"] == "evaluate" or not keeping.get(line["stage"]):
            continue
        if line["work"] != "update" or line["round"] < ends.get(line["stage"], math.inf):
            labels |= dict.fromkeys(line["heard"], label_of(Stage(line["stage"]), line["round"]))
    return labels
