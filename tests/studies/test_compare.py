"""Comparisons: one start per seed, the bits of a single run in every cell, and resuming after any interruption."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import partita
from compared import ROUNDS, done, low_rank, quiet, started, table, tables, values
from partita.config.reading import config_of, read_config, read_values
from partita.config.schema import Config
from partita.durable import locked
from partita.errors import ConfigError, RunFailed
from partita.params import to_bytes
from partita.report.tables.comparison import write_comparison_tables
from partita.runs.tensors import shared_tensors
from partita.seals import read_json
from partita.studies import run as runner
from partita.studies.begin import cells_in
from partita.studies.compare import finish, resume
from partita.studies.comparison import Comparison, reopen
from partita.studies.forecast import forecast
from partita.studies.results import collect
from partita.tasks.build import build_model

METHODS = ("fedalt", "fedalt-stateless")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A comparison of two seeds that nothing has interrupted."""
    comparison, failed = done(tmp_path_factory.mktemp("whole") / "grid", values(*METHODS))
    assert failed == {}
    return comparison


@pytest.mark.slow
def test_every_cell_of_a_seed_begins_from_the_same_pretrained_bits(whole: Comparison) -> None:
    starts: dict[int, set[bytes]] = {3: set(), 4: set()}
    for cell in whole.cells:
        if cell.method == "" or cell.begins_pretrained:
            file = whole.folder_of(cell) / "shared/pretrained.safetensors"
            starts[cell.seed].add(file.read_bytes())

    assert {seed: len(found) for seed, found in starts.items()} == {3: 1, 4: 1}
    assert starts[3] != starts[4]


def test_only_the_start_pretrains(whole: Comparison) -> None:
    rounds = {
        cell.kind: sum(
            (line["stage"], line["work"]) == ("pretrained", "update") for line in whole.run_of(cell).rounds()
        )
        for cell in whole.cells
    }

    assert {kind for kind, count in rounds.items() if count} == {"start"}


@pytest.mark.parametrize("stateful", [True, False])
def test_a_cell_has_the_bits_of_a_run_with_the_same_settings(
    whole: Comparison, tmp_path: Path, stateful: bool
) -> None:
    alone = values()
    del alone["compare"]
    alone |= {"seed": 4, "out": str(tmp_path / "alone"), "partition": {"personal": "output"}}
    alone["personalize"] = {**ROUNDS, "method": "fedalt", "stateful": stateful}

    run = runner.prepare(config_of(alone), Path())
    runner.finish(run)

    cell = whole.folder / "cells" / f"fedalt{'' if stateful else '-stateless'}-output-4"
    names = [
        "devices.parquet",
        "summary.json",
        *(f"shared/{n}.safetensors" for n in ("pretrained", "personalized")),
    ]
    names += [f"personal/{path.name}" for path in (cell / "personal").iterdir()]
    assert len(names) > 6
    for name in names:
        assert (cell / name).read_bytes() == (run.folder.path / name).read_bytes(), name


def test_the_table_has_the_values_of_the_summaries(whole: Comparison) -> None:
    rows = {(row["method"], row["personal part"]): row for row in table(whole.folder)}

    for method, kind, stage in [
        ("FedAvg", "start", "pretrained"),
        ("FedAvg, continued", "fedavg", "personalized"),
        ("FedAlt, stateless", "fedalt-stateless-output", "finetuned"),
        ("Local only", "local", "finetuned"),
    ]:
        means = [
            json.loads((whole.folder / "cells" / f"{kind}-{seed}" / "summary.json").read_text())["stages"][
                stage
            ]
            for seed in (3, 4)
        ]
        row = rows[method, "output" if "output" in kind else ""]
        assert float(row["closeness mean"]) == pytest.approx(sum(m["weighted_mean"] for m in means) / 2)
    assert [rows[key]["rounds"] for key in rows] == ["2", "0", "4", "4", "4"]


