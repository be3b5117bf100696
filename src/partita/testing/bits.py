"""The results of a run, to compare bit for bit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from partita.runs.folder import RunFolder


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a finished run that must not depend on where and when it ran, by name."""
    run = RunFolder(folder)
    files = [run.devices_file, run.summary_file, *run.shared_folder.iterdir()]
    if run.personal_folder.is_dir():
        files += run.personal_folder.iterdir()
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(files)}


def check_same(found: Mapping[str, Any], expected: Mapping[str, Any], law: str) -> None:
    """Raise if two results differ, with the first name in which they do."""
    if found.keys() != expected.keys():
        names = sorted(found.keys() ^ expected.keys())
        raise AssertionError(f"{law}: only one of two runs has `{names[0]}`.")
    for name, value in expected.items():
        other = found[name]
        is_same = value.equal(other) if isinstance(value, Tensor) else value == other
        if not is_same:
            raise AssertionError(f"{law}: `{name}` differs.")
