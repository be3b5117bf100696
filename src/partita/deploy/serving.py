"""The server's run: devices join, the usual training loop runs with them, and late ones are onboarded.

Nothing here knows what carries the messages. All state of the server is in its home: the keys, the run's
folder, and `served.json` with the run's id and devices. Personal parts are on the devices.
"""

import contextlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from partita.config.reading import changed
from partita.config.schema import Config
from partita.deploy.building import build_for_server, computes_with, for_server
from partita.deploy.hub import Hub
from partita.device.store import Store
from partita.durable import make_folder, make_private_folder, replace_file
from partita.errors import ConfigError
from partita.executors.desk import Desk, Ledger
from partita.executors.remote import Patience, RemoteExecutor
from partita.protocol import DeviceId, Stage, label_of
from partita.runs.folder import RunFolder
from partita.runs.onboarded import OnboardedRun, write_onboarding
from partita.seals import read_json, sealed_json
from partita.studies import onboard
from partita.studies import run as runner
from partita.studies.claiming import claimed
from partita.studies.resume import resumed_config
from partita.training.pipeline import RoundCallback

logger = logging.getLogger(__name__)

_FILE = "served.json"


@dataclass
class Served:
    """The server's state of a run besides its folder."""

    run: str
    """The id of the run, by which devices keep runs apart."""
    devices: list[DeviceId]
    """The devices of the run."""
    late: dict[str, list[DeviceId]] = field(default_factory=dict)
    """The devices that joined later, by the number of their onboarding."""
    restored: list[str] = field(default_factory=list)
    """The labels of rounds that devices have gone back to."""

    def save(self, home: Path) -> None:
        """Write it to the server's home."""
        replace_file(home / _FILE, sealed_json(asdict(self)))


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The server's home, and how long it waits."""

    home: Path
    devices: int = 1
    """The number of devices that must have joined before the run begins."""
    linger: float = 30.0
    """Seconds that devices have at the end to learn that the run is over."""
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ValueError(f"`devices` must be at least 1, got {self.devices}.")


