"""Small finished runs of every kind of task, from which models leave."""

import math
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partita.cli import main
from tables import png, write

ROUNDS = {"pretrain.rounds": 1, "personalize.rounds": 2, "finetune.epochs": 1, "seed": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "image": {"task.kind": "image", "task.size": 8, "task.mean": 0.4, "task.std": 0.3},
    "text": {"task.kind": "text", "task.max_length": 6, "partition.personal": "adapter"},
    "speech": {"task.kind": "speech", "task.features": 8},
    "tabular": {"task.kind": "tabular"},
    "regression": {"task.kind": "tabular", "task.regression": True, "partition.personal": "full"},
    "synthetic": {"task.kind": "synthetic", "task.form": "mixture", "task.devices": 4},
    "quadratic": {"task.kind": "synthetic", "task.form": "quadratic", "task.devices": 4},
}
"""The settings of a run by the kind of its task."""
KINDS = list(SETTINGS)


def shade(device: int, row: int) -> dict[str, Any]:
    return png(20 * row + device, size=8)


def tone(pitch: float, seconds: float) -> dict[str, Any]:
    """Return audio of one tone."""
    import soundfile

    samples = 0.3 * np.sin(2 * math.pi * pitch * np.arange(int(8000 * seconds)) / 8000)
    content = BytesIO()
    soundfile.write(content, samples, 8000, format="FLAC", subtype="PCM_16")
    return {"bytes": content.getvalue(), "path": None}


def sound(device: int, row: int) -> dict[str, Any]:
    return {"audio": tone(300 + 50 * row, 0.3 + 0.05 * (row % 3)), "text": ["one", "two"][row % 2]}


CONTENT: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "image": lambda device, row: {"image": shade(device, row), "label": row % 3},
    "text": lambda device, row: {"text": f"we like number {row % 3} of {device}"},
    "speech": sound,
    "tabular": lambda device, row: {"x": row * 0.5, "y": float(device), "label": row % 2},
    "regression": lambda device, row: {"x": row * 0.5, "y": 1.0 * device, "label": row * 0.25},
}
"""The content of a row, from the number of its device and its own."""


def rows_of(kind: str, devices: range = range(4), rows: range = range(9)) -> list[dict[str, Any]]:
    return [
        {"device": f"d{device}", "split": "test" if row % 3 == 2 else "train", **CONTENT[kind](device, row)}
        for device in devices
        for row in rows
    ]


def finished(folder: Path, kind: str, **settings: Any) -> Path:
    """Run a small task of a kind, and return the run's folder."""
    keys = {**ROUNDS, **SETTINGS[kind], **settings, "workers": 1, "out": folder / f"run-{kind}"}
    keys |= {f"{stage}.devices_per_round": 2 for stage in ("pretrain", "personalize")}
    if kind in CONTENT:
        keys["task.data"] = folder / f"{kind}.parquet"
        if not keys["task.data"].exists():
            write(keys["task.data"], rows_of(kind))
    config = folder / "empty.toml"
    config.write_text("")
    keys = {key: value for key, value in keys.items() if value is not None}
    given = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()
    ]
    assert main(["run", str(config), *given, "--quiet"]) == 0
    return keys["out"]


class Halves(nn.Module):
    """A model of one's own, for the tabular task: with a part that a device owns."""

    parts = {"output": ("head.*",), "head": ("head.*",)}  # noqa: RUF012

    def __init__(self, inputs: int = 2, outputs: int = 2, scale: float = 1.0) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, 3)
        self.head = nn.Linear(3, outputs)
        self.scale = scale

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * self.head(torch.tanh(self.body(inputs)))


def make_halves(inputs: int, outputs: int, scale: float = 2.0) -> nn.Module:
    """Return a model of one's own."""
    return Halves(inputs, outputs, scale)
