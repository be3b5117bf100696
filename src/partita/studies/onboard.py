"""Onboarding devices into a finished run: v alone is trained, u is the run's and stays as it is."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from partita.config.building import Built
from partita.config.loading import TASKS, load, taken
from partita.config.overrides import TABLE
from partita.config.provenance import find_own_code
from partita.config.reading import changed, read_config
from partita.config.schema import Config
from partita.data.rows import BadData
from partita.device.store import DiskStore
from partita.durable import locked, make_folder
from partita.errors import ConfigError, Damaged, InUse, RunFailed, fault_text
from partita.params import digest_of
from partita.protocol import DeviceId, Stage
from partita.runs.checking import problems_of, refuse
from partita.runs.fingerprint import fingerprint_of
from partita.runs.folder import RunFolder
from partita.runs.journal import FolderJournal
from partita.runs.onboarded import OnboardedRun, Onboarding, write_onboarding
from partita.runs.tensors import shared_tensors
from partita.seals import missing
from partita.studies import run as runner
from partita.studies.resume import check_paths, located_files
from partita.training import onboarding
from partita.training.onboarding import RoundCallback
from partita.training.plan import Plan
from partita.training.stages import Stages

FOR_A_FEW: Mapping[str, Any] = {
    "evaluate.devices": "all",
    "evaluate.sample": "all",
    "evaluate.unseen": 0.0,
    "pretrain.devices_per_round": 1,
    "personalize.devices_per_round": 1,
    "pretrain.patience": 0,
    "personalize.patience": 0,
    "finetune.baseline": False,
    "finetune.baseline_lr": None,
}
"""Settings of a run that do not count for devices that join it: no round of training is repeated."""
_ROWS = ("task.skip_bad", "task.min_train_examples", "task.min_test_examples")
"""Settings of the table: which of its rows and devices count."""
_VALIDATION = 0.2
"""The share of rows held out where devices are personalized again and the run holds out none."""


def onboard(
    run: RunFolder,
    data: Path | None,
    overrides: Sequence[str] = (),
    *,
    again: bool = False,
    watch: RoundCallback | None = None,
) -> Onboarding:
    """Personalize devices of a table from the model of a finished run, and add them to its folder.

    One that was interrupted is resumed, with the same table.

    Args:
        run: the finished run.
        data: a table by device, as the run's task reads it; None: the one of the interrupted onboarding, or
            of the last one, which is returned again.
        overrides: `key=value` for other files of the run that are elsewhere now, and for which rows and
            devices of the table count; of an interrupted onboarding, only `task.skip_bad=true`.
        again: the devices are known, and begin with the personal part that they have; each is served the
            better of the two on rows that are held out.
        watch: called after every round.

    Raises:
        ConfigError: the devices are known, or with `again` not known; or an onboarding of another table was
            interrupted.
        InUse: another process is writing the run.
    """
    of_rows = [text for text in overrides if text.partition("=")[0] in _ROWS]
    check_paths([text for text in overrides if text not in of_rows])
    with _locked(run):
        known = OnboardedRun(run)
        if (left := _left_over(known)) is not None:
            prepared = _resumed(left, data, of_rows, again=again)
        elif data is not None:
            prepared = _begun(known, data, overrides, again=again)
        elif known.onboardings:
            refuse(problems_of(run), run.path)
            return known.onboardings[-1]
        else:
            raise ConfigError(f"No onboarding into the run in `{run.path}` was started: give a table.")
        carry_out(known, prepared, watch)
    return Onboarding(prepared.folder)


def go_back(run: RunFolder, devices: Sequence[DeviceId]) -> dict[DeviceId, int]:
    """Let devices go back to the model that they had before they were last personalized again.

    Args:
        run: the finished run.
        devices: the devices; none: all that can go back.

    Returns:
        The number of the onboarding that each device has left.

    Raises:
        ConfigError: a device was not personalized again.
        InUse: another process is writing the run.
    """
    with _locked(run):
        known = OnboardedRun(run)
        held = {device: each for device, each in known.holders.items() if each.is_again}
        for device in devices:
            if device not in held:
                raise ConfigError(f"Device {device!r} has no previous model: it was not personalized again.")
        chosen = {device: held[device] for device in devices or held}
        for each in {each.number: each for each in chosen.values()}.values():
            each.withdraw([device for device, own in chosen.items() if own.number == each.number])
    return {device: each.number for device, each in chosen.items()}


@contextmanager
def _locked(run: RunFolder) -> Iterator[None]:
    """Hold the lock of a run in this block."""
    with locked(run.path) as is_ours:
        if not is_ours:
            raise InUse(f"the run in `{run.path}`")
        yield


def _left_over(known: OnboardedRun) -> RunFolder | None:
    """Return an onboarding that was interrupted; one without a config has done nothing and is removed.

    Raises:
        Damaged: its config was deleted: it has committed rounds.
    """
    left = known.unfinished
    if left is None or left.exists:
        return left
    if left.commit_file.exists():
        raise missing(left.config_file)
    shutil.rmtree(left.path)
    return None


def _begun(known: OnboardedRun, data: Path, overrides: Sequence[str], *, again: bool) -> runner.Prepared:
    """Return a new onboarding after checking its devices.

    Raises:
        RunFailed: a fault of the system, before anything was trained; the same command begins or resumes it.
    """
    try:
        return _new(known, data, overrides, again=again)
    except OSError as error:
        raise RunFailed(
            f"{fault_text(error)} Nothing was trained yet: when the cause is mended, give the same command "
            "again."
        ) from error


def _new(known: OnboardedRun, data: Path, overrides: Sequence[str], *, again: bool) -> runner.Prepared:
    """Return a new onboarding, in a folder of its own."""
    run = known.run
    config = _config_for(run, data, overrides, again=again)
    built = runner.build_run(config, run.path)
    _check_devices(known, built.task.devices.ids, data, again=again)
    if again and not built.personalization.partition.names("personal"):
        raise ConfigError(f"The run in `{run.path}` has no personal part: there is nothing to train again.")
    if again and not (built.plan.finetune and built.plan.finetune.epochs):
        raise ConfigError(
            "Devices are personalized again by fine-tuning, and the run's `finetune.epochs` is 0."
        )
    number = max((each.number for each in known.onboardings), default=0) + 1
    folder = RunFolder(run.onboarded_folder / str(number))
    make_folder(folder.path)
    write_onboarding(folder, again=again)
    runner.write_config(config, run.path, folder, built.task)
    return runner.Prepared(config, built, folder)


def _resumed(left: RunFolder, data: Path | None, of_rows: Sequence[str], *, again: bool) -> runner.Prepared:
    """Return the onboarding that was interrupted, which must be the one that is asked for."""
    if data is not None and again != Onboarding(left).is_again:
        raise ConfigError(
            f"`{left.path}` was interrupted: finish it first, with `partita onboard RUN_DIR --resume`."
        )
    try:
        return runner.reopen(left.path, [*_same_table(left, data), *of_rows])
    except BadData:
        raise
    except ConfigError as error:
        raise ConfigError(
            f"`{left.path}` was interrupted, and must be finished first, with its own table: {error}"
        ) from None


def _same_table(left: RunFolder, data: Path | None) -> list[str]:
    """Return the override that names the table of an onboarding, none where its config is enough.

    Raises:
        ConfigError: the task of one's own has another table; of a built-in one, the digest is compared later.
    """
    task = left.values["task"]
    if data is None:
        return []
    if task["kind"] in TASKS:
        return [f"{TABLE}={data.resolve()}"]
    if task["data"] != str(data.resolve()):
        raise ConfigError(f"it is {task['data']!r}, not `{data}`.")
    return []


def _config_for(run: RunFolder, data: Path, overrides: Sequence[str], *, again: bool) -> Config:
    """Return the config of an onboarding: the run's, with another table."""
    find_own_code(run.values, run.path)
    config = located_files(read_config(run.config_file, overrides), run.path)
    function = load("task.kind", config.task.kind, TASKS)
    if not taken(function, {"data": ""}) and "data" not in config.task.options:
        raise ConfigError(
            f"`task.kind` = {config.task.kind!r} reads no table: devices join a run only with a task that "
            "takes `data`."
        )
    if not data.exists():
        raise ConfigError(f"There is no file or folder `{data}`.")
    options = {name: value for name, value in config.task.options.items() if name != "devices"}
    options["data"] = str(data.resolve())
    if again and not options.get("validation"):
        options["validation"] = _VALIDATION
    return replace(changed(config, FOR_A_FEW), task=replace(config.task, options=options), made_with={})


