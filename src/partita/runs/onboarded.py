"""A finished run together with the devices that were onboarded since: what each of them is served now.

Every onboarding is a folder of its own inside the run's, `onboarded/1`, `onboarded/2` and so on, written and
committed like a run, with its own measurements and personal parts. The run's own files never change. A device
that was personalized again has its earlier personal part where it was, and can go back to it.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from torch import Tensor

from partita.data.arrow import Table, distinct, rows_of, stacked
from partita.durable import replace_file
from partita.protocol import DeviceId
from partita.runs.folder import RunFolder
from partita.runs.tensors import kept_tensors, shared_tensors
from partita.seals import missing, read_json, sealed_json
from partita.training.evaluation import Summary
from partita.training.journal import RoundRow
from partita.training.onboarding import PREVIOUS
from partita.training.serving import Served, ServedModels


class Onboarding:
    """The folder of one onboarding.

    Args:
        folder: the folder, inside a run's.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    @property
    def number(self) -> int:
        """The number of the onboarding, from 1."""
        return int(self.folder.path.name)

    @cached_property
    def is_again(self) -> bool:
        """Whether known devices were personalized again."""
        return bool(self._values.get("again"))

    @cached_property
    def devices(self) -> list[DeviceId]:
        """The devices that were onboarded."""
        return distinct(self.folder.measurements, "device")

    @cached_property
    def holds(self) -> list[DeviceId]:
        """The devices that have the model of this onboarding: none that kept the one before, or went back."""
        left = {*self._values.get("withdrawn", ()), *self.folder.summary.get(PREVIOUS, ())}
        return [device for device in self.devices if device not in left]

    def withdraw(self, devices: list[DeviceId]) -> None:
        """Let devices go back to the model before this onboarding."""
        withdrawn = sorted({*self._values.get("withdrawn", ()), *devices})
        write_onboarding(self.folder, again=self.is_again, withdrawn=withdrawn)

    @property
    def _values(self) -> Mapping[str, Any]:
        try:
            return read_json(self.folder.onboarding_file)
        except FileNotFoundError:
            raise missing(self.folder.onboarding_file) from None


def write_onboarding(folder: RunFolder, *, again: bool, withdrawn: list[DeviceId] | None = None) -> None:
    """Write `onboarding.json`."""
    replace_file(folder.onboarding_file, sealed_json({"again": again, "withdrawn": withdrawn or []}))


class OnboardedRun:
    """A finished run with all devices that were onboarded since; reading changes nothing.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    @property
    def summary(self) -> Summary:
        """The summary of the run itself."""
        return self.run.summary

    def rounds(self) -> Iterator[RoundRow]:
        """Yield the rounds of the run itself."""
        return self.run.rounds()

    def shared(self, name: str) -> dict[str, Tensor]:
        """Return tensors that belong to no device."""
        return shared_tensors(self.run, name)

    @cached_property
    def onboardings(self) -> list[Onboarding]:
        """The finished onboardings, in order."""
        return [each for each in onboardings_of(self.run) if each.folder.is_finished]

    @property
    def unfinished(self) -> RunFolder | None:
        """The onboarding that was interrupted, None where all are finished."""
        left = [each.folder for each in onboardings_of(self.run) if not each.folder.is_finished]
        return left[0] if left else None

    @cached_property
    def measurements(self) -> Table:
        """The measurements of all devices, as each joined; without those of devices personalized again."""
        own = self.run.measurements
        joined = [each.folder.measurements for each in self.onboardings if not each.is_again]
        return stacked([({}, table.select(own.column_names)) for table in (own, *joined)])

    @cached_property
    def holders(self) -> dict[DeviceId, Onboarding]:
        """The onboarding whose model a device has now; none for a device as the run has left it."""
        return {device: each for each in self.onboardings for device in each.holds}

    @property
    def joined(self) -> Mapping[DeviceId, Onboarding]:
        """The devices that the run itself does not know, with the onboarding that they joined in."""
        return self._joined

    @cached_property
    def _joined(self) -> dict[DeviceId, Onboarding]:
        return {device: each for each in self.onboardings if not each.is_again for device in each.devices}

    def holder(self, device: DeviceId) -> RunFolder:
        """Return the folder that has the device's personal part and measurements."""
        return self.holders[device].folder if device in self.holders else self.run

    def kept(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Return all tensors that a device keeps, None where there are none."""
        return kept_tensors(self.holder(device), device)

    @property
    def served(self) -> Mapping[DeviceId, Served]:
        """The model that each evaluated device is served now."""
        return self._served

    @cached_property
    def _served(self) -> dict[DeviceId, Served]:
        again = [device for device, each in self.holders.items() if each.is_again]
        return {**served_by(self.measurements), **dict.fromkeys(again, "personal")}

    def known(self) -> set[DeviceId]:
        """Return all devices that the run has asked or measured, and those that joined."""
        asked = {device for line in self.run.committed_rounds() for device in line["asked"]}
        return asked | set(distinct(self.measurements, "device"))


def served_by(table: Table) -> dict[DeviceId, Served]:
    """Return which model each device is served: its own, or the global one.

    Args:
        table: the measurements of a run; a device that was not evaluated is not in it.
    """
    models = served_models(table)
    return {device: models.of(device) for device in models.last}


def served_models(table: Table) -> ServedModels:
    """Return the models that devices are served, and those that are not finite."""
    found = ServedModels()
    for row in rows_of(table.select(["stage", "device", "model", "loss", "reason"])):
        found.add(row)
    return found


def onboardings_of(run: RunFolder) -> list[Onboarding]:
    """Return all onboardings, finished or not, in order."""
    if not run.onboarded_folder.is_dir():
        return []
    numbers = sorted(int(path.name) for path in run.onboarded_folder.iterdir() if path.name.isdigit())
    return [Onboarding(RunFolder(run.onboarded_folder / str(number))) for number in numbers]
