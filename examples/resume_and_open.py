"""Resume an interrupted run, then open its folder and take a device's model.

Run it with `python examples/resume_and_open.py`; it takes a few seconds.
"""

import tempfile
from pathlib import Path
from typing import Any

import own_method
import partita


class Interrupted(Exception):
    """Raised after a few rounds, in place of a crash."""


def interrupt(line: Any, done: int, total: int) -> None:
    """Stop the run after five rounds; called after every round."""
    print(f"round {done} of {total}: loss {line['loss']:.3f}")
    if done == 5:
        raise Interrupted


def main(folder: Path) -> None:
    """Interrupt a run, resume it, and open its results."""
    task = own_method.make_task()
    partition = partita.Partition(task.model(), personal="4.*")
    method = partita.FedAlt(shared_lr=0.05, personal_lr=0.05, batch_size=8)
    out = folder / "run"

    try:
        partita.run(task, partition, method, rounds=20, devices_per_round=4, out=out, watch=interrupt)
    except Interrupted:
        print("interrupted")
    partita.run(task, partition, method, rounds=20, devices_per_round=4, out=out, resume=True)

    result = partita.open(out, task=task)
    trained = [line for line in result.rounds if line["work"] == "update"]
    model = result.model("device-03")
    inputs, targets = task.devices["device-03"]["train"]
    print(f"{len(trained)} rounds, {result.devices.num_rows} rows in devices.parquet")
    print(f"device-03: mean squared error {(model(inputs) - targets).square().mean().item():.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