def _check_devices(known: OnboardedRun, ids: Sequence[DeviceId], data: Path, *, again: bool) -> None:
    """Raise unless all devices of a table are new to the run, or with `again` none is."""
    every = known.known()
    wrong = [device for device in ids if (device in every) != again]
    if not wrong:
        return
    are = f"{len(wrong)} devices" if len(wrong) > 1 else "a device"
    if again:
        raise ConfigError(
            f"`{data}` has {are} that the run does not know, such as {wrong[0]!r}: onboard new devices "
            "without `--again`."
        )
    raise ConfigError(
        f"`{data}` has {are} that the run knows already, {wrong[0]!r}: personalize known devices again with "
        "`--again`."
    )


def carry_out(
    known: OnboardedRun,
    prepared: runner.Prepared,
    watch: RoundCallback | None,
    make_executor: runner.ExecutorFactory = runner.on_this_machine,
) -> None:
    """Run what is left of an onboarding, commit by commit.

    Args:
        known: the finished run, and who has joined it.
        prepared: the onboarding.
        watch: called after every round.
        make_executor: makes the executor that visits the devices.
    """
    built, folder, run = prepared.built, prepared.folder, known.run
    is_again = Onboarding(folder).is_again
    built = replace(built, plan=_again(built.plan)) if is_again else built
    prepared = replace(prepared, built=built)
    before = known.kept if is_again else lambda _: None
    store = DiskStore(folder.personal_folder, before=before, can_reset=False)
    with _journal(prepared, run) as journal:
        _check_parts(journal, store)
        built.task.skipped.log_to(folder.skipped_file)  # The journal has dropped rows of no committed round.
        with make_executor(prepared, store) as executor:
            stages = Stages(
                built.task,
                built.personalization,
                built.plan,
                seed=prepared.config.seed,
                devices=executor.devices(),
                journal=journal,
            )
            served = known.served if is_again else None
            onboarding.Onboarding(stages, executor, seen=run.summary, before=served).run(watch)


def _check_parts(journal: FolderJournal, store: DiskStore) -> None:
    """Raise if a personal part of an interrupted onboarding is lost, and say what can be done."""
    try:
        journal.check_parts(store)
    except Damaged as error:
        folder = journal.folder.path
        raise Damaged(f"{error} Or delete `{folder}`, and onboard the devices again.") from None


def _again(plan: Plan) -> Plan:
    """Return a plan that also evaluates the personal part that devices have, before it is trained again."""
    assert plan.personalize is not None
    method = replace(plan.personalize.method, stateful=True)
    return replace(plan, personalize=replace(plan.personalize, method=method, rounds=1))


def _journal(prepared: runner.Prepared, run: RunFolder) -> FolderJournal:
    built: Built = prepared.built
    fingerprint = fingerprint_of(
        built.task,
        built.personalization,
        built.plan,
        seed=prepared.config.seed,
        computing=built.execution,
    )
    fingerprint["run"] = digest_of(shared_tensors(run, Stage.PERSONALIZED))
    return FolderJournal(prepared.folder, fingerprint, trained=run)
