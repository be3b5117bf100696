"""Writing a report to the folder of a run or a comparison: the page, its figures and its tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partita.durable import locked, replace_file
from partita.errors import ConfigError
from partita.report.comparison_page import comparison_page
from partita.report.figures import write_figures
from partita.report.page import Page, html_of
from partita.report.run_page import run_page
from partita.report.tables import write_tables
from partita.runs.folder import RunFolder
from partita.studies.comparison import is_comparison, reopen


def write_report(folder: Path) -> Path:
    """Write the report of the finished run or of the comparison in a folder; return the page's path.

    Everything is read from the folder: no task, model or code of the user's is loaded.

    Raises:
        ConfigError: there is neither, or nothing in it is finished, or its files are damaged.
    """
    run = RunFolder(folder)
    if not run.exists:
        raise ConfigError(f"`{folder}` is not the folder of a run or a comparison: it has no `config.toml`.")
    with locked(folder, wait=True):
        with _readable(folder):
            page = comparison_page(reopen(folder)) if is_comparison(folder) else run_page(run)
        return _write(page, run)


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
