"""Charts of names with any character: they are drawn, and their titles are shown as they are."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from partita.report.charts.chart import Legend
from partita.report.charts.devices import sorted_changes
from partita.report.figures import write_figures
from partita.shown import shown_in


@pytest.mark.parametrize("name", ["error \x00\x1b\ufffe", r"error \u12 \input", "error \"'`</text>"])
def test_a_chart_shows_any_name(tmp_path: Path, name: str) -> None:
    legend = Legend(models=[name], shown=[name])
    chart = sorted_changes(f"change in {name}", f"caption {name}", legend, has_band=False)
    rows = [
        {"device": f"{place}{name}", "model": name, "split": "test", "change": place / 7, "rank": place}
        for place in range(3)
    ]

    write_figures([chart], shown_in({"devices": rows}), tmp_path / "figures")

    tree = ElementTree.fromstring((tmp_path / "figures/sorted.svg").read_bytes())
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert f"change in {shown_in(name)}" in texts
    assert shown_in(name) in texts
    assert (tmp_path / "figures/sorted.png").stat().st_size > 1000
