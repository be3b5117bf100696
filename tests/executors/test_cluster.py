import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ranks import content_of, end_of, free_port, start_ranks, write_task

slow = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a task and a config."""
    write_task(tmp_path)
    return tmp_path


def run_serially(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "partita", "run", "--quiet", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def until_committed(run: Path, number: int = 0) -> None:
    """Wait until a run has committed a round."""
    for _ in range(600):
        if (run / "rounds.jsonl").exists() and len((run / "rounds.jsonl").read_text().splitlines()) > number:
            return
        time.sleep(0.05)
    raise AssertionError(f"{run} has committed nothing.")


@slow
@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["personalize.method=scaffold", "partition.personal=none"],
        ["personalize.patience=1", "personalize.rounds=6", "evaluate.every=1"],
        ["finetune.baseline=true", "personalize.rounds=1"],
    ],
    ids=["fedalt", "scaffold", "early stopping", "baseline"],
)
def test_three_ranks_write_the_bits_of_one_process(folder: Path, settings: list[str]) -> None:
    run_serially(folder, "own.toml", "out=serial", *settings)

    ends = end_of(start_ranks(3, "own.toml", "out=ranks", *settings, folder=folder))

    assert [code for code, _, _ in ends] == [0, 0, 0]
    assert "d3" in (folder / "serial" / "rounds.jsonl").read_text()
    assert content_of(folder / "ranks") == content_of(folder / "serial")
    if "finetune.baseline=true" in settings:
        assert content_of(folder / "ranks" / "finetune") == content_of(folder / "serial" / "finetune")
    # Rank 0 alone has something to say, and each warning once.
    assert [output for _, output, _ in ends[1:]] == ["", ""]
    assert [error for _, _, error in ends[1:]] == ["", ""]
    assert ends[0][2].count("BatchNorm cannot be trained on a batch of one example") == 1


@slow
def test_a_killed_rank_ends_all_and_fewer_ranks_resume(folder: Path) -> None:
    run_serially(folder, "own.toml", "out=whole")
    ranks = start_ranks(3, "own.toml", "out=killed", "task.seconds=0.02", folder=folder)
    until_committed(folder / "killed")
    ranks[2].kill()
    ends = end_of(ranks)

    host = socket.gethostname()
    line = f"partita: Rank 2 on {host} is gone: its process has ended. Resume with `partita run --resume killed`.\n"
    assert [code for code, _, _ in ends] == [1, 1, -signal.SIGKILL]
    assert ends[0][2].endswith(line)
    assert ends[1][1:] == ("", "")

    # The options of an own task are part of the config: the resumed run is as slow, and has the same bits.
    ends = end_of(start_ranks(2, "--resume", "killed", folder=folder))
    assert [code for code, _, _ in ends] == [0, 0]
    assert content_of(folder / "killed") == content_of(folder / "whole")


@slow
def test_rank_0_killed_ends_all(folder: Path) -> None:
    ranks = start_ranks(2, "own.toml", "out=headless", "task.seconds=0.02", folder=folder)
    until_committed(folder / "headless")
    ranks[0].kill()
    ends = end_of(ranks)

    assert ends[1] == (1, "", "partita: Rank 0 is gone: its process has ended.\n")
    run_serially(folder, "--resume", "headless")


@slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_ranks_ends_them_with_the_usual_message(folder: Path, number: signal.Signals) -> None:
    run = f"stopped-{number.name}"
    ranks = start_ranks(2, "own.toml", f"out={run}", "task.seconds=0.05", folder=folder)
    until_committed(folder / run)
    for rank in ranks:
        rank.send_signal(number)
    ends = end_of(ranks)

    assert [code for code, _, _ in ends] == [130, 130]
    assert ends[0][2].endswith(f"partita: Interrupted. Resume with `partita run --resume {run}`.\n")
    assert ends[1][1:] == ("", "")


@slow
def test_an_error_of_user_code_on_another_rank_is_raised_on_rank_0(folder: Path) -> None:
    ends = end_of(start_ranks(2, "own.toml", "out=broken", "task.breaks_on_rank=1", folder=folder))

    assert [code for code, _, _ in ends] == [1, 1]
    assert 'own_task.py", line ' in ends[0][2]
    lines = ends[0][2].splitlines()[-3:]
    assert lines[0] == "ZeroDivisionError: my own mistake"
    assert "in round 0 of `pretrained`." in lines[1]
    assert lines[2] == f"On rank 1 on {socket.gethostname()}."
    assert ends[1][1:] == ("", "")


def write_table(path: Path, *, extra: int = 0) -> None:
    """Write a table of numbers; one with `extra` rows differs."""
    rows = [{"device": f"d{i // 8}", "x": float(i % 5), "label": i % 2} for i in range(32 + extra)]
    pq.write_table(pa.Table.from_pylist(rows), path)


@slow
def test_each_rank_reads_its_own_copy_of_the_table_and_a_different_one_is_refused(tmp_path: Path) -> None:
    config = '[task]\nkind = "tabular"\ndata = "t.parquet"\n[pretrain]\nrounds = 1\n[personalize]\nrounds = 1\n'
    places = [tmp_path / "first", tmp_path / "second", tmp_path / "copies"]
    for place in places:
        place.mkdir()
    (places[0] / "t.toml").write_text(config)
    write_table(places[0] / "t.parquet")
    write_table(places[2] / "t.parquet")

    def run(*arguments: str) -> list[tuple[int, str, str]]:
        port = free_port()
        ranks = []
        for rank, place in enumerate(places[:2]):
            own = {"PARTITA_DATA": str(places[2])} if rank else {}
            common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
            command = [sys.executable, "-m", "partita", "run", "--quiet", *arguments]
            environment = {**os.environ, **common, **own}
            ranks.append(
                subprocess.Popen(
                    command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            )
        return end_of(ranks)

    # The second machine has neither the config nor the run's folder: only a copy of the table.
    assert [code for code, _, _ in run("t.toml", "out=one")] == [0, 0]
    assert [code for code, _, _ in run("--resume", "one")] == [0, 0]
    assert list(places[1].iterdir()) == []

    write_table(places[2] / "t.parquet", extra=8)
    ends = run("t.toml", "out=two")

    assert [code for code, _, _ in ends] == [2, 2]
    start = f"partita: Rank 1 on {socket.gethostname()}: `{places[2] / 't.parquet'}` has other content than rank 0's"
    assert ends[0][2].splitlines()[-1].startswith(start)
    assert ends[1][1:] == ("", "")
