"""Onboarding: devices join a finished run with the bits of `evaluate.unseen`, whatever interrupts them."""

import errno
import inspect
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import partita
from exported import finished, rows_of
from marks import slow_but
from partita.cli import main
from partita.data.unseen import is_unseen
from partita.durable import locked
from partita.errors import ConfigError, InUse
from partita.runs.folder import RunFolder
from partita.runs.journal import FolderJournal
from partita.runs.onboarded import OnboardedRun
from partita.runs.tensors import kept_tensors
from partita.studies.onboard import onboard
from partita.tasks.tabular import Perceptron, tabular
from sealing import change_config
from tables import write

NEW = range(4, 7)


def contents(folder: Path) -> dict[str, Any]:
    """Return the files of a folder, without what says when and where it was made."""
    files: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("commit.json", "config.toml")
    }
    for name in [name for name in files if name.endswith("rounds.jsonl")]:
        lines = [json.loads(line) for line in files[name].splitlines()]
        files[name] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    return files


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = finished(tmp_path, "tabular")
    write(tmp_path / "new.parquet", rows_of("tabular", NEW))
    return run


def same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


@pytest.mark.parametrize("method", slow_but(["fedalt", "knn_per"], "fedalt"))
def test_a_device_that_joins_has_the_bits_of_an_unseen_one(method: str, tmp_path: Path) -> None:
    share, names = 0.5, [f"d{number}" for number in range(8)]
    unseen = [name for name in names if is_unseen(name, share)]
    assert 2 <= len(unseen) <= 6
    rows = rows_of("tabular", range(8))
    whole, seen = tmp_path / "whole", tmp_path / "seen"
    for folder, own in ((whole, names), (seen, [name for name in names if name not in unseen])):
        folder.mkdir()
        write(folder / "tabular.parquet", [row for row in rows if row["device"] in own])
    write(tmp_path / "new.parquet", [row for row in rows if row["device"] in unseen])
    settings = {"personalize.method": method}
    expected = partita.open(finished(whole, "tabular", **settings, **{"evaluate.unseen": share}))
    run = finished(seen, "tabular", **settings)

    done = onboard(RunFolder(run), tmp_path / "new.parquet")

    found = partita.open(run)
    for device in unseen:
        assert same(found.personal(device), expected.personal(device))
        assert same(found.model(device).state_dict(), expected.model(device).state_dict())
    columns = ["stage", "device", "split", "seen", "model", "examples", "loss", "metric"]
    rows = [row for row in expected.devices.select(columns).to_pylist() if not row["seen"]]
    assert done.folder.measurements.select(columns).to_pylist() == rows
    assert done.folder.summary["stages"] == expected.summary["unseen"]
    work = {line["work"] for line in done.folder.lines()}
    assert work == ({"evaluate"} if method == "knn_per" else {"evaluate", "finetune"})


def test_the_run_itself_stays_as_it_was(run: Path, tmp_path: Path) -> None:
    before = contents(run)
    commit = (run / "commit.json").read_bytes()

    assert main(["onboard", str(run), str(tmp_path / "new.parquet"), "--quiet"]) == 0

    assert main(["run", "--resume", str(run), "--quiet"]) == 0
    after = contents(run)
    assert {name: own for name, own in after.items() if not name.startswith("onboarded/")} == before
    assert (run / "commit.json").read_bytes() == commit


@pytest.mark.parametrize(
    "name",
    slow_but(
        ["onboarding.json", "summary.json", "devices.parquet", "rounds.jsonl", "config.toml", "personal/*"],
        "onboarding.json",
        "personal/*",
    ),
)
def test_damage_to_an_onboarding_is_noticed(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["onboard", str(run), str(tmp_path / "new.parquet"), "--quiet"]) == 0
    assert main(["check", str(run)]) == 0
    damaged = min((run / "onboarded" / "1").glob(name))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    capsys.readouterr()

    assert main(["check", str(run)]) == 1

    output = capsys.readouterr()
    assert str(damaged) in output.out + output.err


