"""Comparisons from Python, of methods and personal parts on a task of one's own."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from partita.api.opening import open_cell
from partita.api.progress import study_progress
from partita.api.result import Result
from partita.api.settings import as_list, check_same, to_resume, values_of
from partita.config.schema import CompareConfig
from partita.config.tasks import given_task
from partita.data.arrow import Table as ArrowTable
from partita.data.arrow import stacked
from partita.errors import ConfigError
from partita.executors.launch import warn_of_copies
from partita.methods import registry
from partita.report import write
from partita.report.tables.comparison import comparison_tables, write_comparison_tables
from partita.report.tables.entries import MeanStd, plain
from partita.report.tables.table import Table
from partita.studies import compare as comparing
from partita.studies.begin import begin
from partita.studies.cells import Cell
from partita.studies.comparison import Comparison, reopen
from partita.studies.folders import is_comparison
from partita.studies.results import collect
from partita.tasks.task import Task

logger = logging.getLogger(__name__)

CellKey = tuple[str, str, int]
"""A run of a comparison: its method, its personal part and its seed."""


class ComparisonResult:
    """The result of a comparison in its folder: the command's tables, and every run.

    Args:
        comparison: the comparison.
        tables: its tables.
        task: the task, if models are to be built and it was created in Python.
    """

    def __init__(self, comparison: Comparison, tables: Sequence[Table], task: Task | None = None) -> None:
        self._comparison = comparison
        self._tables = {table.name: table for table in tables}
        self._task = task

    @property
    def folder(self) -> Path:
        """The folder of the comparison."""
        return self._comparison.folder

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables of `partita compare`, by name: `methods`, `devices` and others.

        `print(table)` prints one, and `pandas.DataFrame(table.records)` makes a data frame of it.
        """
        return self._tables

    @property
    def failed(self) -> Mapping[str, str]:
        """Why runs failed, by the names of their folders; nothing where all are finished."""
        return self._comparison.failed()

    @cached_property
    def runs(self) -> Mapping[CellKey, Result]:
        """The finished runs by method, personal part and seed; `start` is the pretraining of a seed."""
        cells = self._comparison.cells
        finished = [cell for cell in cells if self._comparison.run_of(cell).is_finished]
        return {_key(cell): open_cell(self._comparison.folder_of(cell), self._task) for cell in finished}

    @property
    def devices(self) -> ArrowTable:
        """An Arrow table with the rows of all runs, which `method`, `partition` and `seed` tell apart."""
        names = ("method", "partition", "seed")
        return stacked(
            (dict(zip(names, key, strict=True)), result.devices) for key, result in self.runs.items()
        )

    def report(self, *, baseline: str = "", columns: Sequence[str] = ()) -> Path:
        """Write the page, the figures and the tables to the folder again, and return the page's path.

        Args:
            baseline: the method that others are paired with; empty: the comparison's own.
            columns: the columns of the table `methods`; none: the comparison's own.

        Raises:
            ConfigError: the comparison does not have the baseline or the columns.
        """
        return write.write_report(self.folder, baseline=baseline, columns=as_list("columns", columns))

    def __repr__(self) -> str:
        """Return the best rows of the table `methods` on one line."""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        best = ", ".join(_best(self.tables["methods"]))
        return f"ComparisonResult({len(self.runs)} runs in {self.folder}{failed}; best {best})"

    def _repr_html_(self) -> str:
        """Return the table `methods`, for a notebook."""
        return self.tables["methods"]._repr_html_()


def _key(cell: Cell) -> CellKey:
    return cell.method or "start", cell.partition, cell.seed


def _best(table: Table) -> list[str]:
    """Return the marked rows of the table `methods`: the metric, its value, the method and its part."""
    texts: list[str] = []
    for row in table.rows:
        for column, entry in zip(table.columns, row, strict=True):
            if isinstance(entry, MeanStd) and entry.is_best:
                value = plain(entry).removesuffix(" *")
                texts.append(" ".join(filter(None, [column, value, *map(plain, row[:2])])))
    return texts


def compare(
    task: Task,
    methods: Sequence[str | Callable[..., Any]] | None = None,
    partitions: Sequence[str] | None = None,
    *,
    seeds: int = CompareConfig.seeds,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 1,
    progress: bool | None = None,
) -> ComparisonResult:
    """Compare methods and personal parts on a task, as `partita compare` does, and return the result.

    Like the command, it writes tables and the report to the folder.

    Args:
        task: data, model, loss and metrics.
        methods: names, import paths, or updates of your own; by default the methods of the paper.
        partitions: personal parts, for methods that do not determine their own: patterns of parameter names,
            with spaces between those of one part, or names that the model defines; by default those.
        seeds: number of seeds.
        settings: values of config keys, `{"pretrain.rounds": 50, "compare.tune": 10}`; others have their
            defaults.
        out: the comparison's folder; by default the next free `runs/python-compare-N`.
        resume: continue the comparison in `out`, if it was started there; runs that failed are run again.
        workers: number of runs at a time, each in a process of its own; 1: one after the other in this
            process; 0: one for each core.
        progress: whether progress is shown; by default in a terminal or a notebook.

    Raises:
        ConfigError: an argument or a setting cannot be used; nothing has been trained then.
        RunFailed: no run is finished.
    """
    warn_of_copies()
    begun = to_resume(out, resume=resume, kind="comparison", is_kind=is_comparison)
    changes = {
        "compare.methods": None if methods is None else [_name_of(m) for m in as_list("methods", methods)],
        "compare.partitions": None if partitions is None else as_list("partitions", partitions),
        "compare.seeds": seeds,
        "workers": workers,
    }
    values = values_of(settings or {}, changes, out)
    with given_task(task):
        if begun is None:
            comparison = begin(values, Path())
        else:
            check_same(values, begun)
            comparison = comparing.resume(begun, workers=workers, given=True)
        with comparing.runner_for(comparison) as runner, study_progress(progress) as on_progress:
            failed = comparing.finish(comparison, on_progress, runner=runner)
    for name, reason in failed.items():
        logger.warning("%s failed: %s", name, reason)
    result = ComparisonResult(comparison, write_comparison_tables(comparison, failed), task)
    result.report()
    return result


def open_comparison(path: str | Path, *, task: Task | None = None) -> ComparisonResult:
    """Return the result of the comparison in a folder, as far as it is finished.

    Args:
        path: the comparison's folder.
        task: its task, if it was started in Python and models are to be built.

    Raises:
        ConfigError: the folder holds no comparison.
        RunFailed: no run in it is finished.
    """
    comparison = reopen(Path(path))
    tables = comparison_tables(collect(comparison, comparison.failed()))
    return ComparisonResult(comparison, tables, task)


def _name_of(method: str | Callable[..., Any]) -> str:
    """Return the name or the import path of a method.

    Raises:
        ConfigError: an update of one's own is not found under its own import path.
    """
    if isinstance(method, str):
        return method
    path = f"{getattr(method, '__module__', '')}:{getattr(method, '__qualname__', '')}"
    if path.endswith(":") or "<" in path or registry.find(path).update is not method:
        raise ConfigError(
            "A method must be a name, an import path, or a class or function at the top level of a module, "
            f"got {method!r}."
        )
    return path
