"""What came out, as a page to look at: one sentence, charts, tables, every device."""

from pathlib import Path

from partita.comparison.running import is_comparison, reopen
from partita.pages.comparison import write_comparison_page
from partita.pages.run import write_run_page


def write_report(folder: Path) -> Path:
    """Write report.html, figures/ and tables/ of the run or comparison in a folder; return the page's path.

    Raises:
        ConfigError: there is neither, or the run is not finished.
    """
    return write_comparison_page(reopen(folder)) if is_comparison(folder) else write_run_page(folder)
