"""A run from a config: its folder, its baseline beside it, and going on where it stopped."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from partita.config.building import Built, build
from partita.config.imports import import_from, made_with
from partita.config.reading import read_config, to_values
from partita.config.schema import Config, PartitionConfig
from partita.durable import replace_file
from partita.errors import ConfigError
from partita.evaluation import Summary
from partita.protocol import Stage
from partita.stages.pipeline import Pipeline, Watch
from partita.stages.record import FolderRecord

logger = logging.getLogger(__name__)

BASELINE = "finetune"
"""The folder of the Finetune baseline inside a run's folder."""
_TITLES = {"fedavg": "FedAvg", "fedalt": "FedAlt", "fedsim": "FedSim"}
_SERVERS = {"fedavg": "FedAvg", "fedadam": "FedAdam", "fedadagrad": "FedAdagrad", "fedyogi": "FedYogi"}


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to begin, or to go on."""

    config: Config
    built: Built
    folder: Path


@dataclass(frozen=True)
class Done:
    """A finished run."""

    summary: Summary
    models: list[tuple[str, Mapping[str, Any]]]
    """The models that the run compares, each with its statistics."""


def prepare(config: Config, beside: Path) -> Prepared:
    """Build a config and make its folder; files that it names are looked for `beside` it first."""
    code = _find_code(config, beside)
    built = build(config, beside)
    _warn_of_other_code(config)
    folder = _claim(config)
    _write_config(config, folder, beside=beside, code=code)
    return Prepared(config, built, folder)


def reopen(folder: Path) -> Prepared:
    """Build the run in a folder again, to go on with it."""
    path = folder / "config.toml"
    if not path.is_file():
        raise ConfigError(f"`{folder}` is no run's folder: it has no `config.toml`.")
    config = read_config(path)
    _find_code(config, folder)
    built = build(config, folder)
    _warn_of_other_code(config)
    return Prepared(config, built, folder)


def finish(run: Prepared, watch: Watch | None = None) -> Done:
    """Do all that is left of a run, its baseline included, and return what came out."""
    summary = _run(run, watch)
    finetuned: Summary | None = None
    if run.config.finetune.baseline:
        nested, inner = _baseline(run.config), run.folder / BASELINE
        inner.mkdir(exist_ok=True)
        _write_config(nested, inner, beside=inner, code=_find_code(run.config, run.folder))
        finetuned = _run(Prepared(nested, build(nested, inner), inner), watch)
    return Done(summary, _models(run.config, summary, finetuned))


def _run(run: Prepared, watch: Watch | None) -> Summary:
    record = FolderRecord(run.folder)
    try:
        return Pipeline(
            run.built.task,
            run.built.partition,
            run.built.plan,
            seed=run.config.seed,
            record=record,
            name=run.config.name,
        ).run(watch)
    finally:
        record.close()


def _baseline(config: Config) -> Config:
    """Return the paper's Finetune: all of w_g, from the same start, step c alone."""
    return replace(
        config,
        name=f"{config.name}-{BASELINE}",
        model=replace(config.model, start=f"../shared/{Stage.PRETRAINED}.safetensors"),
        partition=PartitionConfig(personal="full", proximal=0.0),
        pretrain=replace(config.pretrain, rounds=0),
        personalise=replace(config.personalise, rounds=0),
        finetune=replace(config.finetune, baseline=False),
    )


def _models(
    config: Config, summary: Summary, finetuned: Summary | None
) -> list[tuple[str, Mapping[str, Any]]]:
    method = _TITLES.get(config.personalise.method, config.personalise.method.partition(":")[2])
    pretrained = _SERVERS[config.pretrain.server_optimizer] if config.pretrain.rounds else "Start"
    last = f"{method}, finetuned" if config.personalise.rounds else "Finetune (part.)"
    names = {Stage.PRETRAINED: pretrained, Stage.PERSONALISED: method, Stage.FINETUNED: last}
    models = [(names[Stage(stage)], numbers) for stage, numbers in summary["stages"].items()]
    if finetuned:
        models.insert(1, ("Finetune", finetuned["stages"][Stage.FINETUNED]))
    return models


def _claim(config: Config) -> Path:
    """Make the run's folder: the one asked for, or the next free one."""
    try:
        if config.out:
            folder = Path(config.out)
            folder.mkdir(parents=True)
            return folder
        for number in range(1, 1_000_000):
            folder = Path("runs") / f"{config.name}-{number}"
            if not folder.exists():
                folder.mkdir(parents=True)
                return folder
    except FileExistsError:
        raise ConfigError(
            f"`{config.out}` exists already: give another `out`, or go on with `--resume {config.out}`."
        ) from None
    except OSError as error:
        raise ConfigError(f"Cannot make the run's folder `{error.filename}`: {error.strerror}.") from None
    raise ConfigError(f"No folder `runs/{config.name}-N` is free.")


def _find_code(config: Config, beside: Path) -> Path:
    """Let import paths name modules here, beside the config, or where a recorded run found them."""
    code = beside / config.made_with.get("beside", ".")
    import_from(str(Path.cwd()), str(code))
    return code


def _write_config(config: Config, folder: Path, *, beside: Path, code: Path) -> None:
    """Write the resolved run, with paths that hold from its folder."""
    start = config.model.start and os.path.relpath(beside / config.model.start, folder)
    made = made_with(config, beside=os.path.relpath(code, folder))
    resolved = replace(config, model=replace(config.model, start=start), made_with=made)
    values = to_values(resolved)
    del values["out"]
    replace_file(folder / "config.toml", tomli_w.dumps(values).encode())


def _warn_of_other_code(config: Config) -> None:
    """Warn where a config was made with other code than there is now."""
    now = made_with(config)
    for name, was in config.made_with.items():
        if name in now and now[name] != was:
            logger.warning("The run was made with %s %s; now it is %s.", name, was, now[name])
