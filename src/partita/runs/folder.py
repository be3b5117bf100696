"""A run's folder, read only. No other module spells the names of its files.

Reading takes no lock and changes nothing; `runs.journal` writes the folder through the paths given here, and
`runs.tensors` reads the tensors in it.
"""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from partita.data.arrow import Table, read_table, rows_where, with_column
from partita.data.rows import SkippedRow, read_skipped
from partita.protocol import DeviceId
from partita.runs.parts import KEEPING, expected_parts, resets_in
from partita.runs.recorded import Recorded, checkpoints_in
from partita.seals import SCHEMA, damaged, is_sealed, missing, parsed_json, unsealed, unsealed_text
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

    def reopened(self) -> "RunFolder":
        """Return the same folder with nothing read yet: what is read through it is let go with it."""
        return RunFolder(self.path)

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

    @property
    def checkpoints(self) -> list[Path]:
        """The files of the server's state that the last commit names."""
        return sorted(self.path / name for name in checkpoints_in(self.commit))

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

    def check_config(self) -> None:
        """Raise if `config.toml` is missing beside a commit: the folder holds a run, which is damaged."""
        if self.commit_file.exists() and not self.exists:
            raise missing(self.config_file)

    @property
    def is_finished(self) -> bool:
        """Whether the folder holds a finished run.

        Raises:
            Damaged: `commit.json` is damaged, or is missing beside the files of a finished run.
        """
        commit = self.commit
        if commit is None and self.has_results:
            raise missing(self.commit_file)
        return bool((commit or {}).get("finished"))

    @property
    def has_results(self) -> bool:
        """Whether there are files that a run writes at its end."""
        return self.summary_file.exists() or self.devices_file.exists()

    @property
    def is_earlier(self) -> bool:
        """Whether an earlier version of Partita has written the run, which recorded no digests."""
        return self.commit is not None and not is_sealed(self.commit)

    @property
    def config_text(self) -> str:
        """The text of `config.toml`, which is checked unless an earlier version of Partita wrote it."""
        self.check_config()
        content = self.config_file.read_bytes()
        if (text := unsealed_text(self.config_file, content)) is not None:
            return text
        if self.commit is not None and not self.is_earlier:
            raise damaged(self.config_file, "its sha256 is gone")
        return content.decode()

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The values in `config.toml`."""
        text = self.config_text
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise damaged(self.config_file, f"it is not TOML: {error}") from None

    @property
    def commit(self) -> dict[str, Any] | None:
        """The content of `commit.json`, None before the first commit."""
        try:
            values = parsed_json(self.commit_file, self.commit_file.read_bytes())
        except FileNotFoundError:
            return None
        return {"schema": SCHEMA, **unsealed(self.commit_file, values)} if is_sealed(values) else values

    @property
    def recorded(self) -> Recorded:
        """The digests of the files at the last commit."""
        return Recorded(self.path, self.commit)

    @property
    def summary(self) -> Summary:
        """The content of `summary.json`."""
        return self._json(self.summary_file)

    def _json(self, path: Path) -> dict[str, Any]:
        return parsed_json(path, self.recorded.content(path))

    @property
    def costs(self) -> Mapping[str, Any] | None:
        """The content of `costs.json`, None where the run has not written it."""
        try:
            return self._json(self.costs_file)
        except FileNotFoundError:
            return None

    @property
    def derived(self) -> Mapping[str, Any]:
        """The content of `derived.json`, nothing where the task derives no values."""
        try:
            return self._json(self.derived_file)
        except FileNotFoundError:
            return {}

    @property
    def unseen_share(self) -> float:
        """The share of devices that the run keeps out of training, `evaluate.unseen`."""
        return self.values.get("evaluate", {}).get("unseen", 0.0)

    def rounds(self) -> Iterator[RoundRow]:
        """Yield the lines of `rounds.jsonl`, without those of unseen devices."""
        return (line for line in self.lines() if line.get("seen", True))

    def onboarding(self) -> Iterator[RoundRow]:
        """Yield the lines of `rounds.jsonl` of unseen devices."""
        return (line for line in self.lines() if not line.get("seen", True))

    def committed_rounds(self) -> Iterator[RoundRow]:
        """Yield the lines of `rounds.jsonl` up to the last commit, none before the first."""
        if (commit := self.commit) is not None:
            yield from Recorded(self.path, commit).lines(self.rounds_file)

    def rows(self) -> Iterator[DeviceRow]:
        """Yield the measurements that an unfinished run has committed so far."""
        return self.recorded.lines(self.rows_file)

    @cached_property
    def measurements(self) -> Table:
        """The table `devices.parquet`, read once; before there were unseen devices, all were seen."""
        self.recorded.check(self.devices_file)
        return with_column(read_table(self.devices_file), "seen", value=True)

    @cached_property
    def devices(self) -> Table:
        """The rows of `devices.parquet` of the devices that training has seen."""
        return rows_where(self.measurements, "seen", value=True)

    @cached_property
    def unseen(self) -> Table:
        """The rows of `devices.parquet` of the devices that training has not seen."""
        return rows_where(self.measurements, "seen", value=False)

    @cached_property
    def parts(self) -> dict[DeviceId, str]:
        """The round that each device's personal part is of."""
        commit = self.commit
        return expected_parts(commit, self.lines) if commit and KEEPING in commit else {}

    @property
    def resets(self) -> list[tuple[DeviceId, int]]:
        """The devices that had lost their personal parts and started again, and the rounds before."""
        return [(reset.device, reset.rounds) for reset in resets_in(self.commit or {})]

    def lines(self) -> Iterator[RoundRow]:
        """Yield the committed lines of `rounds.jsonl`, those of unseen devices too."""
        return self.recorded.lines(self.rounds_file)

    def skipped(self) -> list[SkippedRow]:
        """Return the bad rows that the run left out."""
        if self.recorded.journals:
            self.recorded.digest(self.skipped_file)
        return read_skipped(self.skipped_file)

    @property
    def baseline(self) -> "RunFolder | None":
        """The finished run of the Finetune baseline inside this one, None where there is none."""
        return self._inner if self._inner.is_finished else None

    @cached_property
    def _inner(self) -> "RunFolder":
        return RunFolder(self.baseline_folder)