def test_devices_that_joined_are_opened_exported_and_predicted(run: Path, tmp_path: Path) -> None:
    main(["onboard", str(run), str(tmp_path / "new.parquet"), "--quiet"])
    result = partita.open(run)

    joined = {row["device"] for row in result.devices.to_pylist() if not row["seen"]}
    main(["export", str(run), "d5", str(tmp_path / "m.safetensors")])
    predicted = [str(run), str(tmp_path / "new.parquet"), str(tmp_path / "p.parquet")]
    assert main(["predict", *predicted, "--quiet"]) == 0

    assert joined == {"d4", "d5", "d6"}
    assert result.served("d5") == "personal"
    loaded = partita.load(tmp_path / "m.safetensors")
    assert same(dict(loaded.state_dict()), dict(result.model("d5", "served").state_dict()))
    rows = [row for row in pq.read_table(tmp_path / "p.parquet").to_pylist() if row["device"] == "d5"]
    inputs = [[row["x"], row["y"]] for row in rows_of("tabular", range(5, 6))]
    mean, std = (torch.tensor(result.derived[name]) for name in ("mean", "std"))
    scores = loaded(((torch.tensor(inputs, dtype=torch.float64) - mean) / std).float())
    assert [row["prediction"] for row in rows] == scores.argmax(dim=1).tolist()
    assert not same(result.personal("d4"), result.personal("d5"))


def test_more_devices_join_later_and_known_ones_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "later.parquet", rows_of("tabular", range(7, 8)))
    main(["onboard", str(run), str(tmp_path / "new.parquet"), "--quiet"])
    first = contents(run / "onboarded/1")

    assert main(["onboard", str(run), str(tmp_path / "later.parquet"), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["onboard", str(run), str(tmp_path / "new.parquet"), "--quiet"]) == 2
    assert "has 3 devices that the run knows already, such as 'd4': personalize" in capsys.readouterr().err
    assert main(["onboard", str(run), str(tmp_path / "tabular.parquet"), "--quiet"]) == 2
    assert "4 devices that the run knows already, such as 'd0'" in capsys.readouterr().err

    assert sorted(OnboardedRun(RunFolder(run)).joined) == ["d4", "d5", "d6", "d7"]
    assert contents(run / "onboarded/1") == first
    assert sorted(path.name for path in (run / "onboarded").iterdir()) == ["1", "2"]


class Interrupted(Exception):
    """Ends an onboarding between two rounds."""


def interrupt_after(rounds: int) -> Callable[..., None]:
    def watch(line: Any, done: int, total: int) -> None:
        if done == rounds:
            raise Interrupted

    return watch


@pytest.mark.parametrize("again", slow_but([False, True], True))
def test_interrupted_after_any_round_it_ends_with_the_same_bits(
    again: bool, run: Path, tmp_path: Path
) -> None:
    table = tmp_path / "new.parquet"
    if again:
        write(table, rows_of("tabular", range(4), range(20, 60)))
    whole = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(run), str(whole)], check=True)
    expected = contents(onboard(RunFolder(whole), table, again=again).folder.path)

    for rounds in range(1, 5):
        with pytest.raises(Interrupted):
            onboard(RunFolder(run), table, again=again, watch=interrupt_after(rounds))
        assert not OnboardedRun(RunFolder(run)).onboardings
    done = onboard(RunFolder(run), None)

    assert done.is_again == again
    assert contents(done.folder.path) == expected


def test_killed_before_it_has_begun_it_begins_anew(run: Path, tmp_path: Path) -> None:
    (run / "onboarded/1").mkdir(parents=True)
    (run / "onboarded/1/onboarding.json").write_text("{")

    done = onboard(RunFolder(run), tmp_path / "new.parquet")

    assert done.number == 1
    assert done.devices == ["d4", "d5", "d6"]


def test_a_finished_onboarding_is_shown_again(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["onboard", str(run), str(tmp_path / "new.parquet"), "--quiet"]) == 0
    first = capsys.readouterr().out

    assert main(["onboard", str(run), "--resume", "--quiet"]) == 0

    assert capsys.readouterr().out == first
    assert len(list(run.glob("onboarded/*"))) == 1


def test_a_damaged_onboarding_is_not_shown_again(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["onboard", str(run), str(tmp_path / "new.parquet"), "--quiet"]) == 0
    part = min((run / "onboarded/1/personal").iterdir())
    part.write_bytes(part.read_bytes()[:-1])
    capsys.readouterr()

    assert main(["onboard", str(run), "--resume", "--quiet"]) == 2

    output = capsys.readouterr()
    assert str(part) in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


