"""The share of a run's processor time that digests take: what it costs to notice damage.

    PARTITA_DATA=FOLDER python benchmarks/digests.py [key=value ...]

The first rounds of personalization of `experiments/small/qmnist.toml`, in a folder, in one process. All
sha256 count, also the few of seeds and file names.
"""

import hashlib
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

CONFIG = Path(__file__).parent.parent / "experiments" / "small" / "qmnist.toml"
ROUNDS = 5
FEW = ["pretrain.rounds=1", f"personalize.rounds={ROUNDS}", "finetune.epochs=0", "finetune.baseline=false"]
FEW += ["evaluate.devices=10", "workers=1"]
MADE = hashlib.sha256


class Timed:
    """A sha256 that counts the processor time of all of its kind."""

    name, digest_size, block_size = "sha256", 32, 64
    seconds = 0.0

    def __init__(self, content: Any = b"", **_: Any) -> None:
        begin = time.process_time()
        self._made = MADE(content)
        Timed.seconds += time.process_time() - begin

    def update(self, content: Any) -> None:
        """Take further bytes into account."""
        begin = time.process_time()
        self._made.update(content)
        Timed.seconds += time.process_time() - begin

    def digest(self) -> bytes:
        """Return the digest."""
        return self._made.digest()

    def hexdigest(self) -> str:
        """Return the digest as text."""
        return self._made.hexdigest()


def moments(overrides: list[str]) -> list[tuple[float, float]]:
    """Return the processor time, and that of digests, after each round of personalization."""
    from partita.config.reading import read_config
    from partita.studies import run as runner

    found: list[tuple[float, float]] = []

    def watch(line: Mapping[str, Any], done: int, total: int) -> None:
        if (line["stage"], line["work"]) == ("personalized", "update"):
            found.append((time.process_time(), Timed.seconds))

    with tempfile.TemporaryDirectory() as scratch, mock.patch.object(hashlib, "sha256", Timed):
        config = read_config(CONFIG, [*FEW, *overrides, f"out={scratch}/run"])
        runner.finish(runner.prepare(config, CONFIG.parent), watch)
    return found


def main(overrides: list[str]) -> None:
    """Print the share of digests in the rounds after the first."""
    (begin, hashed), *_, (end, hashed_then) = moments(overrides)
    seconds, digests = end - begin, hashed_then - hashed
    print(f"{ROUNDS - 1} rounds: {seconds:.2f} s, digests {digests:.4f} s, {100 * digests / seconds:.2f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
