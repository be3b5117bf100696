"""The colors of a comparison's models, the same in all charts of its page."""

from partita.report.charts.chart import Legend
from partita.report.comparison.standings import Standings
from partita.studies.cells import START


def legend_of(standings: Standings) -> Legend:
    """Return the colors of the best models, the reference and the pretrained model; all others are gray."""
    start = (START, "")
    variants = [*(variant for variant in standings.shown if variant != start), start]
    known = standings.data.results.outcomes
    models = [standings.data.name(variant) for variant in variants if variant in known]
    return Legend(models=models, shown=models)
