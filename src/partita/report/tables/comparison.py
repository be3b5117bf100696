"""The tables of a comparison, modeled on the paper's."""

from collections.abc import Mapping
from dataclasses import replace

from partita.durable import locked, replace_file
from partita.methods import registry
from partita.protocol import Stage
from partita.report.differences import MetricsBySeed, difference
from partita.report.ranking import Ranking
from partita.report.references import references
from partita.report.tables.commands import trials_table
from partita.report.tables.entries import Entry, Interval
from partita.report.tables.means import marked, marked_note, mean_std
from partita.report.tables.methods import method_tables
from partita.report.tables.metrics import comparison_metrics
from partita.report.tables.models import at_stage, interval_notes, last, reference_of
from partita.report.tables.table import Table, write_tables
from partita.report.tables.tuned import tuned_table
from partita.report.tables.unseen import comparison_unseen_table
from partita.runs.folder import RunFolder
from partita.studies.cells import START
from partita.studies.comparison import Comparison, first_seed
from partita.studies.results import Results, collect
from partita.studies.variants import STATELESS


def write_comparison_tables(comparison: Comparison, failed: Mapping[str, str]) -> list[Table]:
    """Write the tables over all finished runs, `references.bib`, and the tables of tuning trials.

    Returns:
        The tables of the comparison.
    """
    folder = RunFolder(comparison.folder).tables_folder
    with locked(comparison.folder, wait=True):
        results = collect(comparison, failed)
        tables = comparison_tables(results)
        write_tables(tables, folder)
        papers = [registry.find(registry.DEFAULT).citation, *results.citations.values()]
        replace_file(folder / "references.bib", references(papers).encode())
        for cell in first_seed(comparison.cells):
            if tuned := comparison.trials_of(cell):
                write_tables([trials_table(tuned)], comparison.trials_folder(cell))
    return tables


def comparison_tables(results: Results) -> list[Table]:
    """Return all tables that are not empty."""
    methods, *others = method_tables(results)
    tables = [
        methods,
        comparison_metrics(results),
        _partial(results),
        _finetuning(results),
        _stateless(results),
        *others,
        comparison_unseen_table(results),
        tuned_table(results),
    ]
    return [_with_failures(table, results) for table in tables if table.rows]


def _with_failures(table: Table, results: Results) -> Table:
    """Return a table that names every cell and stage that failed, and so is not in it."""
    missing = [note for note in results.failures if note not in table.notes]
    return replace(table, notes=[*table.notes, *missing])


def _partial(results: Results) -> Table:
    """Return the paper's table of methods for one and the same personal part, a row per part."""
    compared = {variant[0] for variant in results.outcomes}
    known = [
        name for name, method in registry.every().items() if method.in_partial_table and name in compared
    ]
    rows: list[list[Entry]] = []
    for partition in dict.fromkeys(part for method, part in results.outcomes if method in known):
        found = {m: results.outcomes[m, partition] for m in known if (m, partition) in results.outcomes}
        models = [last(runs) for runs in found.values()]
        ranking = Ranking(models, results.direction, reference_of(results))
        means = dict(zip(found, marked(models, ranking), strict=True))
        rows.append([partition, *(means.get(method) for method in known)])
    return Table(
        name="partial",
        title=f"Partial personalization after the last stage: {_metric(results)}",
        columns=["personal part", *(results.titles[method] for method in known)],
        rows=rows if len(known) > 1 else [],
        notes=[marked_note(" of each row")],
    )


def _finetuning(results: Results) -> Table:
    """Return the effect of the final fine-tuning."""
    rows: list[list[Entry]] = []
    for (method, partition), runs in results.outcomes.items():
        before, after = (at_stage(runs, stage) for stage in (Stage.PERSONALIZED, Stage.FINETUNED))
        if before and after and method != START:
            rows.append([results.titles[method], partition, *_pair(before, after, results)])
    intervals = interval_notes(rows)
    return Table(
        name="finetuning",
        title=f"Final fine-tuning: {_metric(results)}",
        columns=["method", "personal part", "before", "after", "improvement"],
        rows=rows,
        notes=["Improvement: paired over devices and seeds, with its 95 % confidence interval.", *intervals],
        elsewhere=intervals,
    )


def _stateless(results: Results) -> Table:
    """Return the effect of devices that keep no personal part between rounds."""
    rows: list[list[Entry]] = []
    for (method, partition), runs in results.outcomes.items():
        other = results.outcomes.get((method + STATELESS, partition))
        if other:
            rows.append([results.titles[method], partition, *_pair(last(runs), last(other), results)])
    intervals = interval_notes(rows)
    return Table(
        name="stateless",
        title=f"Stateful and stateless devices after the last stage: {_metric(results)}",
        columns=["method", "personal part", "stateful", "stateless", "difference"],
        rows=rows,
        notes=["Difference: paired over devices and seeds, with its 95 % confidence interval.", *intervals],
        elsewhere=intervals,
    )


def _pair(before: MetricsBySeed, after: MetricsBySeed, results: Results) -> list[Entry]:
    """Return the means of two models, and the difference of the second from the first."""
    found = difference(after, before, results.direction)
    return [mean_std(before), mean_std(after), Interval.of(found)]


def _metric(results: Results) -> str:
    return f"{results.split} {results.metric}"
