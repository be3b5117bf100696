"""A run from a config: its folder, its baseline beside it, and going on where it stopped."""

import contextlib
import hashlib
import itertools
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import tomli_w

from partita.config.building import Built, build
from partita.config.provenance import COMMAND, changed_code, find_code, made_with, still_made_with
from partita.config.reading import changed, read_config, to_values
from partita.config.schema import Config
from partita.config.tasks import data_files
from partita.data.skipped import skipped_text
from partita.durable import replace_file
from partita.errors import ConfigError, RunFailed
from partita.methods import registry
from partita.progress.tensorboard import TensorBoard
from partita.progress.watchers import Watchers, labeled
from partita.protocol import Stage
from partita.runs.folder import BASELINE, is_finished
from partita.runs.journal import FolderRecord
from partita.training.evaluation import Summary
from partita.training.loop import Pipeline, Watch

logger = logging.getLogger(__name__)

RESUMABLE = "task.skip_bad=true"
"""What a run may be told when it goes on: no row that it has read is another for it."""


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to begin, or to go on."""

    config: Config
    built: Built
    folder: Path


def prepare(config: Config, beside: Path, command: str = "") -> Prepared:
    """Build a config and make its folder.

    Args:
        config: what to run.
        beside: where files that it names are looked for.
        command: what was typed to ask for it, kept with the run.
    """
    built = _build(config, beside)
    folder = claim(config)
    _write_config(config, beside, folder, command)
    return Prepared(config, built, folder)


def go_on(config: Config, beside: Path) -> Prepared:
    """Go on with the run in a config's `out`, or begin it there, past what a kill left before it began."""
    folder = Path(config.out)
    if (folder / "config.toml").is_file():
        return reopen(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return prepare(config, beside)


def reopen(folder: Path, overrides: Sequence[str] = ()) -> Prepared:
    """Build the run in a folder again, to go on with it; of its config, little may change.

    That is `RESUMABLE`, and who is told of it, the section `report`.
    """
    refused = [text for text in overrides if text != RESUMABLE and not text.startswith("report.")]
    if refused:
        given = " ".join(refused)
        raise ConfigError(f"A resumed run takes its config from its folder: leave out `{given}`.")
    path = folder / "config.toml"
    if not path.is_file():
        raise ConfigError(
            f"`{folder}` holds no run to go on with: it has no `config.toml`. A run made from Python goes on "
            "from there, with `resume=True`."
        )
    config = read_config(path, overrides)
    if not config.made_with:
        raise ConfigError(f"`{folder}` is no run's folder: no run has written its `config.toml`.")
    for name, (path, text) in _files(config, folder).items():
        if config.made_with.get(name, text) != text:
            raise ConfigError(f"`{path}` is not the file that the run began with: put that one back.")
    run = Prepared(config, _build(config, folder), folder)
    if overrides:
        with contextlib.closing(FolderRecord(folder)):
            _save(replace(config, made_with=still_made_with(config, folder)), folder)
    return run


def _files(config: Config, folder: Path) -> dict[str, tuple[Path, str]]:
    """Return the files that a run reads, by key, each with a text that tells it from another."""
    found: dict[str, tuple[Path, str]] = {}
    start = folder / config.model.start
    if config.model.start and start.is_file():
        found["model.start"] = start, f"sha256 {hashlib.sha256(start.read_bytes()).hexdigest()}"
    for key, path in data_files(config, folder).items():
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        found[f"task.{key}"] = path, f"{sum(file.stat().st_size for file in files)} bytes"
    return found


def _build(config: Config, beside: Path) -> Built:
    find_code(config.made_with, beside)
    built = build(config, beside)
    for sentence in changed_code(config, beside):
        logger.warning(sentence)
    return built


def finish(run: Prepared, watch: Watch | None = None) -> Summary:
    """Do all that is left of a run, its baseline included, and return its summary.

    Watchers that the config names are told of every round before `watch`, which may end the run by raising.
    """
    folder, values = run.folder.resolve(), to_values(run.config)
    wanted = {} if _is_over(run) else run.built.watchers
    makers = {name: partial(make, folder, values) for name, make in wanted.items()}
    # The record comes first: it refuses a folder that holds what no run writes, and watchers may write there.
    with contextlib.closing(FolderRecord(run.folder)) as record, Watchers(makers, then=watch) as watchers:
        return _finish(run, record, watchers)


def _is_over(run: Prepared) -> bool:
    """Return whether nothing is left to do of a run."""
    inner = [run.folder / BASELINE] if run.config.finetune.baseline else []
    return all(map(is_finished, (run.folder, *inner)))


def _finish(run: Prepared, record: FolderRecord, watch: Watch) -> Summary:
    summary = _run(run, record, watch)
    if run.config.finetune.baseline:
        nested, inner = _baseline(read_config(run.folder / "config.toml")), run.folder / BASELINE
        inner.mkdir(exist_ok=True)
        _write_config(nested, run.folder, inner)
        built = build(nested, run.folder)
        if built.start and (built.start.new or built.start.left_over):
            raise RunFailed(f"The baseline cannot begin from the pretrained model: {built.start}.")
        with contextlib.closing(FolderRecord(inner)) as own:
            _run(Prepared(nested, built, inner), own, labeled(watch, BASELINE))
    return summary


def _run(run: Prepared, record: FolderRecord, watch: Watch) -> Summary:
    skipped = run.built.task.skipped
    boards = {"report.tensorboard": partial(TensorBoard, run.folder)} if run.config.report.tensorboard else {}
    try:
        skipped.keep_in(run.folder)
        pipeline = Pipeline(
            run.built.task,
            run.built.partition,
            run.built.plan,
            seed=run.config.seed,
            record=record,
            name=run.config.name,
        )
        with Watchers(boards, then=watch) as watchers:
            return pipeline.run(watchers)
    except RunFailed as error:
        raise RunFailed(f"{error} Warning: {skipped_text(skipped)}." if skipped else str(error)) from error


def _baseline(config: Config) -> Config:
    """Return the paper's Finetune, from a run's folder: all of w_g, from the same start, step c alone."""
    own = config.finetune.baseline_lr
    rate = config.finetune.personal_lr if own is None else own
    changes = {
        "name": f"{config.name}-{BASELINE}",
        "model.start": f"shared/{Stage.PRETRAINED}.safetensors",
        "model.start_names": None,
        "partition": {"personal": "full", "proximal": 0.0},
        "pretrain.rounds": 0,
        "personalize": {"method": registry.BASELINE, "rounds": 0},
        "finetune.baseline": False,
        "finetune.baseline_lr": None,
        "finetune.personal_lr": rate,
    }
    return changed(config, changes)


def claim(config: Config, name: str = "") -> Path:
    """Make a folder: the one that the config asks for, or the next free one of that name, the run's own."""
    name = name or config.name
    if Path(config.name).name != config.name:
        raise ConfigError(f"`name` must be a name that a folder can have, got {config.name!r}.")
    try:
        if config.out:
            return _made(Path(config.out))
        for number in itertools.count(1):
            with contextlib.suppress(FileExistsError):
                return _made(Path("runs") / f"{name}-{number}")
    except FileExistsError:
        raise ConfigError(
            f"`{config.out}` exists already: give another `out`, or go on with `--resume {config.out}`."
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"Cannot make the folder of the run, `{config.out or 'runs'}`: {reason}.") from None
    raise AssertionError("Counting has no end.")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _write_config(config: Config, beside: Path, folder: Path, command: str = "") -> None:
    """Write the resolved run, with paths that hold from its folder."""
    folder = folder.resolve()
    start = config.model.start and os.path.relpath((beside / config.model.start).resolve(), folder)
    model = replace(config.model, start=start)
    files = {k: os.path.relpath(p.resolve(), folder) for k, p in data_files(config, beside).items()}
    task = replace(config.task, options={**config.task.options, **files})
    versions = made_with(config, folder) | {k: text for k, (_, text) in _files(config, beside).items()}
    versions |= {COMMAND: command} if command else {}
    _save(replace(config, task=task, model=model, made_with=versions), folder)


def _save(config: Config, folder: Path) -> None:
    values = to_values(config)
    del values["out"], values["compare"]
    replace_file(folder / "config.toml", tomli_w.dumps(values).encode())
