"""What a finished run has left in its folder: its models, how they did, its rounds."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.config.reading import read_config
from partita.config.schema import Config
from partita.methods import registry
from partita.params import from_bytes
from partita.protocol import Stage
from partita.server import registry as servers
from partita.training.evaluation import Row, Summary

BASELINE = "finetune"
"""The folder of the Finetune baseline inside a run's folder."""


@dataclass(frozen=True)
class Tested:
    """A model that a run has tested on its devices."""

    title: str
    folder: Path
    """The run's folder that it is of: the baseline's is inside the run's own."""
    stage: Stage
    statistics: Mapping[str, Any]
    """What `summary.json` says of it."""


def tested_in(folder: Path) -> list[Tested]:
    """Return the models that the finished run in a folder has tested, its baseline's too."""
    config = read_config(folder / "config.toml")
    names = _titles(config)
    found = [
        Tested(names[Stage(stage)], folder, Stage(stage), statistics)
        for stage, statistics in summary_in(folder)["stages"].items()
    ]
    inner = folder / BASELINE
    if config.finetune.baseline and is_finished(inner):
        stages = summary_in(inner)["stages"]
        finetuned = stages.get(Stage.FINETUNED)
        found[1:1] = (
            [Tested(registry.find(registry.BASELINE).title, inner, Stage.FINETUNED, finetuned)]
            if finetuned
            else []
        )
    return found


def _titles(config: Config) -> dict[Stage, str]:
    """Return what tables call the models of a run's stages."""
    method = registry.find_or_none(config.personalize.method)
    title = method.title if method else config.personalize.method.rpartition(":")[2]
    whole = config.partition.personal == "full"
    alone = registry.find(registry.BASELINE if whole else registry.PARTIAL_BASELINE).title
    if method and not method.trains_rounds:
        alone = title
    pretrained = servers.title_of(config.pretrain.server_optimizer)
    return {
        Stage.PRETRAINED: pretrained if config.pretrain.rounds else "Start",
        Stage.PERSONALISED: title,
        Stage.FINETUNED: f"{title}, finetuned" if config.personalize.rounds else alone,
        Stage.SERVED: "the better on validation",
    }


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