def interrupt_when_trained(line: Any, done: int, total: int) -> None:
    if line["work"] == "finetune":
        raise Interrupted


@pytest.mark.parametrize("again", slow_but([False, True], True))
def test_an_interrupted_onboarding_that_has_lost_a_personal_part_is_not_resumed(
    again: bool, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / ("tabular.parquet" if again else "new.parquet")
    with pytest.raises(Interrupted):
        onboard(RunFolder(run), table, again=again, watch=interrupt_when_trained)
    folder = run / "onboarded" / "1"
    lost = min((folder / "personal").iterdir())
    content = lost.read_bytes()
    lost.unlink()

    assert main(["onboard", str(run), "--resume", "--quiet"]) == 2

    error = capsys.readouterr().err
    assert f"`{lost}`, the personal part of device " in error
    assert error.endswith(
        f"is missing. Restore it from a copy. Or delete `{folder}`, and onboard the devices again.\n"
    )
    assert error.count("\n") == 1
    lost.write_bytes(content)
    assert main(["onboard", str(run), "--resume", "--quiet"]) == 0


def test_an_interrupted_onboarding_that_has_lost_its_config_is_not_deleted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Interrupted):
        onboard(RunFolder(run), tmp_path / "new.parquet", watch=interrupt_when_trained)
    config = run / "onboarded/1/config.toml"
    content = config.read_bytes()
    config.unlink()

    for arguments in (["--resume"], [str(tmp_path / "new.parquet")]):
        assert main(["onboard", str(run), *arguments, "--quiet"]) == 2
        assert capsys.readouterr().err == f"partita: `{config}` is missing: restore it from a copy.\n"

    config.write_bytes(content)
    assert main(["onboard", str(run), "--resume", "--quiet"]) == 0


def test_a_row_that_was_skipped_before_the_first_commit_is_logged_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of("tabular", NEW)
    rows[-3]["x"] = float("nan")
    table = write(tmp_path / "bad.parquet", rows)

    def fail(*_: Any) -> None:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(FolderJournal, "commit", fail)
        with pytest.raises(Interrupted):
            onboard(RunFolder(run), table, ["task.skip_bad=true"])
    done = onboard(RunFolder(run), None)

    assert [skipped.row for skipped in done.folder.skipped()] == [len(rows) - 3]


def test_a_fault_before_an_onboarding_has_begun_says_to_repeat_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "onboarding.json")

    command = ["onboard", str(run), str(tmp_path / "new.parquet"), "--quiet"]
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr("partita.studies.onboard.write_onboarding", fail)
        assert main(command) == 1

    mended = "Nothing was trained yet: when the cause is mended, give the same command again."
    assert capsys.readouterr().err == f"partita: No space left on device: `onboarding.json`. {mended}\n"
    assert main(command) == 0


