"""Exported pretrained models, opened without Partita by the code of docs/how-to/pretrained.md."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

import partita
from documents import ROOT, blocks_of

OPENINGS = dict(
    zip(
        ("lm", "gguf", "classes", "whole"),
        [block.text for block in blocks_of(ROOT / "docs/how-to/pretrained.md") if block.language == "python"],
        strict=True,
    )
)
"""The page's code that opens an export as `model`, in a folder with `base` or `smollm2`, `adapter` and `whole`."""
OPENINGS["images"] = OPENINGS["classes"].replace("SequenceClassification", "ImageClassification")
_LOGITS = """
import sys
assert not any(name.partition(".")[0] == "partita" for name in sys.modules)
torch.set_num_threads(1)
with torch.no_grad():
    torch.save(model(**torch.load("inputs", weights_only=True)).logits, "logits")
"""


def logits_elsewhere(code: str, inputs: Mapping[str, Tensor], folder: Path) -> Tensor:
    """Return the logits of the `model` that some code opens, run in a folder by a process without Partita."""
    torch.save(dict(inputs), folder / "inputs")
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", code + _LOGITS]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "logits", weights_only=True)


def own_logits(run: Path, device: str, inputs: Tensor) -> Tensor:
    """Return the output of a device's model in a run, computed by one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        logits = partita.open(run).model(device)(inputs)
    torch.set_num_threads(threads)
    return logits
