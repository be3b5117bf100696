"""The round as a plain loop with a float mean, only the arithmetic: copy u, step, add up the changes."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from turns import Turns, serve, workload_of_arguments
from workload import EXAMPLES, LR, Batch, Workload, loss_of


def plain_round(workload: Workload) -> tuple[Callable[[], None], list[Tensor]]:
    """Return a function that runs a round, and u, which it changes in place."""
    model, data = workload.make_model(), workload.make_data()
    now = list(model.parameters())
    shared = [parameter.detach().clone() for parameter in now]

    @torch.no_grad()
    def run() -> None:
        total = [torch.zeros_like(u) for u in shared]
        for batch in data:
            for parameter, u in zip(now, shared, strict=True):
                parameter.copy_(u)
            for _ in range(workload.steps):
                step(model, now, batch)
            for sums, parameter, u in zip(total, now, shared, strict=True):
                sums.add_(parameter - u, alpha=EXAMPLES)
        for u, sums in zip(shared, total, strict=True):
            u.add_(sums / (EXAMPLES * len(data)))

    return run, shared


def step(model: nn.Module, parameters: list[nn.Parameter], batch: Batch) -> None:
    """Take a step of SGD, in place."""
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss_of(model, batch), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.add_(gradient, alpha=-LR)


def main() -> None:
    """Serve rounds."""
    turns = Turns()
    workload, _ = workload_of_arguments()
    run, shared = plain_round(workload)
    serve(turns, workload, run, lambda: shared)


if __name__ == "__main__":
    main()