def test_an_interrupted_onboarding_wants_its_own_table(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "later.parquet", rows_of("tabular", range(7, 8)))
    with pytest.raises(Interrupted):
        onboard(RunFolder(run), tmp_path / "new.parquet", watch=interrupt_after(1))

    assert main(["onboard", str(run), str(tmp_path / "later.parquet"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert main(["onboard", str(run), "--resume", "--quiet"]) == 0

    assert "onboarded/1` was interrupted, and must be finished first, with its own table" in error
    assert error.count("\n") == 1
    assert main(["onboard", str(run), str(tmp_path / "later.parquet"), "--quiet"]) == 0


def test_a_bad_row_among_those_who_join_can_be_skipped(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of("tabular", NEW)
    rows[-3]["x"] = float("nan")
    write(tmp_path / "bad.parquet", rows)

    assert main(["onboard", str(run), str(tmp_path / "bad.parquet"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    command = error.rpartition("Skip such rows with `")[2].partition("`")[0]
    assert command == f"partita onboard {run} --resume task.skip_bad=true"

    assert main([*command.split()[1:], "--quiet"]) == 0

    (joined,) = OnboardedRun(RunFolder(run)).onboardings
    assert joined.devices == ["d4", "d5", "d6"]
    assert [skipped.row for skipped in joined.folder.skipped()] == [len(rows) - 3]


def test_devices_with_too_few_rows_can_be_left_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "few.parquet", [*rows_of("tabular", NEW), *rows_of("tabular", range(7, 8), range(1))])
    command = ["onboard", str(run), str(tmp_path / "few.parquet"), "--quiet"]

    assert main(command) == 2
    assert "`min_test_examples = 1` leaves them out" in capsys.readouterr().err
    assert main([*command, "task.min_test_examples=1"]) == 0

    (joined,) = OnboardedRun(RunFolder(run)).onboardings
    assert joined.devices == ["d4", "d5", "d6"]


def test_a_device_that_fails_has_the_model_before_it_and_its_stage(tmp_path: Path) -> None:
    run = finished(tmp_path, "tabular", **{"finetune.batch_size": 2})
    rows = [{**row, "x": 1e38} for row in rows_of("tabular", range(4, 5))]
    write(tmp_path / "huge.parquet", rows)

    assert main(["onboard", str(run), str(tmp_path / "huge.parquet"), "--quiet"]) == 1

    (joined,) = OnboardedRun(RunFolder(run)).onboardings
    assert any(line["failed"] for line in joined.folder.lines() if line["work"] == "finetune")
    assert main(["export", str(run), "d4", str(tmp_path / "m.safetensors")]) == 0
    about = partita.model_metadata(tmp_path / "m.safetensors")
    assert (about["model"], about["stage"]) == ("personal", "personalized")


def more_rows(tmp_path: Path) -> Path:
    """New rows of two devices, with labels that are the opposite of those before for one of them."""
    rows = rows_of("tabular", range(2, 4), range(9, 49))
    for row in rows:
        if row["device"] == "d3":
            row["label"] = 1 - row["label"]
    return write(tmp_path / "more.parquet", rows)


def test_known_devices_go_on_from_their_personal_part_and_can_go_back(run: Path, tmp_path: Path) -> None:
    before = {device: partita.open(run).personal(device) for device in ("d1", "d2", "d3")}

    done = onboard(RunFolder(run), more_rows(tmp_path), again=True)

    assert done.is_again
    assert done.devices == ["d2", "d3"]
    rows = {
        (row["device"], row["stage"]): row["metric"]
        for row in done.folder.measurements.to_pylist()
        if row["split"] == "validation"
    }
    better = [d for d in ("d2", "d3") if rows[d, "finetuned"] > rows[d, "personalized"]]
    assert done.holds == better
    now = partita.open(run)
    for device, own in before.items():
        assert same(now.personal(device), own) == (device not in better)
        assert now.served(device) == "personal"
    assert len(now.devices) == len(RunFolder(run).measurements)


def test_the_better_on_held_out_rows_is_served_and_back_returns_to_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished(tmp_path, "tabular", **{"finetune.personal_lr": 0.5, "finetune.epochs": 20})
    before = {device: partita.open(run).personal(device) for device in ("d2", "d3")}
    rows = rows_of("tabular", range(2, 4), range(9, 69))
    # Labels of d3 can be learned; of d2, those that are held out are the opposite of the others.
    for row in rows:
        row["x"] %= 4.5
        row["label"] = int(row["x"] > 2)
    for row in rows[::5]:
        row["split"] = "validation"
        row["label"] = 1 - row["label"] if row["device"] == "d2" else row["label"]
    table = write(tmp_path / "more.parquet", rows)

    done = onboard(RunFolder(run), table, again=True)

    measured = {
        (row["device"], row["stage"]): row["metric"]
        for row in done.folder.measurements.to_pylist()
        if row["split"] == "validation"
    }
    assert measured["d3", "finetuned"] > measured["d3", "personalized"] != measured["d3", "served"]
    assert measured["d2", "finetuned"] <= measured["d2", "personalized"] == measured["d2", "served"]
    assert (done.holds, done.folder.summary["kept_previous"]) == (["d3"], ["d2"])
    assert same(partita.open(run).personal("d2"), before["d2"])
    assert not same(partita.open(run).personal("d3"), before["d3"])
    capsys.readouterr()
    assert main(["onboard", str(run), "--back", "d2"]) == 2
    assert "Device 'd2' has no model to go back to" in capsys.readouterr().err
    assert main(["onboard", str(run), "--back"]) == 0
    assert capsys.readouterr().out == "1 device has the model from before again\n"
    assert same(partita.open(run).personal("d3"), before["d3"])


def test_the_previous_model_is_the_one_that_the_device_had(run: Path, tmp_path: Path) -> None:
    done = onboard(RunFolder(run), more_rows(tmp_path), again=True)

    # An independent look at the model before, on the rows that were held out.
    result = partita.open(run)
    task = partita.open(done.folder.path)._models.origin.task
    inputs, labels = task.devices["d3"]["validation"]
    old = kept_tensors(RunFolder(run), "d3")
    assert old is not None
    model = result.model("d3", "personal")
    model.load_state_dict({**model.state_dict(), **old})
    (row,) = [
        row
        for row in done.folder.measurements.to_pylist()
        if (row["device"], row["stage"], row["split"]) == ("d3", "personalized", "validation")
    ]
    assert row["metric"] == (model(inputs).argmax(dim=1) == labels).double().mean().item()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["NEW", "--again"],
            "3 devices that the run does not know, such as 'd4': onboard new devices without",
        ),
        (["none.parquet"], "There is no file or folder `none.parquet`."),
        ([], "needs a run's folder and one table, or --resume"),
        (["NEW", "NEW"], "needs a run's folder and one table, or --resume"),
        (["--resume"], "No onboarding into the run in"),
        (["NEW", "--back", "d1"], "takes the ids of devices, and nothing else"),
        (["NEW", "task.size=3"], "leave out `task.size=3`"),
    ],
)
def test_a_wrong_request_is_one_line(
    arguments: list[str], message: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    given = [str(tmp_path / "new.parquet") if text == "NEW" else text for text in arguments]

    assert main(["onboard", str(run), *given, "--quiet"]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(run.glob("onboarded/*"))


def test_a_run_without_tables_takes_no_devices(tmp_path: Path) -> None:
    run = finished(tmp_path, "synthetic")
    write(tmp_path / "new.parquet", rows_of("tabular", NEW))

    with pytest.raises(ConfigError, match="'synthetic' reads no table"):
        onboard(RunFolder(run), tmp_path / "new.parquet")


def test_the_lock_of_the_run_is_respected(run: Path, tmp_path: Path) -> None:
    with locked(run), pytest.raises(InUse, match="Another process is writing the run"):
        onboard(RunFolder(run), tmp_path / "new.parquet")


def test_a_moved_run_needs_none_of_its_own_data(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    run = run.rename(tmp_path / "elsewhere/run")
    (tmp_path / "tabular.parquet").unlink()

    done = onboard(RunFolder(run), tmp_path / "new.parquet")

    assert done.devices == ["d4", "d5", "d6"]


@pytest.mark.parametrize("kind", slow_but(["text", "image", "speech", "regression"], "regression"))
def test_devices_of_every_kind_of_table_join(kind: str, tmp_path: Path) -> None:
    if kind == "speech":
        for package in ("soundfile", "kaldi_native_fbank", "jiwer"):
            pytest.importorskip(package, reason="the extra `speech` is not installed")
    run = finished(tmp_path, kind, **{"evaluate.choose": "validation", "task.validation": 0.3})
    write(tmp_path / "new.parquet", rows_of(kind, range(4, 6)))

    done = onboard(RunFolder(run), tmp_path / "new.parquet")

    assert done.devices == ["d4", "d5"]
    assert "served" in done.folder.measurements["stage"].to_pylist()
    export = ["export", str(run), "d4", str(tmp_path / "m.safetensors")]
    assert main(export) == 0


def test_a_device_that_the_run_has_never_asked_can_join_it(tmp_path: Path) -> None:
    # One round of one device, and one device evaluated: of four devices, two at least were never asked.
    few = {f"{stage}.devices_per_round": 1 for stage in ("pretrain", "personalize")}
    few |= {"pretrain.rounds": 0, "personalize.rounds": 1, "finetune.epochs": 0, "evaluate.devices": 1}
    run = finished(tmp_path, "tabular", **few)
    known = OnboardedRun(RunFolder(run)).known()
    device = next(number for number in range(4) if f"d{number}" not in known)
    write(tmp_path / "new.parquet", rows_of("tabular", range(device, device + 1), rows=range(12)))

    done = onboard(RunFolder(run), tmp_path / "new.parquet")

    assert done.devices == [f"d{device}"]
    assert main(["export", str(run), "--all", str(tmp_path / "models")]) == 0
    index = json.loads((tmp_path / "models/index.json").read_text())
    assert sorted(index["devices"]) == ["d0", "d1", "d2", "d3"]


def own_task(data: str, hidden: int = 4) -> partita.Task:
    """A task of one's own that reads a table."""
    return tabular(data=data, classes=2).with_model(partial(Perceptron, inputs=2, outputs=2, hidden=hidden))


def test_devices_join_a_run_with_a_task_of_ones_own(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    source = (
        "from functools import partial\nimport partita\n"
        "from partita.tasks.tabular import Perceptron, tabular\n" + inspect.getsource(own_task)
    )
    (folder / "own_rooms.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    keys = {"task.kind": "own_rooms:own_task", "task.data": tmp_path / "tabular.parquet"}
    own = finished(tmp_path / "code", "synthetic", **keys, **{"task.form": None, "task.devices": None})
    with pytest.raises(Interrupted):
        onboard(RunFolder(own), tmp_path / "new.parquet", watch=interrupt_after(1))
    with pytest.raises(ConfigError, match="must be finished first, with its own table"):
        onboard(RunFolder(own), tmp_path / "tabular.parquet")

    done = onboard(RunFolder(own), tmp_path / "new.parquet")

    assert done.devices == ["d4", "d5", "d6"]
    partita.open(own).export("d5", tmp_path / "m.safetensors")
    loaded = partita.load(tmp_path / "m.safetensors").state_dict()
    assert same(loaded, partita.open(own).model("d5").state_dict())


def plain_task(data: str) -> partita.Task:
    """A task of one's own that reads a table and does not say how rows are predicted."""
    task = tabular(data=data, classes=2)
    return partita.Task(
        model=task.model, loss=task.loss, predict=task.predict, metrics=task.metrics, devices=task.devices
    )


def test_rows_of_devices_that_joined_a_task_of_ones_own_are_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"import partita\nfrom partita.tasks.tabular import tabular\n{inspect.getsource(plain_task)}"
    (tmp_path / "plain_rooms.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path / "old.parquet", rows_of("tabular"))
    write(tmp_path / "new.parquet", rows_of("tabular", NEW))
    keys = {"task.kind": "plain_rooms:plain_task", "task.data": tmp_path / "old.parquet"}
    own = finished(tmp_path, "synthetic", **keys, **{"task.form": None, "task.devices": None})
    onboard(RunFolder(own), tmp_path / "new.parquet")
    write(tmp_path / "rows.parquet", [{"device": "d5", "input": [0.5, 2.0]}])

    assert main(["predict", str(own), str(tmp_path / "rows.parquet"), str(tmp_path / "out.parquet")]) == 0

    (row,) = pq.read_table(tmp_path / "out.parquet").to_pylist()
    scores = partita.open(own).model("d5")(torch.tensor([[0.5, 2.0]]))
    assert row["prediction"] == scores.argmax().item()


def test_the_table_says_which_model_is_the_one_before(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "more.parquet", rows_of("tabular", range(1, 3), rows=range(20)))

    assert main(["onboard", str(run), str(tmp_path / "more.parquet"), "--again"]) == 0

    printed = capsys.readouterr().out
    assert "personal part before" in printed
    assert "personalized again" in printed
    assert "FedAlt" not in printed


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_random_moments_it_ends_with_the_same_bits(workers: int, run: Path, tmp_path: Path) -> None:
    whole = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(run), str(whole)], check=True)
    expected = contents(onboard(RunFolder(whole), tmp_path / "new.parquet").folder.path)
    draw = random.Random(20261118)
    command = [sys.executable, "-m", "partita", "onboard", str(run), str(tmp_path / "new.parquet"), "--quiet"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    change_config(run, "workers = 1\n", f"workers = {workers}\n")

    kills = 0
    for _ in range(4):
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        while not (run / "onboarded").exists() and process.poll() is None:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.4))
        kills += process.poll() is None
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if OnboardedRun(RunFolder(run)).onboardings:
            break
    if not OnboardedRun(RunFolder(run)).onboardings:
        subprocess.run(command, check=True, env=environment)

    assert kills
    assert contents(run / "onboarded/1") == expected
