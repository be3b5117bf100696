"""How a result is shown, and its report."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

import partita
from partita import FedAlt, Metric, Partition
from partita.errors import ConfigError
from partita.report.tables.table import Table, to_html
from small import affine_task


def result(out: Path | None = None, metric: str = "closeness") -> partita.Result:
    task = affine_task(metrics={metric: Metric(lambda p, t: -(p - t).abs().mean().item())})
    return partita.run(task, Partition(task.model(), personal="offset"), FedAlt(), rounds=1, out=out)


class Cells(HTMLParser):
    """The texts in the cells of a table, row by row."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_a_result_is_one_line_with_the_metric_of_each_stage() -> None:
    shown = result()

    before, after = (stage["weighted_mean"] for stage in shown.summary["stages"].values())
    assert repr(shown) == (
        f"Result(test closeness over 6 devices: {before:.4f} pretrained, {after:.4f} personalized)"
    )


@pytest.mark.parametrize("out", [None, "mine"])
def test_in_a_notebook_a_result_is_a_table_of_its_models(out: str | None, tmp_path: Path) -> None:
    shown = result(out and tmp_path / out)

    header, *rows = Cells(shown._repr_html_()).rows

    titles = ["Start", "FedAlt"] if out else ["pretrained", "personalized"]
    means = [f"{stage['mean']:.4f}" for stage in shown.summary["stages"].values()]
    assert [row[0] for row in rows] == titles
    assert [row[header.index("mean")] for row in rows] == means


def test_texts_in_a_notebook_are_escaped() -> None:
    table = Table(name="x", title="<b>", columns=["a & b"], rows=[["<script>"]], notes=['"<i>"'])

    page = to_html(table)

    assert '<caption style="text-align: left">&lt;b&gt;</caption>' in page
    assert [row[0] for row in Cells(page.partition("<details>")[0]).rows] == ["a & b", "<script>"]
    assert all(text not in page for text in ("<script>", "<b>", "<i>"))


@pytest.mark.usefixtures("reports", "no_figures")
def test_a_result_writes_its_report_to_its_folder(tmp_path: Path) -> None:
    assert result(tmp_path / "mine").report() == tmp_path / "mine/report.html"

    assert "FedAlt" in (tmp_path / "mine/report.html").read_text()
    with pytest.raises(
        ConfigError, match="has no folder for a report: run it again with `out`, a new folder"
    ):
        result().report()
