"""Compare methods on the task of `own_model.py`, and read the results.

Run it with `python examples/compare.py`; it takes about ten seconds.
"""

import tempfile
from pathlib import Path

import own_model
import partita

SETTINGS = {
    "pretrain": {"rounds": 20, "shared_lr": 0.5},
    "personalize": {"rounds": 20, "shared_lr": 0.5},
    "finetune": {"epochs": 5, "personal_lr": 0.1},
}
"""Keys of a config; all others have their defaults."""


def main(folder: Path) -> None:
    """Compare two methods in a folder, and print three columns of the main table and the hardest device."""
    comparison = partita.compare(
        own_model.make_task(),
        methods=["finetune", "fedalt"],
        partitions=["2.*"],
        seeds=1,  # use several before you believe a difference
        settings=SETTINGS,
        out=folder / "comparison",
    )

    for row in comparison.tables["methods"].records:
        print(f"{row['method']:32} {row['personal part']:8} {row['accuracy mean']:.4f}")

    run = comparison.runs["fedalt", "2.*", 1]
    last = [row for row in run.devices.to_pylist() if (row["stage"], row["split"]) == ("finetuned", "test")]
    hardest = min(last, key=lambda row: row["metric"])
    print(f"FedAlt is worst on {hardest['device']}: {hardest['metric']:.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
