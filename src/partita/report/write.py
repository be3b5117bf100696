"""Writing a report to the folder of a run or a comparison: the page, its figures and its tables."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partita.config.changes import parse_overrides
from partita.config.reading import unknown_key
from partita.config.schema import Config
from partita.durable import locked, replace_file
from partita.errors import ConfigError
from partita.report.comparison.page import comparison_page
from partita.report.figures import write_figures
from partita.report.page import Page, html_of
from partita.report.run.page import run_page
from partita.report.side_by_side.page import side_by_side_page
from partita.report.side_by_side.sources import Source, names_of, read_source
from partita.report.tables.table import write_tables
from partita.runs.folder import RunFolder
from partita.studies.claiming import claimed
from partita.studies.comparison import reopen
from partita.studies.folders import is_comparison
from partita.studies.variants import in_full

_CHOICES = ("baseline", "columns")
"""Settings of a comparison that its report may change."""
_OUT = "out"
"""The setting of a report of several folders: its own folder."""


def write_report(folder: Path, *, baseline: str = "", columns: Sequence[str] = ()) -> Path:
    """Write the report of the finished run or of the comparison in a folder; return the page's path.

    Everything is read from the folder: no task, model or code of the user's is loaded.

    Args:
        folder: the folder.
        baseline: the method that a comparison's others are paired with; empty: the comparison's own.
        columns: the columns of its table `methods`; none: the comparison's own.

    Raises:
        ConfigError: there is neither, or nothing in it is finished, or its files are damaged; or the
            comparison does not have the baseline or the columns.
    """
    run = RunFolder(folder)
    if not run.exists:
        raise ConfigError(f"`{folder}` is not the folder of a run or a comparison: it has no `config.toml`.")
    if (baseline or columns) and not is_comparison(folder):
        raise ConfigError(f"`baseline` and `columns` are for comparisons, and `{folder}` holds a run.")
    with locked(folder, wait=True):
        with _readable(folder):
            if is_comparison(folder):
                page = comparison_page(reopen(folder).showing(baseline=baseline, columns=columns))
            else:
                page = run_page(run)
        return _write(page, run)


def write_side_by_side(folders: Sequence[Path], out: str = "") -> Path:
    """Write one report of several runs and comparisons to a new folder; return the page's path.

    Args:
        folders: the folders of the runs and comparisons.
        out: the new folder; empty for the next free `runs/report-N`.

    Raises:
        ConfigError: a folder has no result, or what they measure is not the same.
    """
    if out and Path(out).exists():
        raise ConfigError(f"`{out}` already exists: give another `out`.")
    sources: list[Source] = []
    for folder, name in zip(folders, names_of(folders), strict=True):
        with _readable(folder):
            sources.append(read_source(folder, name))
    page = side_by_side_page(sources)
    with claimed(Config(name="report", out=out)) as folder:
        return _write(page, RunFolder(folder))


def read_choices(arguments: Sequence[str], *, several: bool = False) -> dict[str, Any]:
    """Return what arguments of `partita report` choose, as for `write_report` or `write_side_by_side`.

    >>> read_choices(["baseline=fedavg", "columns=metric,memory"])
    {'baseline': 'fedavg', 'columns': ['metric', 'memory']}
    >>> read_choices(["out=there"], several=True)
    {'out': 'there'}
    """
    known = [_OUT] if several else _CHOICES
    for argument in arguments:
        key = argument.partition("=")[0]
        if key not in known:
            of = "`partita report` of several folders" if several else "`partita report`"
            raise unknown_key("", key, known, of=of)
    if several:
        return dict(argument.split("=", 1) for argument in arguments)
    return {key.removeprefix("compare."): value for key, value in parse_overrides(in_full(arguments)).items()}


def _write(page: Page, run: RunFolder) -> Path:
    """Write the page, its figures and its tables, and return the page's path."""
    write_figures(page.charts, page.data, run.figures_folder)
    write_tables(page.tables, run.tables_folder)
    replace_file(run.report_file, html_of(page).encode())
    return run.report_file


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Name the folder in the error about a file that cannot be read."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, FileNotFoundError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"`{folder}` is damaged, a file in it cannot be read: {reason}") from error
