"""Evaluations during training in a comparison: few enough of all visits, and the same devices in every cell."""

import re
from itertools import count, product
from pathlib import Path

import pytest

from compared import ROUNDS, started, values
from partita.config.changes import value_at, with_values
from partita.protocol import Stage
from partita.studies.begin import cells_in, check_cell
from partita.studies.cells import START
from partita.studies.compare import finish
from partita.studies.evaluations import Visits, default_evaluations
from partita.studies.forecast import forecast
from partita.training.plan import BLOCK

LONG = values("fedalt", "local", compare={"seeds": 1})
LONG |= {"pretrain": {**ROUNDS, "rounds": 30, "devices_per_round": 5}}
LONG |= {"personalize": {**ROUNDS, "rounds": 40, "devices_per_round": 6}}
SIZES = (1, 2, 3, 7, 20, 100, 1_000)


def test_less_than_one_visit_in_ten_is_an_evaluation_during_training() -> None:
    chosen = 0
    for pretrain, later, cohort, devices in product(SIZES, (0, *SIZES), (1, 10, 50), SIZES):
        start = Visits([pretrain], pretrain * cohort + devices)
        cell = Visits([0, later], later * cohort + 2 * devices)
        found = default_evaluations([start, cell], devices)
        if found is None:
            continue
        every, sample = found
        chosen += 1
        assert every >= 1
        assert 1 <= sample <= devices
        for each in (start, cell):
            during = each.evaluations(every) * sample
            assert 10 * during < each.visits + during
            assert each.evaluations(every) <= 20
    assert chosen > 500


def test_evaluations_are_as_many_as_fit() -> None:
    # 19 evaluations of 20 devices are 380 visits: of 380 + 3421 less than a tenth, of 380 + 3420 a tenth.
    assert default_evaluations([Visits([0, 100], 3421)], devices=500) == (5, 20)
    assert default_evaluations([Visits([0, 100], 3420)], devices=500) == (6, 23)  # 16: 3419 // (9 * 16)
    # Few devices: all of them. Few visits: 4 evaluations, of fewer than 20 devices. Fewer still: none.
    assert default_evaluations([Visits([0, 100], 3420)], devices=8) == (5, 8)
    assert default_evaluations([Visits([0, 100], 110)], devices=500) == (20, 3)
    assert default_evaluations([Visits([0, 100], 9)], devices=500) is None
    assert default_evaluations([Visits([0, 1], 1000)], devices=500) is None
    # A fixed number of devices: as many evaluations as fit.
    assert default_evaluations([Visits([0, 100], 3420)], devices=500, sample=100) == (25, 100)


def test_all_cells_evaluate_the_same_sample_every_few_rounds_unless_the_config_says_how_often() -> None:
    cells, _ = cells_in(LONG, Path())

    keys = {tuple(value_at(cell.values, f"evaluate.{key}") for key in ("every", "sample")) for cell in cells}
    # START has the fewest visits, 30 * 5 + 6 = 156: every 8 rounds, 3 times, 155 // (9 * 3) = 5 devices.
    assert keys == {(8, 5)}
    own, _ = cells_in(with_values(LONG, {"evaluate.every": 0}), Path())
    patient, _ = cells_in(with_values(LONG, {"personalize.patience": 5, "task.validation": 0.2}), Path())
    assert {value_at(cell.values, "evaluate.sample") for cell in (*own, *patient)} == {None}


def test_the_visits_of_every_cell_are_counted_from_its_plan() -> None:
    for cell in cells_in(LONG, Path())[0]:
        run = check_cell(cell, Path())
        plan = run.built.plan
        begun = {Stage.PRETRAINED} if cell.begins_pretrained else set()
        visits = during = 0
        for turn in plan.turns(run.built.task.devices.ids):
            training = plan.training(turn.stage)
            if turn.stage in begun and not turn.final:
                continue
            size = training.devices_per_round if turn.work == "update" and training else len(turn.block)
            assert size <= BLOCK
            during += size if turn.work == "evaluate" and not turn.final else 0
            visits += size
        assert 10 * during < visits
        assert (during > 0) == (cell.method != "local")


def test_the_forecast_counts_evaluations_during_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.training.loop.time.process_time", count().__next__)

    seconds = {each.cell.method: each.seconds for each in forecast(LONG, Path()).cells}

    # A round takes a second and has 3 devices. START: 30 * 5 + 6 + 3 * 5 visits. FedAlt: 40 * 6 in training, 6
    # in fine-tuning, 3 * 6 at the end of stages, and 4 * 5.
    assert seconds[START] == pytest.approx(171 / 3)
    assert seconds["fedalt"] == pytest.approx(284 / 3)


@pytest.mark.slow
def test_evaluations_during_training_are_shown_and_change_no_result_of_a_cell(tmp_path: Path) -> None:
    short = values("fedalt", compare={"seeds": 1})
    finished, texts = {}, list[str]()
    for name, changes in {"default": {}, "never": {"evaluate.every": 0}}.items():
        finished[name] = started(tmp_path / name, with_values(short, changes))
        assert not finish(finished[name], lambda done, total, text: texts.append(text))

    assert any(re.fullmatch(r"fedalt-output-3, \d+ %, closeness -\d\.\d{4}", text) for text in texts)
    for cell, other in zip(*(each.cells for each in finished.values()), strict=True):
        own, plain = finished["default"].run_of(cell), finished["never"].run_of(other)
        evaluated = [line for line in own.rounds() if line["work"] == "evaluate" and not line["final"]]
        assert [len(line["asked"]) for line in evaluated] == ([1] if cell.method != "local" else [])
        assert own.devices.equals(plain.devices)
        assert own.summary == plain.summary
        for folder in ("shared", "personal"):
            files = {file.name: file.read_bytes() for file in (own.path / folder).glob("*")}
            assert files == {file.name: file.read_bytes() for file in (plain.path / folder).glob("*")}
