"""Claiming a folder for a new run, comparison, search or report.

A folder is claimed from its creation until its `config.toml` is in place. Whatever ends the process before,
the folder holds nothing of value: the same request made again takes it over.
"""

import itertools
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from partita.config.schema import Config
from partita.durable import locked, make_folder
from partita.errors import ConfigError, InUse, RunFailed, fault_text, is_fault
from partita.runs.folder import RunFolder
from partita.studies.folders import CELLS, COMPARISON_FILE, SEARCH_FILE


@contextmanager
def claimed(config: Config, name: str = "") -> Iterator[Path]:
    """Yield a new folder, locked: the config's `out`, or the next free one of a name, by default the run's.

    Raises:
        ConfigError: the folder exists and holds files, or cannot be created.
        InUse: another process is about to begin in it.
    """
    name = name or config.name
    if Path(config.name).name != config.name:
        raise ConfigError(f"`name` must be a valid folder name, got {config.name!r}.")
    with ExitStack() as stack:
        try:
            folder = _create(config.out, name)
            if not stack.enter_context(locked(folder)):
                raise InUse(f"`{folder}`")
            _clear(folder)
        except ConfigError:
            raise
        except (OSError, ValueError) as error:
            if is_fault(error):
                raise
            reason = getattr(error, "strerror", None) or error
            place = config.out or f"runs/{name}"
            raise ConfigError(f"Cannot create the run's folder, `{place}`: {reason}.") from None
        try:
            yield folder
        except OSError as error:
            resumed, again = f"--resume {shlex.quote(str(folder))}", shlex.quote(f"out={folder}")
            how = f"resume with `{resumed}`" if RunFolder(folder).exists else f"start it again with `{again}`"
            raise RunFailed(
                f"{fault_text(error)} Nothing was trained yet: when the cause is mended, {how}."
            ) from error


def _create(out: str, name: str) -> Path:
    """Return the folder `out`, which may exist, or the next free one of a name, which is created."""
    if out:
        if Path(out).exists() and not Path(out).is_dir():
            raise _exists(Path(out))
        make_folder(Path(out), exist_ok=True)
        return Path(out)
    for number in itertools.count(1):
        folder = Path("runs") / f"{name}-{number}"
        with suppress(FileExistsError):
            make_folder(folder)
            return folder
    raise AssertionError("Counting has no end.")


def _clear(folder: Path) -> None:
    """Delete what a process has left that ended before it had written its config.

    Raises:
        ConfigError: there is anything else in the folder.
    """
    known = {RunFolder(folder).derived_file.name, COMPARISON_FILE, SEARCH_FILE, "config.toml.tmp"}
    leftovers = {*known, *(f"{name}.tmp" for name in known)}
    found = list(folder.iterdir())
    if not all(path.name in leftovers or _is_empty_folder(path) for path in found):
        raise _exists(folder)
    for path in found:
        path.rmdir() if path.is_dir() else path.unlink()


def _is_empty_folder(path: Path) -> bool:
    return path.name == CELLS and path.is_dir() and not any(path.iterdir())


def _exists(folder: Path) -> ConfigError:
    run = RunFolder(folder)
    run.check_config()
    if not run.exists:
        return ConfigError(f"`{folder}` already exists and holds no run: give another `out`.")
    how = f"`--resume {shlex.quote(str(folder))}`"
    return ConfigError(f"`{folder}` already exists: give another `out`, or resume with {how}.")
