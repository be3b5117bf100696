"""What came out, as a page to look at: one sentence, charts, tables, every device."""

from pathlib import Path

from partita.errors import ConfigError
from partita.report.comparison_page import write_comparison_page
from partita.report.run_page import write_run_page
from partita.studies.compare import is_comparison, reopen


def write_report(folder: Path) -> Path:
    """Write report.html, figures/ and tables/ of the run or comparison in a folder; return the page's path.

    Raises:
        ConfigError: there is neither, or nothing of it is finished, or its files are damaged.
    """
    if is_comparison(folder):
        return write_comparison_page(reopen(folder))
    if (folder / "config.toml").is_file():
        return write_run_page(folder)
    raise ConfigError(f"`{folder}` holds neither a run nor a comparison: it has no `config.toml`.")
