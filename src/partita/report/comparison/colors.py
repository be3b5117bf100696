"""The colors of a comparison's models, the same in all charts of its page."""

from partita.report.charts.chart import Legend
from partita.report.comparison.standings import Standings
from partita.studies.cells import START


def legend_of(standings: Standings, *, has_start: bool = True) -> Legend:
    """Return the colors of the best models, the reference and the pretrained model; all others are gray.

    Args:
        standings: all models.
        has_start: whether the chart shows the pretrained model.
    """
    data, start = standings.data, (START, "")
    shown = [variant for variant in standings.shown if variant != start]
    own = [data.name(variant) for variant in shown]
    models = [*own, *([data.name(start)] if start in data.results.outcomes else [])]
    return Legend(models=models, shown=models if has_start else own)
