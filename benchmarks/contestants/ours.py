"""The round with Partita: `partita.pipeline` in memory, with a callback that waits for the next turn."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from partita import FedAvg, Partition, Plan, Result, Task, Training, accuracy, pipeline
from turns import Turns, workload_of_arguments
from workload import EXAMPLES, LR, Workload, loss_of

MANY = 10_000


def run(workload: Workload, rounds: int, **settings: Any) -> Result:
    """Run some rounds of federated averaging over all devices."""
    devices = {f"d{number:02}": {"train": batch} for number, batch in enumerate(workload.make_data())}
    task = Task(model=workload.make_model, loss=loss_of, metrics={"accuracy": accuracy}, devices=devices)
    method = FedAvg(shared_lr=LR, batch_size=EXAMPLES, shared_epochs=workload.steps)
    training = Training(method=method, rounds=rounds, devices_per_round=workload.devices)
    plan = Plan(pretrain=training)
    return pipeline(task, Partition(workload.make_model()), plan, **settings)


def parameters_after(workload: Workload, rounds: int, **settings: Any) -> list[Tensor]:
    """Return the model's parameters after some rounds."""
    return list(run(workload, rounds, **settings).model("d00").parameters())


def main() -> None:
    """Serve rounds."""
    turns = Turns()
    workload, processes = workload_of_arguments()
    workers = {"workers": processes} if processes > 1 else {}
    turns.ready(check=workload.check(parameters_after(workload, workload.checked_rounds, **workers)))

    def watch(line: Mapping[str, Any], done: int, total: int) -> None:
        if done > 1:
            turns.end()
        if not turns.begin():
            raise SystemExit(0)

    run(workload, MANY, watch=watch, **workers)


if __name__ == "__main__":
    main()