def test_bytes_are_those_of_training_and_of_pretraining(whole: Comparison) -> None:
    rows = {row["method"]: float(row["MB up and down"]) * 1e6 for row in table(whole.folder)}

    # 4 numbers of 4 bytes, down and up, to 3 devices, in 2 rounds.
    assert rows["FedAvg"] == pytest.approx(4 * 4 * 2 * 3 * 2)
    assert rows["FedAvg, continued"] == pytest.approx(2 * rows["FedAvg"])
    # The slope alone travels when FedAlt trains, and once more to each of 6 devices to finetune.
    assert rows["FedAlt"] == pytest.approx(rows["FedAvg"] + 3 * 4 * (2 * 3 * 2 + 6))


class Stop(Exception):
    pass


@pytest.mark.slow
def test_a_continued_cell_has_the_bits_of_the_same_three_runs_by_hand(tmp_path: Path) -> None:
    def interrupt(_: float, __: int, text: str) -> None:
        if text.startswith("finetune-continued-3"):  # After its first round.
            raise Stop

    # Pretrained with all tensors; BatchNorm's statistics continue, and the first layer is frozen from then on.
    given = values(
        "finetune",
        task={"kind": "compared:normalized"},
        partition={"personal": ["head.*"], "frozen": ["stem.*"]},
        compare={"seeds": 1},
    )
    comparison = started(tmp_path / "grid", given)
    with pytest.raises(Stop):
        finish(comparison, interrupt)
    failed = finish(reopen(comparison.folder), quiet)
    write_comparison_tables(comparison, failed)
    cell = comparison.folder / "cells/finetune-continued-3"
    first = {**given, "partition": {"personal": "none", "frozen": ["stem.*"]}, "out": str(tmp_path / "first")}
    first["personalize"] = {**ROUNDS, "method": "fedavg"}
    second = {**given, "out": str(tmp_path / "second"), "partition": {"frozen": ["stem.*"]}}
    second |= {"personalize": {"method": "finetune"}, "pretrain": {"rounds": 0}}

    run = runner.prepare(config_of(first), Path())
    runner.finish(run)
    whole = {**shared_tensors(run.folder, "pretrained"), **shared_tensors(run.folder, "personalized")}
    (tmp_path / "whole.safetensors").write_bytes(to_bytes(whole))
    second["model"] = {"start": str(tmp_path / "whole.safetensors")}
    runner.finish(runner.prepare(config_of(second), Path()))

    assert failed == {}
    assert "norm.running_mean" in whole
    names = [f"personal/{path.name}" for path in (cell / "personal").iterdir()]
    assert len(names) >= 6
    for name in ("devices.parquet", "summary.json", "shared/pretrained.safetensors", *names):
        assert (cell / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    rows = {row["method"]: row for row in table(comparison.folder)}
    continued, reference = rows["Finetune after continued FedAvg"], rows["FedAvg, continued"]
    assert (rows["Finetune"]["rounds"], continued["rounds"], reference["rounds"]) == ("2", "4", "4")
    sent = {name: float(row["MB up and down"]) for name, row in rows.items()}
    # Fine-tuning after them sends the same model to the same devices.
    assert sent["Finetune after continued FedAvg"] - sent["FedAvg, continued"] == pytest.approx(
        sent["Finetune"] - sent["FedAvg"]
    )


@pytest.mark.slow
def test_a_failed_reference_fails_the_cells_that_begin_from_it_alone(tmp_path: Path) -> None:
    settings = {"fedavg": {"personalize": {"shared_lr": 1e30}}}
    given = values("finetune", compare={"seeds": 1, "settings": settings, "tune": 1})

    comparison, failed = done(tmp_path / "grid", given)

    assert failed["finetune-continued-3"] == "its start failed"
    assert list(failed) == ["fedavg-3", "finetune-continued-3"]
    assert not comparison.tuned_file(comparison.cells[-1]).exists()


@pytest.mark.slow
def test_an_interrupted_comparison_resumes_to_the_same_tables(whole: Comparison, tmp_path: Path) -> None:
    told: list[float] = []

    def stop(done: float, *_: object) -> None:
        told.append(done)
        if len(told) == 9:
            raise Stop

    comparison = started(tmp_path / "grid", values(*METHODS))
    with pytest.raises(Stop):
        finish(comparison, stop)
    # A kill between a cell's folder and its config leaves this.
    (tmp_path / "grid/cells/fedalt-output-4/shared").mkdir(parents=True)
    (tmp_path / "grid/cells/fedalt-output-4/config.toml.tmp").write_text("half")

    again = reopen(tmp_path / "grid")
    write_comparison_tables(again, finish(again, quiet))

    assert 0 < told[-1] < len(comparison.cells) / 2
    assert tables(again.folder) == tables(whole.folder)


def test_a_finished_comparison_runs_nothing_again(whole: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "finish", lambda *_: pytest.fail("A cell was run again."))

    assert finish(reopen(whole.folder), quiet) == {}


def test_a_cell_that_another_process_runs_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = started(tmp_path / "grid", values(compare={"seeds": 1}))
    lock = locked(tmp_path / "grid/cells/start-3.lock")
    assert lock.__enter__()
    while_held: set[str] = set()

    def other_process_ends(_: float) -> None:
        while_held.update(path.name for path in (tmp_path / "grid/cells").iterdir() if path.is_dir())
        lock.__exit__(None, None, None)

    monkeypatch.setattr("partita.studies.jobs.time.sleep", other_process_ends)

    assert finish(comparison, quiet) == {}

    # Cells that begin from the start waited for it; local training did not.
    assert while_held == {"local-3"}


def test_an_error_while_the_lock_is_held_is_raised(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), locked(tmp_path / "lock"):
        raise BlockingIOError

    with locked(tmp_path / "lock") as is_ours:
        assert is_ours


DIVERGES = {"settings": {"fedalt": {"personalize": {"shared_lr": 1e30, "personal_lr": 1e30}}}}


def test_a_failed_cell_is_named_and_the_others_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison, failed = done(tmp_path / "grid", values("fedalt", "fedsim", compare={"seeds": 1, **DIVERGES}))

    assert list(failed) == ["fedalt-output-3"]
    assert "No device replied in any round of `personalized`" in failed["fedalt-output-3"]
    assert [row["method"] for row in table(comparison.folder)] == [
        *("FedAvg", "Local only", "FedAvg, continued", "FedSim"),
    ]
    notes = (comparison.folder / "tables/methods.md").read_text()
    assert "fedalt-output-3 failed: No device replied" in notes
    # The failure is recorded: no process runs the cell again.
    monkeypatch.setattr(runner, "finish", lambda *_: pytest.fail("A cell was run again."))
    assert finish(reopen(comparison.folder), quiet) == failed


def test_a_failed_start_fails_the_cells_that_begin_from_it_alone(tmp_path: Path) -> None:
    diverges = {**ROUNDS, "shared_lr": 1e30}
    settings = {"local": {"finetune": {"personal_lr": 0.05}}}

    comparison, failed = done(
        tmp_path / "grid", values("fedalt", pretrain=diverges, compare={"seeds": 1, "settings": settings})
    )

    assert list(failed) == ["start-3", "fedavg-3", "fedalt-output-3"]
    assert failed["fedavg-3"] == "its start failed"
    assert [row["method"] for row in table(comparison.folder)] == ["Local only"]


def test_a_comparison_without_a_finished_run_fails(tmp_path: Path) -> None:
    comparison = started(tmp_path / "grid", values(compare={"seeds": 1}))

    with pytest.raises(RunFailed, match="nothing to compare. 3 of 3 runs are not finished: .* a failed: b"):
        write_comparison_tables(comparison, {"a": "b"})


@pytest.mark.slow
def test_a_comparison_works_in_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    _, failed = done(Path("here/grid"), values("fedalt", compare={"seeds": 1}))
    monkeypatch.chdir("/")

    assert failed == {}
    assert finish(reopen(tmp_path / "here/grid"), quiet) == {}
    config = read_config(tmp_path / "here/grid/cells/fedalt-output-3/config.toml")
    assert config.model.start == "../start-3/shared/pretrained.safetensors"


def test_progress_covers_the_comparison_and_advances_inside_a_cell(tmp_path: Path) -> None:
    told: list[tuple[float, int, str]] = []
    comparison = started(tmp_path / "grid", values("fedalt", compare={"seeds": 1}))

    finish(comparison, lambda *progress: told.append(progress))

    parts = [part for part, _, _ in told]
    assert parts == sorted(parts)
    assert {whole for _, whole, _ in told} == {4}
    assert parts[-1] == 4
    assert sum(part % 1 > 0 for part in parts) > 6
    assert told[0][2].startswith("start-3, ")


@pytest.mark.slow
def test_a_single_device_and_a_single_seed_are_compared(tmp_path: Path) -> None:
    rounds = {**ROUNDS, "devices_per_round": 1}
    given = values("fedalt", "finetune", task={"kind": "compared:one_device"}, compare={"seeds": 1})

    comparison, failed = done(tmp_path / "grid", given | {"pretrain": rounds, "personalize": rounds})

    assert failed == {}
    rows = table(comparison.folder)
    assert {row["difference from FedAvg, continued low"] for row in rows} == {""}
    assert all(row["closeness std"] == "" for row in rows)
    assert rows[0]["difference from FedAvg, continued value"] != ""


@pytest.mark.slow
def test_the_lowest_mean_is_marked_if_lower_is_better(tmp_path: Path) -> None:
    given = values("fedalt", task={"kind": "compared:worse"}, compare={"seeds": 1})

    comparison, _ = done(tmp_path / "grid", given)

    rows = table(comparison.folder)
    best = min(rows, key=lambda row: float(row["error mean"]))
    assert [row["error is_best"] for row in rows] == [str(int(row is best)) for row in rows]


@pytest.mark.slow
def test_devices_without_a_metric_are_left_out_and_reported(tmp_path: Path) -> None:
    given = values("fedalt", task={"kind": "compared:undefined_on_some"}, compare={"seeds": 1})

    comparison, failed = done(tmp_path / "grid", given)

    assert failed == {}
    rows = pq.read_table(comparison.folder / "cells/fedalt-output-3/devices.parquet").to_pylist()
    known = [r for r in rows if (r["stage"], r["split"]) == ("finetuned", "test") and r["metric"] is not None]
    assert 0 < len(known) < 6
    mean = sum(r["metric"] * r["weight"] for r in known) / sum(r["weight"] for r in known)
    (alt,) = [row for row in table(comparison.folder) if row["method"] == "FedAlt"]
    assert float(alt["closeness mean"]) == pytest.approx(mean)
    notes = (comparison.folder / "tables/methods.md").read_text()
    cells = "start-3, local-3, fedavg-3 and 1 more"
    reason = "d0: `closeness`: the mean is negative"
    assert f"{cells}: {6 - len(known)} devices have no test closeness ({reason})." in notes


@pytest.mark.slow
def test_an_earlier_stage_does_not_replace_a_missing_final_metric(tmp_path: Path) -> None:
    settings = {"fedalt": {"finetune": {"personal_lr": 1000.0}}}
    given = values("fedalt", task={"kind": "compared:diverging_metric"})

    comparison, _ = done(
        tmp_path / "grid", given | {"compare": given["compare"] | {"seeds": 1, "settings": settings}}
    )

    assert "FedAlt" not in [row["method"] for row in table(comparison.folder)]
    notes = (comparison.folder / "tables/methods.md").read_text()
    assert "fedalt-output-3: 6 devices have no test closeness (d0: `closeness` has no value here)." in notes


@pytest.mark.slow
def test_without_pretraining_all_methods_begin_from_one_initialization(tmp_path: Path) -> None:
    given = values("fedalt", "fedadam", pretrain={**ROUNDS, "rounds": 0}, compare={"seeds": 1})

    comparison, failed = done(tmp_path / "grid", given)

    assert failed == {}
    kinds = ("start", "fedavg", "fedalt-output", "local")
    files = {(comparison.folder / f"cells/{k}-3/shared/pretrained.safetensors").read_bytes() for k in kinds}
    assert len(files) == 1
    devices = {row["method"]: row for row in table(comparison.folder, "devices")}
    assert (devices["FedAvg"]["same as FedAvg"], devices["FedAvg"]["better than FedAvg"]) == ("6.0", "0.0")
    assert devices["Start"]["same as FedAvg"] != "6.0"
    assert {row["method"]: row["rounds"] for row in table(comparison.folder)} == {
        "Start": "0",
        "Local only": "0",
        "FedAvg": "2",
        "FedAlt": "2",
        "FedAdam, all rounds": "2",
    }


@pytest.mark.slow
def test_served_models_are_compared(tmp_path: Path) -> None:
    given = values(
        "fedalt", evaluate={"choose": "validation"}, task={"validation": 0.3}, compare={"seeds": 1}
    )

    comparison, failed = done(tmp_path / "grid", given)

    assert failed == {}
    methods = [row["method"] for row in table(comparison.folder, "devices")]
    assert "FedAlt, chosen on validation" in methods
    assert "Local only, chosen on validation" not in methods
    served = pq.read_table(comparison.folder / "cells/fedalt-output-3/devices.parquet").to_pylist()
    order = [row["device"] for row in served if (row["stage"], row["split"]) == ("served", "test")]
    assert order == [f"d{n}" for n in range(6)]


@pytest.mark.slow
def test_runs_that_stop_early_are_named_and_all_of_their_rounds_are_counted(tmp_path: Path) -> None:
    # A rate of 0 never becomes better than after its first round: 2 rounds of pretraining, and 3 of 6.
    rounds = {"rounds": 6, "shared_lr": 0.0, "patience": 2}
    given = values(
        "fedalt",
        personalize=rounds,
        evaluate={"every": 1},
        task={"validation": 0.3},
        compare={"seeds": 1},
    )

    comparison, failed = done(tmp_path / "grid", given)

    assert failed == {}
    (row,) = [row for row in table(comparison.folder) if row["method"] == "FedAlt"]
    assert row["rounds"] == "5"
    note = "Stopped early, with all rounds counted in the costs: fedavg-3, fedalt-output-3 ("
    assert note in (comparison.folder / "tables/methods.md").read_text()


def get(config: Config, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


@pytest.mark.slow
def test_a_comparison_that_is_interrupted_in_tuning_keeps_the_trials_that_are_done(tmp_path: Path) -> None:
    comparison = started(tmp_path / "grid", values("fedalt", compare={"seeds": 1, "tune": 2}))
    first = comparison.folder / "tuned/local/trial-0"

    def interrupt(*_: object) -> None:
        if first.with_suffix(".json").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(comparison, quiet, interrupt)
    rounds = (first / "rounds.jsonl").read_bytes()

    assert finish(comparison, quiet) == {}
    assert (first / "rounds.jsonl").read_bytes() == rounds  # With the seconds of the first time.


@pytest.mark.slow
def test_every_method_has_the_same_number_of_trials_and_its_cells_use_the_best_values(tmp_path: Path) -> None:
    given = values("fedalt", "finetune", compare={"seeds": 1, "tune": 2})

    comparison, failed = done(tmp_path / "grid", given)

    assert failed == {}
    kinds = {"local", "fedavg", "fedalt-output", "finetune", "finetune-continued"}
    folder = comparison.folder / "tuned"
    assert {path.stem for path in folder.glob("*.json")} == kinds
    for kind in kinds:
        trials = [path for path in (folder / kind).glob("trial-*") if path.is_dir()]
        assert len(trials) == 2, kind
        found = read_json(folder / f"{kind}.json")
        config = read_config(comparison.folder / "cells" / f"{kind}-3" / "config.toml")
        assert {key: get(config, key) for key in found} == found
        # The cells train on all rows.
        assert "validation" not in config.task.options
    # One model is pretrained for all trials of all methods.
    assert (folder / "start").is_dir()
    assert not list(folder.glob("*/start"))
    # And one without the validation rows continues it: the reference's best trial.
    best = json.loads((folder / "fedavg/trials.json").read_text())["best"]["number"]
    trial = read_config(folder / "finetune-continued/trial-0/config.toml")
    assert trial.model.start == f"../../fedavg/trial-{best}/shared/whole.safetensors"


@pytest.mark.slow
def test_a_method_without_a_finished_trial_is_named_and_the_others_are_compared(tmp_path: Path) -> None:
    given = values("fedalt", compare={"seeds": 1, "tune": 1, **DIVERGES})

    comparison, failed = done(tmp_path / "grid", given)

    assert list(failed) == ["fedalt-output-3"]
    assert failed["fedalt-output-3"].startswith("Tuning: No trial ran to its end: No device replied")
    assert len(table(comparison.folder)) == 3


@pytest.mark.slow
def test_a_search_that_failed_starts_again_and_no_cell_runs_before_its_end(tmp_path: Path) -> None:
    given = values("fedalt", compare={"seeds": 1, "tune": 1, **DIVERGES})
    comparison, failed = done(tmp_path / "grid", given)
    cell = next(cell for cell in comparison.cells if cell.name in failed)

    with locked(comparison.lock_file(cell)):
        resume(comparison.folder)  # Another process has the cell: it is left alone.
    assert comparison.failed() == failed
    resume(comparison.folder)

    assert comparison.failed() == {}
    assert not comparison.trials_folder(cell).exists()
    assert not comparison.is_tuned(cell)
    # The search fails again, so the cell has never run with values that were not tuned.
    assert list(finish(comparison, quiet)) == list(failed)
    assert not comparison.folder_of(cell).exists()


@pytest.mark.slow
def test_a_search_with_nothing_to_choose_is_kept_when_its_cell_is_run_again(tmp_path: Path) -> None:
    given = values("ft_part", compare={"seeds": 1, "tune": 1}, finetune={"epochs": 0})
    comparison, _ = done(tmp_path / "grid", given)
    cell = next(cell for cell in comparison.cells if cell.method == "ft_part")
    assert comparison.tuned_to(cell) == {}
    comparison.record_failure(cell, RunFailed("No disk space."))
    trials = sorted(comparison.trials_folder(cell).rglob("*"))

    resume(comparison.folder)

    assert comparison.failed() == {}
    assert comparison.is_tuned(cell)
    assert sorted(comparison.trials_folder(cell).rglob("*")) == trials


def test_a_forecast_lists_all_cells_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    told = forecast(values("fedalt", "finetune", compare={"tune": 2}), Path())

    assert [each.cell.name for each in told.cells] == [
        f"{kind}-{seed}"
        for seed in (3, 4)
        for kind in ("start", "local", "fedavg", "fedalt-output", "finetune", "finetune-continued")
    ]
    assert all(each.seconds and each.seconds > 0 for each in told.cells)
    assert told.tuning > 0
    assert not list(tmp_path.iterdir())


def test_a_forecast_is_proportional_to_rounds_and_devices() -> None:
    few, many = (
        forecast(values("fedalt", personalize={**ROUNDS, "rounds": rounds}, compare={"seeds": 1}), Path())
        for rounds in (10, 10_000)
    )

    seconds = [{each.cell.kind: each.seconds or 0.0 for each in told.cells} for told in (few, many)]
    assert seconds[1]["fedalt-output"] > 50 * seconds[0]["fedalt-output"]
    assert seconds[1]["start"] < 50 * seconds[0]["start"]


def test_a_forecast_lists_cells_that_diverge_without_a_time() -> None:
    told = forecast(values("fedalt", compare={"seeds": 1, **DIVERGES}), Path())

    assert [each.cell.kind for each in told.cells if each.seconds is None] == ["fedalt-output"]


def test_a_folder_without_a_comparison_cannot_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")

    with pytest.raises(ConfigError, match="is not the folder of a comparison"):
        reopen(tmp_path)


def test_the_config_of_a_comparison_gives_the_same_cells(whole: Comparison) -> None:
    recorded = read_values(whole.folder / "config.toml")

    again, notes = cells_in({**recorded, "out": "elsewhere"}, whole.folder)

    assert (again, notes) == (whole.cells, [])


def test_cells_do_not_begin_from_a_pretrained_model_that_failed(tmp_path: Path) -> None:
    # Four of six devices cannot train; the two others pretrain a model alone.
    given = values("fedalt", task={"kind": "compared:mostly_nan"}, compare={"seeds": 1})
    rounds = {**ROUNDS, "devices_per_round": 6}

    comparison = started(tmp_path / "grid", given | {"pretrain": rounds})

    assert finish(comparison, quiet) == {
        "fedavg-3": "its start failed",
        "fedalt-output-3": "its start failed",
    }
    assert comparison.has_failures
    with pytest.raises(RunFailed, match="start-3: the stage `pretrained` failed and has no result: 4 of 6"):
        write_comparison_tables(comparison, comparison.failed())


def test_an_exception_of_a_callback_ends_the_comparison(tmp_path: Path) -> None:
    # A closed pipe is nobody's cell.
    def closed(*_: object) -> None:
        raise BrokenPipeError

    comparison = started(tmp_path / "grid", values("fedalt", compare={"seeds": 1}))

    with pytest.raises(BrokenPipeError):
        finish(comparison, quiet, closed)

    assert comparison.failed() == {}


@pytest.mark.parametrize(
    ("fixed", "partition"),
    [
        pytest.param(True, {"personal": ["lora_B.*"]}, marks=pytest.mark.slow),
        pytest.param(
            False,
            {"personal": ["lora_B.*"], "shared": ["lora_A.*"], "frozen": "rest"},
            marks=pytest.mark.slow,
        ),
        pytest.param(False, {"personal": ["lora_B.*"], "frozen": ["base.*"]}, marks=pytest.mark.slow),
    ],
)
def test_a_frozen_base_stays_frozen_in_every_cell(
    tmp_path: Path, fixed: bool, partition: dict[str, Any]
) -> None:
    methods = ("finetune", "ditto", "pfedme", "ft_part", "fedalt", "fedsim")
    given = values(
        *methods,
        task={"kind": "compared:low_rank", "fixed": fixed},
        partition=partition,
        compare={"partitions": [], "seeds": 1},
    )

    comparison, failed = done(tmp_path / "all", given)

    assert not failed
    start = build_model(low_rank(), seed=3).state_dict()
    for cell in comparison.cells:
        result = partita.open(comparison.folder_of(cell))
        end = result.model("d0").state_dict()
        assert {name for name in end if torch.equal(end[name], start[name])} == {"base.weight", "base.bias"}
    # A device keeps 2 of B, or all 8 of A and B; a round of two of them travels both ways.
    rows = {row["method"]: row for row in table(tmp_path / "all")}
    kept = {method: int(row["values kept on a device"]) for method, row in rows.items()}
    assert kept["Finetune"] == kept["Local only"] == kept["Ditto"] == 8
    assert kept["FedAlt"] == kept["FT (part.)"] == 2
    rounds = {
        cell.kind: {line["bytes"]["down"] // len(line["asked"]) for line in lines}
        for cell in comparison.cells
        if (lines := [line for line in comparison.run_of(cell).rounds() if line["work"] == "update"])
    }
    assert rounds.pop("fedalt-lora_B.") == rounds.pop("fedsim-lora_B.") == {4 * 6}
    assert set(map(tuple, rounds.values())) == {(4 * 8,)}


def test_partitions_of_the_same_tensors_are_one_row_and_the_notes_say_so(tmp_path: Path) -> None:
    given = values("fedalt", compare={"partitions": ["output", "head", "off*"], "seeds": 1})

    comparison, _ = done(tmp_path / "all", given)

    assert [cell.name for cell in comparison.cells] == ["start-3", "local-3", "fedavg-3", "fedalt-output-3"]
    assert [row["personal part"] for row in table(tmp_path / "all") if row["method"] == "FedAlt"] == [
        "output"
    ]
    notes = collect(reopen(comparison.folder), {}).notes
    assert [note.split("`")[1] for note in notes] == ["head", "off*"]
    assert forecast(given, Path()).notes == notes


@pytest.mark.slow
def test_the_titles_of_a_table_are_those_of_the_configs_that_ran(tmp_path: Path) -> None:
    settings = {"fedavg": {"personalize": {"server_optimizer": "fedyogi", "server_lr": 0.01}}}

    done(tmp_path / "all", values(compare={"settings": settings, "seeds": 1}))

    assert [row["method"] for row in table(tmp_path / "all")] == [
        "FedAvg",
        "Local only",
        "FedYogi, continued",
    ]


def test_the_finetune_baseline_of_a_run_leaves_the_frozen_part(tmp_path: Path) -> None:
    whole = values(task={"kind": "compared:low_rank"}, partition={"personal": ["lora_B.*"]})
    whole["finetune"] |= {"baseline": True}
    whole = {key: value for key, value in whole.items() if key != "compare"} | {"out": str(tmp_path / "run")}

    runner.finish(runner.prepare(config_of(whole), Path()))

    start = build_model(low_rank(), seed=3).state_dict()
    end = partita.open(tmp_path / "run/finetune").model("d0").state_dict()
    assert {name for name in end if torch.equal(end[name], start[name])} == {"base.weight", "base.bias"}
