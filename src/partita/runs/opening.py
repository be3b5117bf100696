"""Opening a run's folder to write it: only a run's own folder, and only with the same settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.errors import ConfigError
from partita.runs.folder import RunFolder
from partita.seals import missing


def committed_in(folder: RunFolder) -> dict[str, Any]:
    """Return the content of `commit.json`, nothing in a new run.

    Raises:
        ConfigError: an earlier version of Partita wrote the run; or a folder without a commit holds files
            that no run writes, or files that a run writes only after its first commit.
    """
    if (committed := folder.commit) is not None:
        if folder.is_earlier:
            raise ConfigError(
                f"The run in `{folder.path}` was written by an earlier version of Partita, whose files have "
                "no sha256: resume it with that version, or start a new run."
            )
        return {name: value for name, value in committed.items() if name != "schema"}
    known = {path.name for path in (*folder.files, *folder.folders)}
    known |= {scratch_of(path).name for path in folder.files}
    names = sorted(path.name for path in folder.path.iterdir())
    if foreign := [name for name in names if name not in known and not folder.is_checkpoint(name)]:
        raise ConfigError(f"`{folder.path}` is not a run's folder: it contains `{foreign[0]}`.")
    if has_lost_commit(folder):
        raise missing(folder.commit_file)
    return {}


def has_lost_commit(folder: RunFolder) -> bool:
    """Return whether there is no `commit.json`, and yet there is what can only come after a commit."""
    if folder.commit is not None:
        return False
    if folder.has_results or any(folder.personal_folder.glob("*.safetensors")):
        return True
    return folder.rounds_file.exists() and folder.rounds_file.read_bytes().count(b"\n") > 1


def check_fingerprint(
    folder: RunFolder, committed: Mapping[str, Any], fingerprint: Mapping[str, str]
) -> None:
    """Raise if the run was started with other settings.

    Args:
        folder: the run's folder.
        committed: the content of its `commit.json`.
        fingerprint: the settings that must not change, by name; none: nothing is compared.
    """
    if not committed or not fingerprint:
        return
    recorded = committed["fingerprint"]
    names = {**fingerprint, **recorded}
    if changed := [name for name in names if recorded.get(name) != fingerprint.get(name)]:
        raise ConfigError(
            f"The run in `{folder.path}` was started with other values of "
            f"{', '.join(f'`{name}`' for name in changed)}, or by another version of Partita: resume it with "
            "the same values and version, or start a new run."
        )


def scratch_of(path: Path) -> Path:
    """Return the temporary file that a file of a run is written to first."""
    return path.with_name(f"{path.name}.tmp")
