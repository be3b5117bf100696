from dataclasses import replace

import pytest

from partita import FedAlt, named_partition, run
from partita.cli import main
from partita.errors import ConfigError
from partita.executors.launch import Launch, launched, warn_of_copies, warn_of_tasks
from partita.testing.small import SmallNet, small_devices, small_task

TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
WHERE = {"address": "node0", "port": 29500}
SRUN = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_slurms_names_stand_for_those_of_torchrun() -> None:
    assert launched(TORCHRUN) == Launch(rank=2, ranks=4, address="node0", port=29500)
    assert launched(SRUN) == launched(TORCHRUN)
    local = launched({**SRUN, "SLURM_LOCALID": "1"})
    assert (
        local
        == launched({**TORCHRUN, "LOCAL_RANK": "1"})
        == replace(Launch(rank=2, ranks=4), **WHERE, local=1)
    )
    assert launched({**SRUN, "RANK": "0", "WORLD_SIZE": "3"}) == Launch(
        rank=0, ranks=3, address="node0", port=29500
    )


def test_a_batch_script_or_a_single_task_of_slurm_is_no_launcher() -> None:
    assert launched({}) is None
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
    # Also where the script sets an address for the commands that it gives to `srun`.
    assert launched({**batch, "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}) is None
    assert launched({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None


def test_tasks_of_slurm_without_an_address_run_alone_and_the_first_one_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = [{"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "4"} for rank in range(4)]
    for task in tasks:
        assert launched(task) is None
        warn_of_tasks(task)
    warn_of_tasks(SRUN)
    warn_of_tasks({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})

    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Slurm has started 4 tasks, and MASTER_ADDR is not set: each task runs"
    )


def test_in_python_the_first_of_several_processes_says_that_each_does_all_of_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_copies({})
    warn_of_copies({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"})
    warn_of_copies({**TORCHRUN, "RANK": "1"})
    assert not caplog.records

    warn_of_copies({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"})
    for name, value in {**TORCHRUN, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    task = small_task(small_devices(2))
    partition = named_partition(SmallNet(), "output")
    run(task, partition, FedAlt(shared_lr=0.1), rounds=1)

    said = "A launcher has started 4 processes, and from Python no work is divided among them: each does"
    assert [record.getMessage().startswith(said) for record in caplog.records] == [True, True]


@pytest.mark.parametrize(("name", "other"), [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")])
def test_half_of_a_launcher_is_refused(name: str, other: str) -> None:
    with pytest.raises(ConfigError, match=f"variable {name} is set, and {other} is not: set both"):
        launched({name: "1"})

    # A batch script may set one of them for other programs.
    assert launched({**SRUN, name: "1"}) == launched(SRUN)


def test_one_rank_needs_no_address() -> None:
    assert launched({"RANK": "0", "WORLD_SIZE": "1"}) == Launch(rank=0, ranks=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MASTER_ADDR": ""}, "4 ranks need the environment variable MASTER_ADDR, the host of rank 0."),
        ({"RANK": "two"}, "The environment variable RANK must be a whole number, got 'two'."),
        ({"RANK": "4"}, "A rank must be from 0 to below the number of ranks, got 4 of 4."),
    ],
)
def test_a_wrong_environment_is_one_line(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        launched({**TORCHRUN, **change})

    assert str(caught.value) == message


@pytest.mark.parametrize("command", [["compare"], ["tune"], ["report", "runs/x"]])
def test_other_commands_than_run_refuse_ranks(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)

    assert main(command) == 2

    error = capsys.readouterr().err
    assert error.startswith(f"partita: `partita {command[0]}` is not for the 4 ranks of a launcher")
    assert error.count("\n") == 1
    assert "--resume DIR" in error
