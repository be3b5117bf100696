"""Checking a run's folder: everything in it is read, and each problem is one sentence."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from partita.device.part_files import COPY, DEVICE, SUFFIX, about_file, content_of_copy
from partita.errors import ConfigError, Damaged
from partita.protocol import DeviceId, Stage, key_of, label_of
from partita.runs.folder import RunFolder
from partita.runs.onboarded import onboardings_of
from partita.runs.opening import has_lost_commit
from partita.runs.tensors import content_of, part_problems, store_of, tensors_in
from partita.sealed_tensors import unsealed_tensors
from partita.seals import damaged, missing

Problems = list[str]
"""Sentences, each about a file that is damaged or missing; functions add to it in place."""


def problems_of(run: RunFolder) -> Problems:
    """Return a sentence for each file of a run that is damaged or missing.

    Its Finetune baseline and its onboardings are included.

    Raises:
        ConfigError: another version of Partita has written the run.
    """
    found: Problems = []
    with _noted(found):
        _ = run.values, run.commit, run.is_finished
        if has_lost_commit(run):
            raise missing(run.commit_file)
    if found:
        return found
    if run.is_earlier:
        raise ConfigError(
            f"The run in `{run.path}` was written by an earlier version of Partita, whose files have no "
            "sha256 to check."
        )
    found += run.recorded.problems(is_finished=run.is_finished)
    for path in run.checkpoints:
        with _noted(found):
            content_of(run, path)
    _check_unrecorded(run, found)
    _check_parts(run, found)
    _check_copies(run, found)
    if (inner := RunFolder(run.baseline_folder)).exists or inner.commit_file.exists():
        found += problems_of(inner)
    for onboarding in onboardings_of(run):
        if onboarding.folder.exists or onboarding.folder.commit_file.exists():
            with _noted(found):
                _ = onboarding.is_again  # It raises if `onboarding.json` is damaged.
            found += problems_of(onboarding.folder)
    return list(dict.fromkeys(found))


def refuse(problems: Problems, folder: Path) -> None:
    """Raise the first problem of a folder, if there is one, and say how many there are."""
    if problems:
        others = f" `partita check {folder}` lists all {len(problems)} problems." if len(problems) > 1 else ""
        raise Damaged(f"{problems[0]}{others}")


@contextmanager
def _noted(found: Problems) -> Iterator[None]:
    """Add the error about a damaged file to the problems, in place."""
    try:
        yield
    except Damaged as error:
        found.append(str(error))
    except FileNotFoundError as error:
        found.append(str(missing(Path(error.filename))))


def _check_unrecorded(run: RunFolder, found: Problems) -> None:
    """Check the tensors of the shared files that no commit has recorded: they carry a digest."""
    recorded = run.recorded
    for path in sorted(run.shared_folder.glob(f"*{SUFFIX}")):
        if not recorded.has(path):
            with _noted(found):
                tensors_in(path)


def _check_parts(run: RunFolder, found: Problems) -> None:
    """Check that every device has the personal part of its last round, and that all can be read."""
    lost: list[Damaged] = []
    with _noted(found):
        lost += part_problems(run)
    found += map(str, lost)
    named = {error.args[0].split("`")[1] for error in lost}
    owners = {key_of(device): device for device in run.parts} if not found else {}
    for path in sorted(run.personal_folder.glob(f"*{SUFFIX}")):
        if str(path) not in named:
            with _noted(found):
                _check_part(run, path, owners)


def _check_part(run: RunFolder, path: Path, owners: Mapping[str, DeviceId]) -> None:
    """Raise if a personal part cannot be read; its device is known from the file, or else by its name."""
    try:
        device = (about_file(path) or {}).get(DEVICE, owners.get(path.stem))
    except ValueError as error:
        if (device := owners.get(path.stem)) is None:
            raise damaged(path, str(error)) from None
    if device is None or key_of(device) != path.stem:
        raise damaged(path, "its device's id is not that of its name")
    store_of(run).load(device)


def _check_copies(run: RunFolder, found: Problems) -> None:
    """Check the copies of personal parts after the best round, and parts that are not in their places yet."""
    commit, folder = run.commit, run.personal_folder
    for path in sorted(folder.glob(f"*{COPY}")):
        with _noted(found):
            if content := content_of_copy(path):
                _check_tensors(path, content)
    if commit is None or run.is_finished:
        return
    for device in commit["counted"]:
        if (path := store_of(run).next_of(device, commit["label"])).exists():
            with _noted(found):
                _check_tensors(path, path.read_bytes())
    if commit["best"] is not None and not found:
        with _noted(found):
            store_of(run).copies.check(label_of(Stage(commit["stage"]), commit["best"]))


def _check_tensors(path: Path, content: bytes) -> None:
    try:
        unsealed_tensors(content)
    except ValueError as error:
        raise damaged(path, str(error)) from None
