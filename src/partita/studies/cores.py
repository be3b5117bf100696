"""The cores that a run of a study has, which may be others in every round."""

from collections.abc import Callable
from dataclasses import replace

from partita.device.store import Store
from partita.protocol import Executor
from partita.studies.local import local_executor
from partita.studies.run import ExecutorFactory, Prepared

Cores = int | Callable[[], int]
"""The number of processes that may visit devices; a function is asked before every round."""


def executor_with(cores: Cores) -> ExecutorFactory:
    """Return what makes the executor of a run with some cores, whatever its config has as `workers`."""

    def make(run: Prepared, store: Store) -> Executor:
        built = run.built
        if isinstance(cores, int):
            execution, processes = replace(built.execution, workers=cores), None
        else:
            execution, processes = built.execution, cores
        return local_executor(
            built.task,
            built.personalization,
            built.plan,
            store,
            seed=run.config.seed,
            execution=execution,
            processes=processes,
        )

    return make
