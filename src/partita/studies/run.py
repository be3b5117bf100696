"""One run from a config: its folder, its baseline, and resuming it."""

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import tomli_w
from torch import nn

from partita.config.building import Built, build, check_machine
from partita.config.files import changed_files, contents_of, find_files, is_local
from partita.config.loading import TASKS
from partita.config.overrides import DERIVED, KEYS, OF_MODEL, PATH, START, TEMPLATES, relative_to
from partita.config.partitions import frozen_patterns
from partita.config.provenance import COMMAND, changed_code, find_own_code, made_with, still_made_with
from partita.config.reading import changed, read_config, to_values
from partita.config.schema import Config
from partita.data.digests import describe_file
from partita.data.rows import skipped_text
from partita.device.store import DiskStore, Store
from partita.durable import make_folder, replace_file
from partita.errors import ConfigError, RunFailed
from partita.methods import registry
from partita.progress.tensorboard import TensorBoard
from partita.progress.watchers import Watchers, labeled
from partita.protocol import DeviceId, Executor, Stage
from partita.runs.checking import problems_of, refuse
from partita.runs.fingerprint import fingerprint_of
from partita.runs.folder import RunFolder
from partita.runs.journal import FolderJournal
from partita.seals import sealed_text
from partita.studies.claiming import claimed
from partita.studies.folders import check_is_run
from partita.studies.local import local_executor, write_costs, write_derived
from partita.studies.resume import resumed_config
from partita.tasks.build import initial_model
from partita.tasks.task import Task
from partita.training.evaluation import Summary
from partita.training.pipeline import Pipeline, RoundCallback

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start or to resume."""

    config: Config
    built: Built
    folder: RunFolder


def prepare(config: Config, beside: Path, command: str = "") -> Prepared:
    """Build a config and create its folder.

    Args:
        config: the run.
        beside: the folder in which files that the config names are looked up.
        command: the command line that asked for the run, recorded with it.
    """
    built = build_run(config, beside)
    for key, (was, now) in changed_files(config, beside).items():
        if key != START:
            logger.warning("The run was made with `%s` %s; now it is %s.", key, was, now)
    with claimed(config) as path:
        folder = RunFolder(path)
        write_config(config, beside, folder, built.task, command)
    return Prepared(config, built, folder)


def prepare_or_resume(config: Config, beside: Path) -> Prepared:
    """Resume the run in a config's `out`; start it there if it was killed before it wrote its config.

    A fault of the system is raised as it is: the study that the run belongs to is resumed, not the run.
    """
    folder = RunFolder(config.out)
    if folder.exists:
        return reopen(folder.path)
    shutil.rmtree(folder.path, ignore_errors=True)
    try:
        return prepare(config, beside)
    except RunFailed as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise


def reopen(path: Path, overrides: Sequence[str] = (), reset: Sequence[DeviceId] = ()) -> Prepared:
    """Build the run in a folder again, to resume it; `resumed_config` says what may change.

    Args:
        path: the folder.
        overrides: values of its config that have changed.
        reset: devices that have lost their personal parts and start again.
    """
    folder = RunFolder(path)
    if reset:
        reset_devices(folder, reset)
    config = resumed_config(folder, overrides)
    run = Prepared(config, build_run(config, path), folder)
    if overrides:
        with FolderJournal(folder):
            _save(replace(config, made_with=still_made_with(config, path)), folder)
        run = replace(run, folder=RunFolder(path))  # It reads the paths that are in its config now.
    return run


def reset_devices(folder: RunFolder, devices: Sequence[DeviceId]) -> None:
    """Let devices of an unfinished run, or of its unfinished baseline, start again."""
    check_is_run(folder.path)
    folder.check_config()
    if not folder.exists:
        raise ConfigError(f"`{folder.path}` holds no run: it has no `{folder.config_file.name}`.")
    inner = RunFolder(folder.baseline_folder)
    own = inner if folder.is_finished and inner.exists else folder
    with FolderJournal(own) as journal:
        journal.reset(devices)
    for device in devices:
        logger.warning("Device %r starts again from the initial personal part.", device)


def build_run(config: Config, beside: Path) -> Built:
    """Return the objects of a run on this machine, with a warning where its code has changed."""
    check_machine(config)
    find_own_code(to_values(config), beside)
    built = build(config, beside)
    for sentence in changed_code(config, beside):
        logger.warning(sentence)
    return built


ExecutorFactory = Callable[[Prepared, Store], Executor]
"""Makes the executor of a run, given the storage of personal parts."""


def on_this_machine(run: Prepared, store: Store) -> Executor:
    """Return the executor that visits the devices of a run on this machine."""
    built = run.built
    return local_executor(
        built.task,
        built.personalization,
        built.plan,
        store,
        seed=run.config.seed,
        execution=built.execution,
    )


def finish(
    run: Prepared, watch: RoundCallback | None = None, make_executor: ExecutorFactory = on_this_machine
) -> Summary:
    """Run what is left of a run, its baseline included, and return the summary.

    Args:
        run: the run.
        watch: called after every round, after the watchers that the config names; it may end the run by
            raising.
        make_executor: makes the executor of the run, and that of its baseline.
    """
    folder, values = run.folder.path.resolve(), to_values(run.config)
    if run.folder.is_finished:
        refuse(problems_of(run.folder), run.folder.path)
    wanted = {} if _is_over(run) else run.built.watchers
    factories = {name: partial(make, folder, values) for name, make in wanted.items()}
    # The journal comes first: it refuses a folder that is not a run's, before watchers write there.
    with _journal(run) as journal, Watchers(factories, then=watch) as watchers:
        summary = _run(run, journal, watchers, make_executor)
        if run.config.finetune.baseline:
            _run_baseline(run, watchers, make_executor)
    return summary


def _is_over(run: Prepared) -> bool:
    """Return whether nothing is left to do of a run."""
    return run.folder.is_finished and not (run.config.finetune.baseline and run.folder.baseline is None)


def _run_baseline(run: Prepared, watch: RoundCallback, make_executor: ExecutorFactory) -> None:
    """Run the Finetune baseline from the run's pretrained model, in a folder inside the run's own."""
    config, inner = read_config(run.folder.config_file), RunFolder(run.folder.baseline_folder)
    nested = _baseline(config, initial_model(run.built.task, seed=config.seed))
    built = build(nested, run.folder.path)
    make_folder(inner.path, exist_ok=True)
    write_config(nested, run.folder.path, inner, built.task)
    if built.start and (built.start.new or built.start.unused):
        raise RunFailed(f"The baseline cannot start from the pretrained model: {built.start}.")
    own = Prepared(nested, built, inner)
    with _journal(own) as journal:
        _run(own, journal, labeled(watch, inner.path.name), make_executor)


def _journal(run: Prepared) -> FolderJournal:
    built = run.built
    seed, computing = run.config.seed, built.execution
    fingerprint = fingerprint_of(
        built.task, built.personalization, built.plan, seed=seed, computing=computing
    )
    return FolderJournal(run.folder, fingerprint, frozen=_frozen_in_file(built))


def _frozen_in_file(built: Built) -> dict[str, str]:
    """Return the frozen tensors that came unchanged from `model.start`, with their names in that file."""
    if built.start is None:
        return {}
    frozen = built.personalization.partition.frozen_before.always - set(built.start.converted)
    return {name: given for name, given in built.start.loaded.items() if name in frozen}


def _run(
    run: Prepared, journal: FolderJournal, watch: RoundCallback, make_executor: ExecutorFactory
) -> Summary:
    built, seed, folder = run.built, run.config.seed, run.folder
    boards = (
        {"report.tensorboard": partial(TensorBoard, folder.path)} if run.config.report.tensorboard else {}
    )
    store = DiskStore(folder.personal_folder)
    journal.check_parts(store)
    try:
        built.task.skipped.log_to(folder.skipped_file)
        write_costs(
            folder, built.task, built.personalization, built.plan, seed=seed, execution=built.execution
        )
        with Watchers(boards, then=watch) as watchers, make_executor(run, store) as executor:
            pipeline = Pipeline(
                built.task, built.personalization, built.plan, seed=seed, executor=executor, journal=journal
            )
            return pipeline.run(watchers)
    except RunFailed as error:
        skipped = built.task.skipped
        note = f" Warning: {skipped_text(skipped)}." if skipped else ""
        raise type(error)(f"{error}{note}") from error


def _baseline(config: Config, model: nn.Module) -> Config:
    """Return the config of the paper's Finetune baseline: all of w_g that is not frozen, step (c) alone."""
    own = config.finetune.baseline_lr
    rate = config.finetune.personal_lr if own is None else own
    changes = {
        "name": f"{config.name}-{registry.BASELINE}",
        "model.start": str(RunFolder("").shared_file(Stage.PRETRAINED)),
        "model.start_names": None,
        "partition": {
            "personal": "full",
            "proximal": 0.0,
            "frozen": frozen_patterns(config.partition, model),
        },
        "pretrain.rounds": 0,
        "personalize": {"method": registry.BASELINE, "rounds": 0},
        "finetune.baseline": False,
        "finetune.baseline_lr": None,
        "finetune.personal_lr": rate,
    }
    return changed(config, changes)


