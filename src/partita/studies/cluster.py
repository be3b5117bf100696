"""One run on all ranks of a launcher: rank 0 says what is run, and the others build the same.

Rank 0 sends the run's config, the values that its task derived and its initial weights. Each rank reads the
table from its own copy, or from a shared path, and refuses one with other content than rank 0's. So only the
table must be on every machine, and a run can be resumed where the others have no folder of it.
"""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from partita.device.store import Store
from partita.errors import RunFailed, described, exit_code
from partita.executors.cluster import ClusterExecutor
from partita.executors.launch import Launch
from partita.executors.peers import Peers
from partita.executors.rendezvous import gather, join
from partita.executors.serving import Rank
from partita.studies.rank_job import build_visitor, describe_run, own_visits
from partita.studies.run import Prepared

logger = logging.getLogger(__name__)


@dataclass
class Session:
    """The ranks of a launcher as rank 0 sees them, from its start to its end."""

    peers: Peers
    local: int
    """The number of rank 0 among the ranks of its machine."""
    code: int = 0
    """The exit code with which all ranks end."""
    _has_run: bool = False

    def executor(self, run: Prepared, store: Store) -> ClusterExecutor:
        """Return the executor that visits the devices of a run on all ranks."""
        execution = run.built.execution
        if (execution.workers > 1 or execution.timeout) and not self._has_run:
            logger.warning(
                "`workers` and `timeout` have no effect here: the launcher starts the processes, torchrun as "
                "many on each machine as --nproc-per-node says."
            )
        self._has_run = True
        serial = own_visits(run.built, store, seed=run.config.seed)
        return ClusterExecutor(self.peers, serial, store, describe_run(run), local=self.local)


@contextmanager
def gathered(launch: Launch) -> Iterator[Session]:
    """Connect rank 0 with all other ranks in this block, at whose end they all end too.

    Raises:
        RunFailed: a rank is missing.
        RankLost: a rank is gone later.
    """
    session = Session(Peers(gather(launch), socket.gethostname()), launch.local)
    with session.peers.connected():
        code, line = 1, ""
        try:
            yield session
            code = session.code
        except BaseException as error:
            code, line = exit_code(error), _line(error)
            raise
        finally:
            session.peers.end(code, line)


def _line(error: BaseException) -> str:
    """Return an error on one line, as rank 0 prints it."""
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted."
    return str(error) if exit_code(error) == 2 or isinstance(error, RunFailed) else described(error)


def serve(launch: Launch, beside: Path) -> int:
    """Visit devices as another rank than 0 until rank 0 ends, and return its exit code.

    Args:
        launch: this rank.
        beside: the folder of the config, or of the run to resume; neither has to exist here.
    """
    return Rank(join(launch), partial(build_visitor, beside=beside, local=launch.local)).serve()
