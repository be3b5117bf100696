"""Real pretrained weights, where `make pretrained` has brought them."""

import os
from pathlib import Path

import pytest

MODELS = Path(os.environ.get("PARTITA_PRETRAINED", Path(__file__).parents[1] / "pretrained")).resolve()
"""The folder that `make pretrained` fills."""
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The file of SmolLM2 in its folder, `smollm2`."""


def needs(name: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests where a model or a file of weights is missing."""
    return pytest.mark.skipif(not (MODELS / name).exists(), reason="`make pretrained` was not run")