def write_config(config: Config, beside: Path, folder: RunFolder, task: Task, command: str = "") -> None:
    """Write the resolved run, with paths relative to its folder, and the values that its task derived."""
    files, contents = relative_to(folder.path, find_files(config, beside)), contents_of(config, beside)
    write_derived(folder, task)
    if task.derived and config.task.kind in TASKS:
        files = {key: name for key, name in files.items() if key not in TEMPLATES}
        files[DERIVED] = folder.derived_file.name
        contents[DERIVED] = describe_file(folder.derived_file)
    if PATH in files and not is_local(config, beside, PATH):
        files[PATH] = config.model.options["path"]
    named = {key.removeprefix("task."): name for key, name in files.items() if key.startswith("task.")}
    # Of the user's own task, even `data` is an argument like any other.
    listed = KEYS if config.task.kind in TASKS else ()
    given = config.task.options.items()
    options = {name: value for name, value in given if f"task.{name}" not in listed or value == OF_MODEL}
    path = {"path": files[PATH]} if PATH in files else {}
    versions = made_with(config, folder.path.resolve()) | contents | ({COMMAND: command} if command else {})
    recorded = replace(
        config,
        task=replace(config.task, options={**options, **named}),
        model=replace(config.model, start=files.get(START, ""), options={**config.model.options, **path}),
        made_with=versions,
    )
    _save(recorded, folder)


def _save(config: Config, folder: RunFolder) -> None:
    values = to_values(config)
    del values["out"], values["compare"]
    replace_file(folder.config_file, sealed_text(tomli_w.dumps(values)))
