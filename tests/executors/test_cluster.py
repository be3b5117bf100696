import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from torch import Tensor, nn

from documents import ROOT, blocks_of
from namespaces import ip
from partita import FedAlt, FedAvg, Finetuning, Partition, Plan, Training, pipeline
from partita.executors.launch import Launch, launched
from partita.tasks.image import image
from ranks import OWN_TASK, content_of, end_of, free_port, run_on_two_ranks, start_ranks, write_task
from small import affine_task, normed_task, square_error
from tables import bad_table


def slow(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts real ranks."""
    return pytest.mark.timeout(300)(pytest.mark.slow(test))


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The content of a run in one process."""
    folder = tmp_path_factory.mktemp("serial")
    write_task(folder)
    run_serially(folder, "own.toml", "out=serial")
    return content_of(folder / "serial")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a task and a config."""
    write_task(tmp_path)
    return tmp_path


def test_visits_on_another_rank_give_the_bits_of_one_process(tmp_path: Path) -> None:
    task = affine_task()
    own = Partition(task.model(), personal="offset")
    method = FedAlt(personal_lr=0.1, shared_lr=0.05)
    plan = Plan(personalize=Training(method=method, rounds=3, devices_per_round=3), finetune=Finetuning())
    pipeline(task, own, plan, out=tmp_path / "serial")

    executor = run_on_two_ranks(task, own, plan, tmp_path / "ranks")

    assert executor.seconds > 0
    assert content_of(tmp_path / "ranks") == content_of(tmp_path / "serial")


@pytest.mark.slow
def test_the_first_exception_in_the_order_of_the_round_is_raised(tmp_path: Path) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        examples = len(batch[1])
        if not model.training or examples == 8:
            return square_error(model, batch)
        time.sleep(0.3 if examples == 10 else 0)
        raise KeyError(examples)

    # The devices of the round have 8, 10, 7, ... examples. Rank 1 takes 10, the largest; rank 0 visits 8, then 7.
    task = affine_task(loss=loss)
    own = Partition(task.model(), personal="offset")
    method = FedAvg(shared_lr=0.1, batch_size=100)
    plan = Plan(personalize=Training(method=method, rounds=1, devices_per_round=6))

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("partita.api.runs.check_task", lambda *args, **options: None)
        with pytest.raises(KeyError) as expected:
            pipeline(task, own, plan)
        with pytest.raises(KeyError) as error:
            run_on_two_ranks(task, own, plan, tmp_path / "ranks")

    assert error.value.args == expected.value.args == (10,)


@pytest.mark.slow
def test_warnings_name_the_same_device_as_in_one_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        time.sleep(0.3 if os.getpid() != here and len(batch[1]) == 2 else 0)
        return square_error(model, batch)

    # d4 and d0 have a batch of one example, d4 first in the round. Rank 1 visits it, after d5 with a batch of two.
    here, task = os.getpid(), affine_task(model=normed_task().model, loss=loss)
    own = Partition(task.model(), personal="head.*")
    method = FedAlt(shared_lr=0.1, batch_size=4)
    plan = Plan(personalize=Training(method=method, rounds=1, devices_per_round=6))

    def logged(run: Callable[[], object]) -> list[str]:
        caplog.clear()
        run()
        return [record.getMessage() for record in caplog.records if "BatchNorm" in record.getMessage()]

    (expected,) = logged(lambda: pipeline(task, own, plan))

    assert logged(lambda: run_on_two_ranks(task, own, plan, tmp_path / "ranks")) == [expected]


def test_skipped_rows_are_logged_in_the_same_order(tmp_path: Path) -> None:
    def logged(name: str, run: Callable[..., object]) -> bytes:
        task = image(data=str(bad_table(tmp_path)), size=6, classes=2, skip_bad=True)
        task = task.with_model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2)))
        plan = Plan(
            personalize=Training(method=FedAvg(shared_lr=0.1, batch_size=4), rounds=2, devices_per_round=6)
        )
        run(task, Partition(task.model(), shared="*"), plan, out=tmp_path / name)
        return (tmp_path / name / "skipped.jsonl").read_bytes()

    expected = logged("serial", pipeline)

    assert expected.count(b"\n") == 6
    assert logged("ranks", run_on_two_ranks) == expected


def run_serially(folder: Path, *arguments: str) -> str:
    """Run `partita run` in one process and return its error output."""
    command = [sys.executable, "-m", "partita", "run", "--quiet", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stderr


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
    warnings = run_serially(folder, "own.toml", "out=serial", *settings)

    ends = end_of(start_ranks(3, "own.toml", "out=ranks", *settings, folder=folder))

    assert [code for code, _, _ in ends] == [0, 0, 0]
    assert "d3" in (folder / "serial" / "rounds.jsonl").read_text()
    assert content_of(folder / "ranks") == content_of(folder / "serial")
    if "finetune.baseline=true" in settings:
        assert content_of(folder / "ranks" / "finetune") == content_of(folder / "serial" / "finetune")
    # Rank 0 alone has something to say, and each warning as often as in one process.
    assert [output for _, *output in ends[1:]] == [["", ""], ["", ""]]
    lines = warnings.splitlines()
    assert ends[0][2].splitlines() == lines
    assert any("BatchNorm cannot be trained on a batch of one example" in line for line in lines)


@slow
def test_one_rank_writes_the_bits_of_one_process(folder: Path, in_one_process: dict[str, Any]) -> None:
    (end,) = end_of(start_ranks(1, "own.toml", "out=ranks", "workers=2", folder=folder))

    assert end[0] == 0
    assert content_of(folder / "ranks") == in_one_process
    assert "partita: `workers` and `timeout` have no effect here: the launcher starts the processes" in end[2]


@slow
def test_one_rank_writes_the_bits_of_one_process_with_scaffold_too(folder: Path) -> None:
    settings = ["personalize.method=scaffold", "partition.personal=none"]
    run_serially(folder, "own.toml", "out=serial", *settings)

    (end,) = end_of(start_ranks(1, "own.toml", "out=ranks", *settings, folder=folder))

    assert end[0] == 0
    assert content_of(folder / "ranks") == content_of(folder / "serial")


@slow
def test_a_killed_rank_ends_all_and_fewer_ranks_resume(folder: Path, in_one_process: dict[str, Any]) -> None:
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
    assert content_of(folder / "killed") == in_one_process


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

    assert [code for code, _, _ in ends] == [128 + number, 128 + number]
    assert ends[0][2].endswith(f"partita: Interrupted. Resume with `partita run --resume {run}`.\n")
    assert ends[1][1:] == ("", "")


@slow
def test_an_error_of_user_code_on_another_rank_is_raised_on_rank_0(folder: Path) -> None:
    # Device d8 is the largest one: rank 1 is sent it first.
    settings = ["task.breaks_on_rank=1", "pretrain.devices_per_round=9"]
    ends = end_of(start_ranks(2, "own.toml", "out=broken", *settings, folder=folder))

    assert [code for code, _, _ in ends] == [1, 1]
    assert 'own_task.py", line ' in ends[0][2]
    number = 1 + OWN_TASK.splitlines().index('            raise ZeroDivisionError("my own mistake")')
    where = f"On device 'd8', in round 0 of `pretrained` (own_task.py, line {number})."
    assert ends[0][2].splitlines()[-1] == (
        f"partita: ZeroDivisionError: my own mistake. {where} On rank 1 on {socket.gethostname()}. Resume with "
        "`partita run --resume broken`, and with `on_error=skip` to count such devices as failed."
    )
    assert ends[1][1:] == ("", "")


@slow
def test_an_error_of_user_code_on_any_rank_can_be_a_failure_of_its_device(folder: Path) -> None:
    settings = ["task.breaks_on_rank=1", "pretrain.devices_per_round=9", "personalize.devices_per_round=9"]
    ends = end_of(start_ranks(2, "own.toml", "out=skipped", "on_error=skip", *settings, folder=folder))

    assert [code for code, _, _ in ends] == [0, 0], ends[0][2]
    # Device d8 is the largest one: rank 1 is sent it first.
    first = json.loads((folder / "skipped/rounds.jsonl").read_text().splitlines()[0])
    assert first["failed"]["d8"].startswith("ZeroDivisionError: my own mistake (own_task.py, line ")
    assert first["failed"]["d3"] == "The sensor is broken."


def write_table(path: Path, *, extra: int = 0) -> None:
    """Write a table of numbers; one with `extra` rows differs."""
    rows = [
        {"device": f"d{i // 8}", "x": float(i % 5), "label": i % 2, "split": "test" if i % 8 < 3 else "train"}
        for i in range(32 + extra)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


@slow
def test_each_rank_reads_its_own_copy_of_the_table_and_a_different_one_is_refused(tmp_path: Path) -> None:
    config = '[task]\nkind = "tabular"\ndata = "t.parquet"\n[pretrain]\nrounds = 1\ndevices_per_round = 2\n[personalize]\nrounds = 1\ndevices_per_round = 4\n'
    places = [tmp_path / "first", tmp_path / "second", tmp_path / "copies"]
    for place in places:
        place.mkdir()
    (places[0] / "t.toml").write_text(config)
    write_table(places[0] / "t.parquet")
    write_table(places[2] / "t.parquet")

    def run(*arguments: str) -> list[tuple[int, str, str]]:
        elsewhere = {"others": places[1], "PARTITA_DATA": str(places[2])}
        return end_of(start_ranks(2, *arguments, folder=places[0], **elsewhere))

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


PAGE = ROOT / "docs/how-to/scale-out.md"


def command_on_page(contained: str, **replaced: str) -> str:
    """Return the command on the page that contains a text, for the task of these tests."""
    (text,) = [block.text for block in blocks_of(PAGE) if contained in block.text]
    for old, new in {"forms.toml": "own.toml out=ranks --quiet", **replaced}.items():
        assert old in text
        text = text.replace(old, new)
    return text


def shell(command: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a command as a reader does, with the programs of this environment and those in the folder."""
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_torchrun_writes_the_bits_of_one_process(
    folder: Path, in_one_process: dict[str, Any], ranks: int
) -> None:
    count = "--nproc-per-node="
    command = command_on_page(f"torchrun {count}2", **{f"{count}2": f"{count}{ranks}"})
    (end,) = end_of([shell(command, folder, PET_MASTER_PORT=str(free_port()))])

    assert end[0] == 0, end
    assert content_of(folder / "ranks") == in_one_process


@slow
def test_the_slurm_script_starts_ranks(folder: Path, in_one_process: dict[str, Any]) -> None:
    # Programs in place of Slurm's: two names of this machine, and an `srun` that starts three tasks.
    write_program(folder / "scontrol", "echo 127.0.0.1; echo 127.0.0.2")
    start = 'SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=$rank "${@:2}" & tasks+=($!)'
    write_program(folder / "srun", f"for rank in 0 1 2; do {start}; done; wait ${{tasks[@]}}")
    command = command_on_page("#SBATCH", **{"29500": str(free_port())})
    batch = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NTASKS": "3", "SLURM_PROCID": "0"}
    (end,) = end_of([shell(command, folder, **batch)])

    assert end[0] == 0, end
    assert content_of(folder / "ranks") == in_one_process


def test_the_pods_on_kubernetes_are_ranks() -> None:
    (text,) = [block.text for block in blocks_of(PAGE) if "kubectl" in block.text]
    service, job = yaml.safe_load_all(text.partition("<<'END'\n")[2].removesuffix("END\n"))
    pod = job["spec"]["template"]["spec"]
    environment = {each["name"]: each.get("value", "3") for each in pod["containers"][0]["env"]}

    # The index of a pod is its rank, and the first pod has the name of the job, its index and the service.
    assert launched(environment) == Launch(rank=3, ranks=8, address="partita-0.partita", port=29500)
    assert f"{job['metadata']['name']}-0.{pod['subdomain']}" == "partita-0.partita"
    assert service["metadata"]["name"] == pod["subdomain"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 8


HOSTS = {"partita-a": "10.77.0.1", "partita-b": "10.77.0.2"}
"""Two machines, as network namespaces of this one."""


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two network namespaces with a cable between them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    with ExitStack() as stack:
        first, second = HOSTS
        try:
            for host in HOSTS:
                ip("netns", "add", host)
                stack.callback(ip, "netns", "del", host)
            ip(
                "link",
                "add",
                "veth0",
                "netns",
                first,
                "type",
                "veth",
                "peer",
                "name",
                "veth0",
                "netns",
                second,
            )
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not allowed here: {error.stderr}")
        for host, address in HOSTS.items():
            ip("-n", host, "addr", "add", f"{address}/24", "dev", "veth0")
            ip("-n", host, "link", "set", "veth0", "up")
            ip("-n", host, "link", "set", "lo", "up")
        yield [first, second]


def start_nodes(hosts: list[str], folder: Path, arguments: str = "") -> list[subprocess.Popen[str]]:
    """Start torchrun on each host, with one rank."""
    command = command_on_page("--nnodes=2", **{"10.0.0.1": HOSTS[hosts[0]]}).strip()
    return [
        shell(f"ip netns exec {host} {command} {arguments}", folder, NODE_RANK=str(number))
        for number, host in enumerate(hosts)
    ]


@slow
def test_torchrun_over_two_hosts_writes_the_bits_of_one_process(
    hosts: list[str], folder: Path, in_one_process: dict[str, Any]
) -> None:
    ends = end_of(start_nodes(hosts, folder))

    assert [code for code, _, _ in ends] == [0, 0], ends
    assert content_of(folder / "ranks") == in_one_process


@slow
def test_a_cut_cable_ends_all_ranks_with_a_line(hosts: list[str], folder: Path) -> None:
    nodes = start_nodes(hosts, folder, "task.seconds=0.1 personalize.rounds=200")
    until_committed(folder / "ranks")
    ip("-n", hosts[0], "link", "set", "veth0", "down")
    begin = time.monotonic()
    ends = end_of(nodes)

    # The promise is 30 seconds; torchrun itself and a busy machine may take longer than an idle one.
    assert time.monotonic() - begin < 60
    assert [code for code, _, _ in ends] == [1, 1]
    host = socket.gethostname()
    assert (
        f"partita: Rank 1 on {host} is gone: its machine has been silent for 15 seconds. Resume" in ends[0][2]
    )
    assert "partita: Rank 0 is gone: its machine has been silent for 15 seconds." in ends[1][2]
