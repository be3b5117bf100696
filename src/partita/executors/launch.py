"""The launcher that started this process as one of several ranks, as far as the environment says.

torchrun and most launchers set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Slurm's `srun` has names of its
own for the first two; unlike SLURM_NTASKS, the one for their number is not set in the batch script itself.
They count only with MASTER_ADDR, which is the user's: `srun` also starts independent commands.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from partita.errors import ConfigError

logger = logging.getLogger(__name__)

_NAMES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
"""The variables of a rank and of the number of ranks: those of most launchers, and Slurm's."""
_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID")
"""The same for a rank's number on its machine, which a launcher need not set."""
_MEANING = {"MASTER_ADDR": "host of rank 0", "MASTER_PORT": "same free port for all of them"}
"""The meaning of the other variables, for an error that asks for them."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """This process as one of several ranks."""

    rank: int
    ranks: int
    address: str = ""
    """The host of rank 0."""
    port: int = 0
    """The port of the store through which the ranks find each other."""
    local: int = 0
    """The number of this rank among those of its machine, which share its accelerators."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ConfigError(
                f"A rank must be from 0 to below the number of ranks, got {self.rank} of {self.ranks}."
            )


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Return what the launcher says of this process; None where there is no launcher.

    >>> launched({"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"})
    Launch(rank=1, ranks=3, address='node0', port=29500, local=0)

    Raises:
        ConfigError: a value is missing or no number, or there is no address of rank 0.
    """
    given = [names for names in _NAMES if all(name in environment for name in names)]
    if not given:
        _refuse_half(environment)
        return None
    rank, ranks = (_number(name, environment) for name in given[0])
    is_slurm = given[0] != _NAMES[0]
    if is_slurm and (ranks == 1 or "MASTER_ADDR" not in environment):
        return None
    if ranks == 1:
        return Launch(rank=rank, ranks=ranks)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise ConfigError(f"{ranks} ranks need the environment variable {name}, the {_MEANING[name]}.")
    port = _number("MASTER_PORT", environment)
    own = _LOCAL[is_slurm]
    local = _number(own, environment) if own in environment else 0
    return Launch(rank=rank, ranks=ranks, address=environment["MASTER_ADDR"], port=port, local=local)


def _refuse_half(environment: Mapping[str, str]) -> None:
    """Raise if a launcher has set one of its two variables."""
    for name, other in (_NAMES[0], _NAMES[0][::-1]):
        if name in environment:
            raise ConfigError(
                f"The environment variable {name} is set, and {other} is not: set both to divide a run among "
                f"ranks, or unset {name}."
            )


def warn_of_tasks(environment: Mapping[str, str] = os.environ) -> None:
    """Log a warning, in one of several tasks of Slurm, that each of them does all of the work."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if "MASTER_ADDR" not in environment and tasks != "1" and environment.get("SLURM_PROCID") == "0":
        logger.warning(
            "Slurm has started %s tasks, and MASTER_ADDR is not set: each task runs alone. To divide one run "
            "among them, set MASTER_ADDR and MASTER_PORT.",
            tasks,
        )


def warn_of_copies(environment: Mapping[str, str] = os.environ) -> None:
    """Log a warning, in the first of a launcher's processes, that each does all of what Python asks for."""
    for rank, ranks in _NAMES:
        if environment.get(rank) == "0" and environment.get(ranks, "1") != "1":
            logger.warning(
                "A launcher has started %s processes, and from Python no work is divided among them: each "
                "does all of it. `torchrun -m partita run CONFIG.toml` divides a run.",
                environment[ranks],
            )
            return


def _number(name: str, environment: Mapping[str, str]) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ConfigError(
            f"The environment variable {name} must be a whole number, got {environment[name]!r}."
        ) from None


def refuse_ranks(command: str) -> None:
    """Refuse a command whose work is not divided among ranks.

    Raises:
        ConfigError: this process is one of several ranks.
    """
    launch = launched()
    if launch is not None and launch.ranks > 1:
        raise ConfigError(
            f"`partita {command}` is not for the {launch.ranks} ranks of a launcher: they divide the visits "
            "of one `partita run`. Runs of a study divide themselves: start `partita compare --resume DIR` "
            "or `partita tune --resume DIR` in as many independent processes as you like."
        )
