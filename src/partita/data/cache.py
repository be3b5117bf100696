"""The user's cache folder, and what is kept there of tables."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path


def cache_folder() -> Path:
    """Return the user's folder for what can be made again; it may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partita"


def kept_name(path: Path, *, of: str, ending: str) -> str:
    """Return the name of something that is made of the table at `path`, `of` telling it from others."""
    whose = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    return f"{path.name}.{whose}.{of}.{ending}"


def state_of(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return what changes with files: names, sizes and times."""
    stats = [(file.name, file.stat()) for file in files]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
