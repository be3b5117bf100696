"""A round of federated averaging: Partita against a plain loop, pfl-research and Flower's simulation.

All do the same work (`benchmarks/workload.py`), which is checked: after the first rounds, their models agree
up to rounding. One thread per process, no evaluation, everything in memory.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contest import Side, interleave
from environments import python_of
from row import Goal, Row
from workload import Workload, agree

PFL, FLOWER = "pfl 0.6.0", "Flower 1.41.0 simulation"
PLAIN = "plain loop with a float mean"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
TITLES = {"linear": "linear model, 7,850 parameters", "cnn": "CNN, 1.6M parameters"}


@dataclass(frozen=True)
class Contest:
    """Some sides that take turns at one workload."""

    workload: Workload
    repeats: int
    processes: int
    """Processes of Partita."""
    others: Mapping[str, tuple[Goal, float]]
    """The target against each other side."""

    def rows(self) -> Iterator[Row]:
        """Let the sides take turns and yield a row for each of the others."""
        replies = interleave([ours(self), *(OTHERS[name](self) for name in self.others)], self.repeats)
        check_agreement(replies)
        best = {name: min(reply["seconds"] for reply in rest) for name, (_, *rest) in replies.items()}
        work, flops = self.workload, self.workload.flops()
        title = (
            f"a round of {work.devices} devices x {work.steps} {'batch' if work.steps == 1 else 'batches'}"
        )
        for name, (goal, target) in self.others.items():
            yield Row(
                workload=f"{title} of 10, {TITLES[work.model]}, {_count(self.processes)}",
                against=name,
                goal=goal,
                target=target,
                ours=best["Partita"],
                other=best[name],
                flops=flops,
                cores=self.processes,
            )


def arguments(contest: Contest) -> list[str]:
    """Return a contestant's arguments."""
    work = contest.workload
    counts = {"steps": work.steps, "devices": work.devices, "processes": contest.processes}
    return [work.model, *(f"--{name}={count}" for name, count in counts.items())]


def ours(contest: Contest) -> Side:
    """Return Partita."""
    return Side("Partita", "ours", arguments(contest))


def plain(contest: Contest) -> Side:
    """Return the plain loop."""
    return Side(PLAIN, "plain_loop", arguments(contest))


def pfl(contest: Contest) -> Side:
    """Return pfl, with an address for each of its processes if there are several."""
    variables: Sequence[Mapping[str, str]] = ({},)
    if contest.processes > 1:
        addresses = ",".join(f"localhost:{port}" for port in free_ports(contest.processes))
        variables = [
            {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)}
            for rank in range(contest.processes)
        ]
    return Side(PFL, "pfl_research", arguments(contest), python_of("pfl"), (), variables)


def flower(contest: Contest) -> Side:
    """Return Flower's simulation with an actor per process."""
    return Side(FLOWER, "flower", arguments(contest), python_of("flwr"), (), [QUIET])


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def check_agreement(replies: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Raise an error unless all models agree after the first rounds."""
    checks = {name: facts["check"] for name, (facts, *_) in replies.items()}
    first, *others = checks.values()
    if not all(agree(first, other) for other in others):
        raise RuntimeError(f"The contestants have not computed the same: {checks}.")


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


OTHERS = {PLAIN: plain, PFL: pfl, FLOWER: flower}
LINEAR, CNN = Workload("linear"), Workload("cnn")
CONTESTS = (
    Contest(LINEAR, repeats=100, processes=1, others={PFL: ("faster", 1.5)}),
    Contest(CNN, repeats=15, processes=1, others={PFL: ("faster", 1.25), PLAIN: ("slower", 1.35)}),
    Contest(Workload("cnn", steps=5), repeats=6, processes=1, others={PLAIN: ("slower", 1.12)}),
    Contest(LINEAR, repeats=200, processes=2, others={PFL: ("faster", 1.5)}),
    Contest(CNN, repeats=20, processes=2, others={PFL: ("faster", 1.2)}),
    Contest(LINEAR, repeats=60, processes=2, others={FLOWER: ("faster", 20.0)}),
    Contest(CNN, repeats=10, processes=2, others={FLOWER: ("faster", 2.5)}),
)


def rows() -> Iterator[Row]:
    """Yield the rows of all contests."""
    for contest in CONTESTS:
        yield from contest.rows()
