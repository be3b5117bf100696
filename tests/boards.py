"""The scalars that TensorBoard reads from a run, and those that `rounds.jsonl` implies."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The steps and values of every scalar that TensorBoard reads."""
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def expected(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The same scalars computed from `rounds.jsonl`; an evaluation is the weighted mean over its blocks."""
    found: dict[str, list[tuple[int, float]]] = {}
    blocks: dict[tuple[str, str, int], list[dict]] = {}
    for line in map(json.loads, (folder / "rounds.jsonl").read_text().splitlines()):
        if line["work"] == "evaluate":
            tag = "final" if line["final"] else "evaluation"
            blocks.setdefault((line["stage"], tag, line["round"]), []).append(line)
            continue
        numbers = {name: line[name] for name in ("loss", "personal_lr", "shared_lr", "seconds")}
        numbers |= {"heard": len(line["heard"])}
        numbers |= {f"bytes_{way}": count for way, count in line["bytes"].items()}
        for name, number in numbers.items():
            if number is not None:
                found.setdefault(f"{line['stage']}/{name}", []).append((line["round"], number))
    for (stage, tag, round), lines in blocks.items():
        weights = sum(line["weight"] for line in lines)
        for name in ("loss", "metric"):
            mean = sum(line[name] * line["weight"] for line in lines) / weights
            found.setdefault(f"{stage}/{tag}/{name}", []).append((round, mean))
    return found


def same(one: Mapping[str, list], other: Mapping[str, list]) -> bool:
    """Whether both have the same scalars at the same steps, equal in single precision."""
    return one.keys() == other.keys() and all(
        [step for step, _ in one[tag]] == [step for step, _ in other[tag]]
        and np.allclose([v for _, v in one[tag]], [v for _, v in other[tag]], rtol=1e-6, atol=0)
        for tag in one
    )
