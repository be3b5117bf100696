"""The tables that commands print."""

from dataclasses import replace

from partita.report.tables.commands import forecast_table, trials_table
from partita.report.tables.entries import MeanStd
from partita.studies.cells import Cell
from partita.studies.forecast import Expected, Forecast
from partita.studies.trials import Trial, Tuned


def test_the_best_trial_is_marked() -> None:
    trials = [
        Trial(number=0, choice={"a": 1}, value=0.0, status="done"),
        Trial(number=1, choice={"a": 2}, value=None, status="stopped"),
    ]

    table = trials_table(Tuned(metric="gain", trials=trials, best=trials[0]))

    assert table.columns == ["trial", "a", "gain", "status"]
    assert table.rows[0] == ["0", "1", MeanStd(0.0, is_best=True), "done"]
    assert table.rows[1] == ["1", "2", None, "stopped"]
    assert table.title == "Validation gain of 2 trials"
    one = trials_table(Tuned(metric="gain", trials=trials[:1], best=trials[0]))
    assert one.title == "Validation gain of 1 trial"


def test_a_forecast_has_the_time_of_runs_and_of_tuning() -> None:
    cells = [Cell(method=m, partition="", seed=s, values={}) for s in (1, 2) for m in ("", "local", "fedavg")]
    titles = {"local": "Local only", "fedavg": "FedAdam, continued"}
    forecast = Forecast([Expected(cell, 60.0) for cell in cells], trials=4, titles=titles, notes=["Why."])

    expected = forecast_table(forecast)

    # 6 cells of a minute; before that, one start and 4 trials of two methods.
    assert expected.title == "6 runs: about 6 minutes and 9 minutes for 4 trials per method in one process"
    assert expected.notes == ["Why."]
    assert [row[1] for row in expected.rows[:3]] == ["pretraining", "Local only", "FedAdam, continued"]
    two = forecast_table(replace(forecast, workers=2))
    assert two.title == "6 runs: about 3 minutes and 4 minutes for 4 trials per method with 2 workers"
    assert two.notes == [
        "Why.",
        "Seconds are processor time, which 2 workers share: each has a core of its own.",
    ]
    unknown = forecast_table(Forecast([Expected(cells[0], None)], trials=0, titles={}, notes=[]))
    assert unknown.title == "1 run: about 0 seconds in one process"
    assert unknown.notes == ["No time: all devices failed in the short trial."]
