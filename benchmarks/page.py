"""How long the page of a run with 1,000 devices takes, and how large it is.

The run itself is small and synthetic; what is timed is `write_report` in this process, with its figures and
tables, the second time (the first also puts the scripts of the charts together, once for a user). Run it with
`python benchmarks/page.py`.
"""

import tempfile
import time
from pathlib import Path

from partita import runner
from partita.config.reading import config_of
from partita.pages import write_report

DEVICES = 1000
STAGE = {"rounds": 100, "devices_per_round": 10}


def main() -> None:
    """Run, then write the page twice and say what it took."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        config = config_of({
            "name": "thousand",
            "task": {"kind": "synthetic", "form": "mixture", "devices": DEVICES},
            "partition": {"personal": "output"},
            "pretrain": STAGE,
            "personalise": STAGE,
            "finetune": {"epochs": 1, "baseline": True},
            "out": str(folder),
        })  # fmt: skip
        runner.finish(runner.prepare(config, Path()))
        write_report(folder)
        began = time.perf_counter()
        page = write_report(folder)
        seconds = time.perf_counter() - began
        figures = sum(file.stat().st_size for file in (folder / "figures").iterdir())
        print(f"{DEVICES} devices: {seconds:.1f} s, page {page.stat().st_size / 1e6:.2f} MB,", end=" ")
        print(f"figures {figures / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
