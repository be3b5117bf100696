"""The charts of models by cost: the reference is always drawn, and the Pareto front is that of all models."""

from types import SimpleNamespace
from typing import Any

from partita.report.charts.chart import Legend
from partita.report.comparison import tradeoffs
from partita.report.comparison.tradeoffs import PARAMETERS, tradeoff_section
from partita.report.forest_section import Line


def point(model: str, mean: float, personal: int, *, is_front: bool) -> dict[str, Any]:
    return {"model": model, "point": mean, "personal": personal, "personal_front": is_front}


def test_the_front_has_also_models_that_are_not_drawn(monkeypatch: Any) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(tradeoffs, "tradeoff", drawn.append)
    legend = Legend(models=["reference"], shown=["reference"])
    monkeypatch.setattr(tradeoffs, "legend_of", lambda standings: legend)
    points = [
        *(point(f"near {at}", 0.9 + at / 1000, 100, is_front=at == 6) for at in range(7)),
        point("reference", 0.899, 10, is_front=True),
        point("cheap", 0.1, 0, is_front=True),
    ]
    standings: Any = SimpleNamespace(
        points=points,
        line=Line(title="reference", mean=0.899, direction="up"),
        data=SimpleNamespace(results=SimpleNamespace(direction="up")),
    )

    section = tradeoff_section(standings, PARAMETERS, "test accuracy")

    (content,) = drawn
    assert [each["model"] for each in content.points] == [*(f"near {at}" for at in range(7)), "reference"]
    assert section.paragraphs == ["Not drawn, far from the others: cheap: 0.1000."]
    assert "cheap (0 personal parameters), reference (10 personal parameters), near 6" in content.caption
    assert "Gray points without a name are the other models" in content.caption  # near 0 to near 5
    assert section.finding == (
        "The best, near 6, has 0.9060 at 100 personal parameters; reference is 0.0070 behind at 10 personal parameters"
    )
