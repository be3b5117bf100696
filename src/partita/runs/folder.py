"""What a finished run has left in its folder: its models, how they did, its rounds."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from partita.data.arrow import Table, read_table
from partita.data.skipped import LeftOut, read_skipped
from partita.errors import ConfigError
from partita.params import from_bytes
from partita.training.evaluation import Row, Summary

BASELINE = "finetune"
"""The folder of the Finetune baseline inside a run's folder."""


def summary_in(folder: Path) -> Summary:
    """Return the summary of the finished run in a folder."""
    return json.loads((folder / "summary.json").read_bytes())


def journal_of(folder: Path) -> Iterator[Row]:
    """Yield what `rounds.jsonl` of a run's folder says."""
    with (folder / "rounds.jsonl").open() as lines:
        yield from map(json.loads, lines)


def kept_in(folder: Path) -> int:
    """Return how many numbers a device of a run keeps, v_i and what else its method has, the most of any."""
    files = (folder / "personal").glob("*.safetensors")
    largest = max(files, key=lambda file: file.stat().st_size, default=None)
    return sum(tensor.numel() for tensor in from_bytes(largest.read_bytes()).values()) if largest else 0


def is_finished(folder: Path) -> bool:
    """Return whether a folder holds a finished run."""
    try:
        return bool(json.loads((folder / "commit.json").read_bytes()).get("finished"))
    except (OSError, ValueError):
        return False


class RunFolder:
    """A run's folder, read only."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config_file(self) -> Path:
        """The resolved config."""
        return self.path / "config.toml"

    @property
    def rounds_file(self) -> Path:
        """A JSON line for each round."""
        return self.path / "rounds.jsonl"

    @property
    def devices_file(self) -> Path:
        """A row for each stage, device and split."""
        return self.path / "devices.parquet"

    @property
    def summary_file(self) -> Path:
        """Statistics over devices, by stage."""
        return self.path / "summary.json"

    @property
    def commit_file(self) -> Path:
        """The last committed round."""
        return self.path / "commit.json"

    @property
    def costs_file(self) -> Path:
        """The costs of the run's partition for one device."""
        return self.path / "costs.json"

    @property
    def report_file(self) -> Path:
        """The report's HTML page."""
        return self.path / "report.html"

    @property
    def figures_folder(self) -> Path:
        """The report's charts as files."""
        return self.path / "figures"

    @property
    def tables_folder(self) -> Path:
        """The report's tables as files."""
        return self.path / "tables"

    @property
    def tensorboard_folder(self) -> Path:
        """Event files for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def exists(self) -> bool:
        """Whether the folder has a config."""
        return self.config_file.is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return is_finished(self.path)

    @cached_property
    def config_text(self) -> str:
        """The text of the config file."""
        return self.config_file.read_text()

    @cached_property
    def values(self) -> dict[str, Any]:
        """The config's values."""
        return tomllib.loads(self.config_text)

    @cached_property
    def summary(self) -> Summary:
        """Statistics over devices, by stage."""
        try:
            return json.loads(self.summary_file.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"`{self.summary_file}` cannot be read: {error}") from error

    def rounds(self) -> Iterator[Row]:
        """Yield the rows of `rounds.jsonl`."""
        with self.rounds_file.open() as lines:
            yield from map(json.loads, lines)

    @cached_property
    def devices(self) -> Table:
        """The table of measurements, read once."""
        return read_table(self.devices_file)

    @property
    def kept_parameters(self) -> int:
        """The largest number of values that any device keeps."""
        return kept_in(self.path)

    @cached_property
    def costs(self) -> Mapping[str, Any] | None:
        """The costs of the run's partition, None where the run has not recorded them."""
        return json.loads(self.costs_file.read_bytes()) if self.costs_file.is_file() else None

    def skipped(self) -> list[LeftOut]:
        """Return the bad rows that the run has skipped."""
        return read_skipped(self.path)

    @property
    def baseline(self) -> "RunFolder | None":
        """The run of the Finetune baseline inside this one, None where there is none."""
        inner = RunFolder(self.path / BASELINE)
        return inner if inner.exists else None
