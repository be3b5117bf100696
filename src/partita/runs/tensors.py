"""The tensors in a run's folder: shared ones, checkpoints, and what each device keeps.

Every file is checked when it is read.
"""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from partita.device.store import DiskStore
from partita.errors import Damaged
from partita.protocol import DeviceId
from partita.runs import parts
from partita.runs.folder import RunFolder
from partita.runs.frozen import start_file, whole_tensors
from partita.runs.recorded import Recorded, checkpoints_in
from partita.sealed_tensors import unsealed_tensors
from partita.seals import damaged, missing, sha256


def shared_tensors(run: RunFolder, name: str) -> dict[str, Tensor]:
    """Return the tensors in `shared/NAME.safetensors`, all of them."""
    return tensors_in(run.shared_file(name))


def tensors_in(file: Path) -> dict[str, Tensor]:
    """Return the tensors in a file, and those that the run which wrote it has by name alone.

    Raises:
        ConfigError: the file that has these is gone or has changed, or is not known.
    """
    run = run_of(file)
    if run is None:
        return whole_tensors(file, file.read_bytes())
    return whole_tensors(file, content_of(run, file), lambda: tensors_in(start_file(run.path, run.values)))


def run_of(file: Path) -> RunFolder | None:
    """Return the run that wrote a file of shared tensors or of derived values, None if no run did."""
    run = RunFolder(file.parent.parent if file.parent.name == "shared" else file.parent)
    is_written = file.parent == run.shared_folder or run.is_checkpoint(file.name)
    return run if (is_written or file == run.derived_file) and run.exists else None


def newest_model(run: RunFolder) -> Path | None:
    """Return the file with the newest whole model: pretrained, or of the last round before; None if none."""
    if (pretrained := run.shared_file("pretrained")).exists():
        return pretrained
    checkpoint = (run.commit or {}).get("shared", {}).get("file")
    return run.path / checkpoint if checkpoint else None


def content_of(run: RunFolder, file: Path) -> bytes:
    """Return the content of a file of shared tensors, which is checked where its digest is recorded."""
    if not run.is_checkpoint(file.name):
        return Recorded(file.parent.parent, run.commit).content(file)
    digest = checkpoints_in(run.commit).get(file.name)
    if digest is not None and not file.exists():
        raise missing(file)
    content = file.read_bytes()
    if digest not in (None, sha256(content)):
        raise damaged(file, "its digest is not the one that was committed")
    return content


def store_of(run: RunFolder) -> DiskStore:
    """Return the personal parts of a run's devices."""
    can_reset = not run.is_finished and not run.onboarding_file.exists()
    return DiskStore(run.personal_folder, can_reset=can_reset)


def kept_tensors(run: RunFolder, device: DeviceId) -> dict[str, Tensor] | None:
    """Return all tensors that a device keeps, v_i and what its method declares, None where none.

    Raises:
        Damaged: the file is not as it was written, is missing, or is of another round.
    """
    store = store_of(run)
    if run.is_earlier:
        path = store.path_of(device)
        return unsealed_tensors(path.read_bytes()) if path.exists() else None
    label, found = run.parts.get(device), store.round_of(device)
    if label not in (None, found):
        raise store.damaged(device, found and f"it is of the round `{found}`, and not of `{label}`")
    return store.load(device)


def kept_parameters(run: RunFolder) -> int:
    """Return the largest number of values that a device keeps."""
    files = run.personal_folder.glob("*.safetensors")
    largest = max(files, key=lambda file: file.stat().st_size, default=None)
    return sum(t.numel() for t in unsealed_tensors(largest.read_bytes()).values()) if largest else 0


def part_problems(run: RunFolder) -> Iterator[Damaged]:
    """Yield an error for each personal part that is missing or not of its device's last round."""
    if (commit := run.commit) is not None and not run.is_earlier:
        yield from parts.part_problems(commit, run.lines, store_of(run))
