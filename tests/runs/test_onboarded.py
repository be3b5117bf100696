"""A run together with the devices that joined it, read from hand-written folders."""

from pathlib import Path
from typing import Any

import pytest

from partita.data.arrow import write_table
from partita.errors import ConfigError
from partita.runs.folder import RunFolder
from partita.runs.onboarded import OnboardedRun, Onboarding, write_onboarding

COLUMNS = {"stage": str, "model": str, "device": str, "seen": bool, "split": str}
COLUMNS |= {"loss": float, "metric": float, "reason": str}


def written(folder: RunFolder, *devices: str, seen: bool, summary: str = "{}") -> RunFolder:
    """Write what a finished run has, as far as it matters here."""
    folder.path.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = [
        {"stage": stage, "model": model, "device": device, "seen": seen, "split": "test", "loss": 1.0}
        for stage, model in (("pretrained", "global"), ("finetuned", "personal"))
        for device in devices
    ]
    write_table(folder.devices_file, rows, COLUMNS)
    folder.config_file.write_text("")
    folder.rounds_file.write_text("")
    folder.summary_file.write_text(summary)
    folder.commit_file.write_text('{"finished": true, "rounds_bytes": 0}')
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of a and b, which c and d joined; then a and c were personalized again, and c kept its model."""
    run = written(RunFolder(tmp_path / "run"), "a", "b", seen=True)
    for number, again in ((1, False), (2, True), (10, True)):
        folder = RunFolder(run.onboarded_folder / str(number))
        devices = ("c", "d") if number == 1 else ("a", "c")
        kept = '{"kept_previous": ["c"]}' if number == 2 else '{"kept_previous": ["a"]}'
        written(folder, *devices, seen=False, summary=kept if again else "{}")
        write_onboarding(folder, again=again)
    return run


def holders(run: RunFolder) -> dict[str, int]:
    return {device: each.number for device, each in OnboardedRun(run).holders.items()}


def test_the_newest_onboarding_that_a_device_did_not_refuse_holds_it(run: RunFolder) -> None:
    assert holders(run) == {"c": 10, "d": 1, "a": 2}
    assert OnboardedRun(run).holder("b") is not None
    assert OnboardedRun(run).holder("b").path == run.path
    assert OnboardedRun(run).known() == {"a", "b", "c", "d"}
    assert sorted(OnboardedRun(run).joined) == ["c", "d"]


def test_a_device_goes_back_one_onboarding_at_a_time(run: RunFolder) -> None:
    Onboarding(RunFolder(run.onboarded_folder / "10")).withdraw(["c"])
    assert holders(run) == {"c": 1, "d": 1, "a": 2}

    Onboarding(RunFolder(run.onboarded_folder / "2")).withdraw(["a"])
    assert holders(run) == {"c": 1, "d": 1}


def test_the_table_has_every_device_as_it_joined(run: RunFolder) -> None:
    table = OnboardedRun(run).measurements.to_pylist()

    assert [row["device"] for row in table] == ["a", "b", "a", "b", "c", "d", "c", "d"]
    assert [row["seen"] for row in table] == [True] * 4 + [False] * 4
    assert OnboardedRun(run).served == {"a": "personal", "b": "personal", "c": "personal", "d": "personal"}


def test_an_unfinished_onboarding_does_not_count(run: RunFolder) -> None:
    for name in ("commit.json", "summary.json", "devices.parquet"):
        (run.onboarded_folder / "10" / name).unlink()

    assert holders(run) == {"c": 1, "d": 1, "a": 2}
    left = OnboardedRun(run).unfinished
    assert left is not None
    assert left.path.name == "10"


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is damaged: "), ('{"again": true}', "written by another version of Partita: it has no schema")],
)
def test_a_damaged_onboarding_is_one_line(content: str, message: str, run: RunFolder) -> None:
    (run.onboarded_folder / "2/onboarding.json").write_text(content)

    with pytest.raises(ConfigError, match=message) as error:
        holders(run)

    assert "\n" not in str(error.value)
