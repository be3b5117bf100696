"""A run's folder, read only. No other module spells the names of its files.

Reading takes no lock and changes nothing; `runs.journal` writes the folder through the paths given here.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from partita.data.arrow import Table, read_table, rows_where, with_column
from partita.data.rows import SkippedRow, read_skipped
from partita.device.store import DiskStore
from partita.errors import ConfigError
from partita.params import from_bytes
from partita.protocol import DeviceId
from partita.runs.frozen import frozen_in, start_file
from partita.training.evaluation import DeviceRow, Summary
from partita.training.journal import RoundRow


class RunFolder:
    """The folder of a run, finished or not.

    Args:
        path: the folder; it does not have to exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
        self.commit_file = self.path / "commit.json"
        self.rounds_file = self.path / "rounds.jsonl"
        self.rows_file = self.path / "devices.jsonl"
        """Measurements by device while the run is not finished."""
        self.devices_file = self.path / "devices.parquet"
        self.summary_file = self.path / "summary.json"
        self.costs_file = self.path / "costs.json"
        """Costs of the run's partition for a device, as in `partita describe`."""
        self.derived_file = self.path / "derived.json"
        """Values that the task derived from the data and that models depend on."""
        self.skipped_file = self.path / "skipped.jsonl"
        self.report_file = self.path / "report.html"
        self.shared_folder = self.path / "shared"
        self.personal_folder = self.path / "personal"
        self.reuse_folder = self.path / "reuse"
        """With `reuse = "disk"`, rows that devices compute only once, while the run is not finished."""
        self.figures_folder = self.path / "figures"
        self.tables_folder = self.path / "tables"
        self.tensorboard_folder = self.path / "tensorboard"
        self.watchers_folder = self.path / "watchers"
        self.onboarding_file = self.path / "onboarding.json"
        """In the folder of an onboarding inside a run: what it is, see `runs.onboarded`."""
        self.onboarded_folder = self.path / "onboarded"
        """The onboardings of a finished run."""
        self.baseline_folder = self.path / "finetune"
        """The run of the Finetune baseline."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that a run may write, checkpoints and the files in subfolders aside."""
        return tuple(path for name, path in vars(self).items() if name.endswith("_file"))

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every subfolder that a run may have."""
        return tuple(path for name, path in vars(self).items() if name.endswith("_folder"))

    def shared_file(self, name: str) -> Path:
        """Return the file of tensors that belong to no device."""
        return self.shared_folder / f"{name}.safetensors"

    def checkpoint_file(self, number: int, kind: str) -> Path:
        """Return the file of the server's state after a round; see `is_checkpoint`."""
        return self.path / f"checkpoint-{number}-{kind}.safetensors"

    @staticmethod
    def is_checkpoint(name: str) -> bool:
        """Return whether a file name is a checkpoint's.

        >>> RunFolder.is_checkpoint(RunFolder("run").checkpoint_file(3, "shared").name)
        True
        """
        kind, _, rest = name.partition("-")
        number, _, part = rest.partition("-")
        return kind == "checkpoint" and number.isdigit() and part.endswith(".safetensors")

    @property
    def exists(self) -> bool:
        """Whether a run has been written here."""
        return self.config_file.is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the folder holds a finished run."""
        try:
            return bool((self.commit or {}).get("finished"))
        except ConfigError:
            return False

    @property
    def config_text(self) -> str:
        """The text of `config.toml`."""
        return self.config_file.read_text(encoding="utf-8")

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The values in `config.toml`."""
        try:
            return tomllib.loads(self.config_text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"`{self.config_file}` is damaged: it is not TOML: {error}.") from None

    @property
    def commit(self) -> dict[str, Any] | None:
        """The content of `commit.json`, None before the first commit."""
        try:
            return _read_json(self.commit_file)
        except FileNotFoundError:
            return None

    @property
    def summary(self) -> Summary:
        """The content of `summary.json`."""
        return _read_json(self.summary_file)

    @property
    def has_failed_stage(self) -> bool:
        """Whether a stage of the finished run or of its baseline failed, and has no result.

        It may have failed for the devices in training, or for the unseen ones.
        """
        inner = self.baseline
        has_failed = bool(self.summary.get("failed") or self.failed_unseen)
        return has_failed or (inner is not None and inner.has_failed_stage)

    @property
    def failed_unseen(self) -> Mapping[str, Any]:
        """The stages in which more than half of the unseen devices failed: how many, of how many, and why."""
        unseen = self.summary.get("unseen", {})
        return {stage: numbers for stage, numbers in unseen.items() if "reason" in numbers}

    @property
    def costs(self) -> Mapping[str, Any] | None:
        """The content of `costs.json`, None where the run has not written it."""
        try:
            return _read_json(self.costs_file)
        except FileNotFoundError:
            return None

    @property
    def derived(self) -> Mapping[str, Any]:
        """The content of `derived.json`, nothing where the task derives no values."""
        try:
            return _read_json(self.derived_file)
        except FileNotFoundError:
            return {}

    @staticmethod
    def of_file(file: Path) -> "RunFolder | None":
        """Return the run that wrote a file of shared tensors or of derived values, None if no run did."""
        run = RunFolder(file.parent.parent if file.parent.name == "shared" else file.parent)
        is_written = file.parent == run.shared_folder or run.is_checkpoint(file.name)
        return run if (is_written or file == run.derived_file) and run.exists else None

    @property
    def unseen_share(self) -> float:
        """The share of devices that the run keeps out of training, `evaluate.unseen`."""
        return self.values.get("evaluate", {}).get("unseen", 0.0)

    @property
    def model_file(self) -> Path | None:
        """The file with the newest whole model: pretrained, or of the last round before; None if none."""
        if (pretrained := self.shared_file("pretrained")).exists():
            return pretrained
        checkpoint = (self.commit or {}).get("shared", {}).get("file")
        return self.path / checkpoint if checkpoint else None

    def rounds(self) -> Iterator[RoundRow]:
        """Yield the lines of `rounds.jsonl`, without those of unseen devices."""
        return (line for line in _read_lines(self.rounds_file) if line.get("seen", True))

    def onboarding(self) -> Iterator[RoundRow]:
        """Yield the lines of `rounds.jsonl` of unseen devices."""
        return (line for line in _read_lines(self.rounds_file) if not line.get("seen", True))

    def committed_rounds(self) -> Iterator[RoundRow]:
        """Yield the lines of `rounds.jsonl` up to the last commit, none before the first."""
        if (commit := self.commit) is not None:
            content = self.rounds_file.read_bytes()[: commit["rounds_bytes"]]
            yield from map(json.loads, content.splitlines())

    def rows(self) -> Iterator[DeviceRow]:
        """Yield the measurements that an unfinished run has committed so far."""
        return _read_lines(self.rows_file)

    @cached_property
    def measurements(self) -> Table:
        """The table `devices.parquet`, read once; before there were unseen devices, all were seen."""
        return with_column(read_table(self.devices_file), "seen", value=True)

    @cached_property
    def devices(self) -> Table:
        """The rows of `devices.parquet` of the devices that training has seen."""
        return rows_where(self.measurements, "seen", value=True)

    @cached_property
    def unseen(self) -> Table:
        """The rows of `devices.parquet` of the devices that training has not seen."""
        return rows_where(self.measurements, "seen", value=False)

    def shared(self, name: str) -> dict[str, Tensor]:
        """Return the tensors in `shared/NAME.safetensors`, all of them."""
        return self.tensors_in(self.shared_file(name))

    @staticmethod
    def tensors_in(file: Path) -> dict[str, Tensor]:
        """Return the tensors in a file, and those that the run which wrote it has by name alone.

        Raises:
            ConfigError: the file that has these is gone or has changed, or is not known.
        """
        content = file.read_bytes()
        tensors, frozen = from_bytes(content), frozen_in(content)
        if not frozen:
            return tensors
        if (run := RunFolder.of_file(file)) is None:
            raise ConfigError(
                f"`{file}` is a copy of a file of a run, and the frozen part of its model is not in it: give "
                "the file in the run's folder."
            )
        started = RunFolder.tensors_in(start_file(run.path, run.values))
        return {**tensors, **{name: started[given] for name, given in frozen.items()}}

    def kept(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Return all tensors that a device keeps, v_i and what its method declares, None where none."""
        return DiskStore(self.personal_folder).load(device)

    @property
    def kept_parameters(self) -> int:
        """The largest number of values that a device keeps."""
        files = self.personal_folder.glob("*.safetensors")
        largest = max(files, key=lambda file: file.stat().st_size, default=None)
        return sum(t.numel() for t in from_bytes(largest.read_bytes()).values()) if largest else 0

    def skipped(self) -> list[SkippedRow]:
        """Return the bad rows that the run left out."""
        return read_skipped(self.skipped_file)

    @property
    def baseline(self) -> "RunFolder | None":
        """The finished run of the Finetune baseline inside this one, None where there is none."""
        return self._inner if self._inner.is_finished else None

    @cached_property
    def _inner(self) -> "RunFolder":
        return RunFolder(self.baseline_folder)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        raise ConfigError(f"`{path}` is damaged: it is not JSON.") from None


def _read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)
