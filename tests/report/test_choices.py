"""`partita report` of a comparison with another baseline and other columns, without training."""

from pathlib import Path

import pytest

from compared import done, table, values
from partita.cli import main
from partita.report.comparison.page import comparison_page
from partita.studies.comparison import reopen
from report.run.test_page import ParsedPage, check_charts

pytestmark = pytest.mark.usefixtures("reports", "no_figures")


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choices") / "grid"
    done(folder, values("fedalt", compare={"seeds": 1}, evaluate={"every": 1}))
    return folder


def files(folder: Path) -> dict[Path, bytes]:
    """Every file of the runs and the config."""
    return {path: path.read_bytes() for path in (folder / "config.toml", *(folder / "cells").rglob("*.*"))}


@pytest.mark.slow
def test_another_baseline_is_paired_without_training(grid: Path) -> None:
    before, first = files(grid), table(grid)

    assert main(["report", str(grid), "baseline=local", "columns=difference,worth_joining"]) == 0

    assert files(grid) == before
    second = {row["method"]: row for row in table(grid)}
    by_method = {row["method"]: row for row in first}
    # Both differences are from models on the same devices, so they differ by that of the baselines.
    gap = float(second["FedAvg, continued"]["difference from Local only value"])
    for method in ("FedAvg", "FedAlt"):
        old = float(by_method[method]["difference from FedAvg, continued value"])
        assert float(second[method]["difference from Local only value"]) == pytest.approx(old + gap)
    heads = (grid / "tables/methods.md").read_text().splitlines()[2]
    assert heads == "| method | personal part | difference from Local only | worth joining |"
    assert "difference from Local only" in (grid / "report.html").read_text()
    # All other columns are as they were, and the next report has the comparison's own choice again.
    assert [row["closeness mean"] for row in second.values()] == [row["closeness mean"] for row in first]
    assert main(["report", str(grid)]) == 0
    assert table(grid) == first


def test_every_method_that_is_evaluated_during_training_has_its_costs_of_reaching(grid: Path) -> None:
    rows = {row["method"]: row for row in table(grid, "training")}

    # The reference is as good as it is at its end after 2 + 2 rounds, if not before.
    assert 0 < float(rows["FedAvg, continued"]["rounds to reach FedAvg, continued mean"]) <= 4
    assert all(float(row["kB of memory in a visit"]) > 0 for row in rows.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["baseline=fedatl"],
            "`baseline` must be one of the methods compared, local, fedavg, fedalt, got 'fedatl'.",
        ),
        (["columns=metric,memry"], "There is no column 'memry'. Known: kept, "),
        (["colums=metric"], "Unknown key `colums`. Did you mean `columns`? Known keys of `partita report`: "),
    ],
)
def test_what_the_comparison_does_not_have_is_refused(
    grid: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(grid), *arguments]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"partita: {message}")


def test_a_run_has_no_baseline_to_choose(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = grid / "cells/fedalt-output-3"

    assert main(["report", str(run), "baseline=local"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"partita: `baseline` and `columns` are for comparisons, and `{run}` holds a run."


@pytest.mark.slow
def test_the_page_shows_the_chosen_columns_only(grid: Path) -> None:
    main(["report", str(grid), "columns=memory"])

    headings = ParsedPage(grid / "report.html").texts["th"]
    assert headings[:3] == ["method", "personal part", "kB of memory in a visit"]
    assert "closeness" not in headings[:5]


@pytest.mark.slow
def test_every_chart_of_a_comparison_is_valid(grid: Path) -> None:
    page = comparison_page(reopen(grid))

    assert {"forest", "bytes", "parameters", "curves", "scatter"} <= {chart.name for chart in page.charts}
    check_charts(page)
