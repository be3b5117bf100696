"""`partita check`: whether the files of a run, a comparison or a search are as they were written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.errors import ConfigError, Damaged
from partita.runs.checking import problems_of, refuse
from partita.runs.folder import RunFolder
from partita.seals import missing, read_json
from partita.studies import comparison as comparisons
from partita.studies import tuning
from partita.studies.folders import CELLS, COMPARISON_FILE, SEARCH_FILE, check_sealed
from partita.studies.tuning import folder_of


@dataclass(frozen=True)
class Checked:
    """The result of checking a folder."""

    kind: str
    """A run, a comparison or a search."""
    runs: int
    """The number of runs in it."""
    problems: list[str]
    """A sentence for each file that is damaged or missing."""


def check(folder: Path, *, only_finished: bool = False) -> Checked:
    """Read everything in a folder that Partita reads again, and return what is damaged.

    Args:
        folder: the folder.
        only_finished: whether runs are left out that are not finished, which another process may be writing.

    Raises:
        ConfigError: there is no run, comparison or search, or another version of Partita has written it.
    """
    if (folder / COMPARISON_FILE).exists():
        return _checked("comparison", folder, _check_comparison, only_finished=only_finished)
    if (folder / SEARCH_FILE).exists():
        return _checked("search", folder, _check_search, only_finished=only_finished)
    for name, parts in {COMPARISON_FILE: f"{CELLS}/*", SEARCH_FILE: folder_of("*")}.items():
        if any(folder.glob(f"{parts}/config.toml")):
            return Checked("study", 0, [str(missing(folder / name))])
    run = RunFolder(folder)
    if not run.exists and not run.commit_file.exists():
        raise ConfigError(f"`{folder}` holds no run, comparison or search: it has no `config.toml`.")
    return Checked("run", 1, problems_of(run))


def check_sound(folder: Path) -> None:
    """Raise if what is finished in the folder of a comparison or a search is damaged."""
    refuse(check(folder, only_finished=True).problems, folder)


def check_to_show(folder: Path) -> None:
    """Raise if a folder that is to be shown again is damaged; one without results is for others to refuse.

    A run of an earlier version of Partita has nothing to check it with.
    """
    run = RunFolder(folder)
    if run.exists and not run.is_earlier and (run.is_finished or (folder / COMPARISON_FILE).exists()):
        check_sound(folder)


def _checked(
    kind: str, folder: Path, own: Callable[[Path], Iterator[str]], *, only_finished: bool
) -> Checked:
    """Return what is damaged of a study: its own files, and its runs."""
    found = [*own(folder)]
    inner = [path for path in sorted(folder.rglob("*")) if path.is_dir() and _is_run(path)]
    outer = [RunFolder(path) for path in inner if path.parent not in inner]
    for run in outer:
        if not only_finished or _is_over(run):
            found += problems_of(run)
    return Checked(kind, len(outer), found)


def _is_over(run: RunFolder) -> bool:
    """Return whether a run is finished, or has a damaged commit, which nobody can resume."""
    try:
        return run.is_finished
    except Damaged:
        return True


def _check_comparison(folder: Path) -> Iterator[str]:
    """Yield what is damaged of a comparison's own files."""
    try:
        check_sealed(folder / "config.toml")
        comparison = comparisons.reopen(folder)
    except Damaged as error:
        yield str(error)
        return
    for cell in comparison.cells:
        yield from _problem(comparison.why_failed, cell)
    yield from _json_problems(comparison.tuned_folder)


def _check_search(folder: Path) -> Iterator[str]:
    """Yield what is damaged of a search's own files."""
    yield from _problem(tuning.reopen, folder)
    yield from _json_problems(folder)


def _json_problems(folder: Path) -> Iterator[str]:
    """Yield what is damaged of the results of searches: files beside the folders of runs.

    The values that a run has derived are not among them, also where it was stopped before its config.
    """
    for path in sorted(folder.rglob("*.json")):
        is_result = path.name != RunFolder(path.parent).derived_file.name
        if is_result and (path.parent == folder or not _is_run(path.parent)):
            yield from _problem(read_json, path)


def _is_run(folder: Path) -> bool:
    run = RunFolder(folder)
    return run.exists or run.commit_file.exists()


def _problem(read: Callable[[Any], object], what: Any) -> Iterator[str]:
    try:
        read(what)
    except Damaged as error:
        yield str(error)