class Server:
    """A run with devices on other machines.

    Args:
        settings: the server's home, and how long it waits.
        config: the run, from `for_server`.
        beside: the folder of its config, or of the run.
        served: what it remembers; None: a new run.
    """

    def __init__(self, settings: Serving, config: Config, beside: Path, served: Served | None) -> None:
        self.settings = settings
        self.config = config
        self.folder = RunFolder(settings.home / "run")
        self._beside = beside
        self.served = served or Served(secrets.token_hex(16), [])
        built = build_for_server(config, beside, self.served.devices)
        ledger = _ledger(self.folder, self.served) if served else Ledger()
        self.hub = Hub(self.served.run, computes_with(config, built, beside), Desk(ledger))
        self._built = built

    def begin(self, command: str) -> runner.Prepared:
        """Wait until enough devices have joined, and return the new run with them."""
        ids = self.hub.wait_for(self.settings.devices)
        self._built = build_for_server(self.config, self._beside, ids)
        self.served.devices = ids
        self.served.save(self.settings.home)
        with claimed(replace(self.config, out=str(self.folder.path))) as path:
            folder = RunFolder(path)
            runner.write_config(self.config, self._beside, folder, self._built.task, command)
        return runner.Prepared(self.config, self._built, folder)

    def resumed(self) -> runner.Prepared:
        """Return the run that is resumed."""
        return runner.Prepared(self.config, self._built, self.folder)

    def finish(self, run: runner.Prepared, watch: RoundCallback) -> None:
        """Run what is left of a run, onboard late devices, and tell all devices that it is over.

        Args:
            run: the run.
            watch: called after every round.
        """
        runner.finish(run, watch, self._executor)
        _remove_personal(run.folder)
        self.hub.finish(self.served.devices)
        self._resume_onboarding(run, watch)
        for onboarded in self.served.late.values():
            self.hub.finish(onboarded)
        while late := self.hub.wait_for_late(self.settings.linger):
            logger.warning("Devices that have joined late are onboarded: %d.", len(late))
            self._begin_onboarding(run, late, watch)
            self.hub.finish(late)
        if missing := self.hub.unaware():
            logger.warning(
                "%d devices do not know that the run is over, %r for example: resume the run, which tells "
                "them.",
                len(missing),
                missing[0],
            )

    def _executor(self, run: runner.Prepared, store: Store) -> RemoteExecutor:
        task = run.built.task
        own = self.settings.patience
        return RemoteExecutor(self.hub.desk, task.devices.ids, task.metrics, own, self._save_restored)

    def _save_restored(self) -> None:
        restored = list(self.hub.desk.ledger.restored)
        if restored != self.served.restored:
            self.served.restored = restored
            self.served.save(self.settings.home)

    def _resume_onboarding(self, run: runner.Prepared, watch: RoundCallback) -> None:
        """Finish the onboarding that was interrupted; one that was only announced is forgotten."""
        late = self.served.late
        self.served.late = {
            number: late[number] for number in late if RunFolder(run.folder.onboarded_folder / number).exists
        }
        known = OnboardedRun(run.folder)
        if (left := known.unfinished) is not None and left.exists:
            config = resumed_config(left, [])
            built = build_for_server(config, left.path, self.served.late[left.path.name])
            self._carry_out(known, runner.Prepared(config, built, left), watch)

    def _begin_onboarding(self, run: runner.Prepared, late: Sequence[DeviceId], watch: RoundCallback) -> None:
        known = OnboardedRun(run.folder)
        number = max((each.number for each in known.onboardings), default=0) + 1
        folder = RunFolder(run.folder.onboarded_folder / str(number))
        config = changed(run.config, onboard.FOR_A_FEW)
        self.served.late[str(number)] = list(late)
        self.served.save(self.settings.home)
        make_folder(folder.path, exist_ok=True)
        write_onboarding(folder, again=False)
        built = build_for_server(config, self._beside, late)
        runner.write_config(config, self._beside, folder, built.task)
        self._carry_out(known, runner.Prepared(config, built, folder), watch)

    def _carry_out(self, known: OnboardedRun, prepared: runner.Prepared, watch: RoundCallback) -> None:
        self.hub.onboarding = tuple(prepared.built.task.devices.ids)
        onboard.carry_out(known, prepared, watch, self._executor)
        self.hub.onboarding = ()
        _remove_personal(prepared.folder)


def new_server(settings: Serving, config: Config, beside: Path) -> Server:
    """Return the server of a new run.

    Raises:
        ConfigError: its home has a run already, or the config cannot be used.
    """
    make_private_folder(settings.home)
    if RunFolder(settings.home / "run").exists:
        raise ConfigError(f"`{settings.home}` has a run already: resume it, or use another home.")
    return Server(settings, for_server(config), beside, None)


def resumed_server(settings: Serving, overrides: Sequence[str]) -> Server:
    """Return the server of the run in its home.

    Raises:
        ConfigError: there is no run, or it cannot be resumed.
    """
    folder, file = RunFolder(settings.home / "run"), settings.home / _FILE
    if not file.exists() or not folder.exists:
        raise ConfigError(f"`{settings.home}` has no run to resume.")
    served = Served(**read_json(file))
    return Server(settings, resumed_config(folder, overrides), folder.path, served)


def _remove_personal(folder: RunFolder) -> None:
    """Remove a run's folder of personal parts, which are on the devices; one that is not empty stays."""
    with contextlib.suppress(OSError):
        folder.personal_folder.rmdir()


def _ledger(folder: RunFolder, served: Served) -> Ledger:
    """Return what devices must be told, from the committed rounds of a run and of its onboardings."""
    counted: dict[DeviceId, str] = {}
    folders = [folder, *(RunFolder(folder.onboarded_folder / number) for number in served.late)]
    for own in folders:
        if own.commit is None:
            continue
        for line in own.lines():
            if line["work"] != "evaluate":
                counted |= dict.fromkeys(line["heard"], label_of(Stage(line["stage"]), line["round"]))
    return Ledger(counted, list(served.restored))
