"""The commands of a deployment: one clear line for what is wrong, nothing sent by a check."""

import json
import random
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import partita
from deployed import Deployment, Device, write_config
from partita.cli import main
from partita.cli.arguments import parse
from partita.deploy import checking, keys
from partita.deploy.exporting import export_own
from partita.errors import RunFailed
from partita.runs.tensors import shared_tensors
from tables import write

TABULAR = """
[task]
kind = "tabular"
data = "all.parquet"
{derived}
[pretrain]
devices_per_round = 2
[personalize]
devices_per_round = 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with tables, the config of a tabular task, and a device's home with keys."""
    rng = random.Random(1)
    rows = [
        {"device": device, "a": rng.gauss(0, 1), "b": rng.gauss(0, 1), "label": number % 2}
        for device in ("ann", "bob")
        for number in range(20)
    ]
    write(tmp_path / "all.parquet", rows)
    write(tmp_path / "ann.parquet", rows[:20])
    (tmp_path / "whole.toml").write_text(TABULAR.format(derived=""))
    (tmp_path / "config.toml").write_text(TABULAR.format(derived='derived = "derived.json"'))
    assert main(["describe", str(tmp_path / "whole.toml"), "--derived", str(tmp_path / "derived.json")]) == 0
    return tmp_path


def with_keys(folder: Path) -> Path:
    """Make a home for the device ann with the commands of `partita keys`."""
    ca, home = folder / "ca", folder / "home"
    assert main(["keys", "ca", str(ca)]) == 0
    assert main(["keys", "server", "--ca", str(ca), "--home", str(folder / "server"), "localhost"]) == 0
    assert main(["keys", "request", "--home", str(home), "--device", "ann"]) == 0
    sign = ["keys", "sign", "--ca", str(ca), "--device", "ann"]
    assert main([*sign, str(home / "device.csr"), str(home / "device.crt")]) == 0
    (home / keys.CA_CERTIFICATE).write_bytes((ca / keys.CA_CERTIFICATE).read_bytes())
    return home


def check(folder: Path, home: Path, *more: str, device: str = "ann") -> list[str]:
    arguments = ["--server", "https://unreachable.invalid:1", "--config", str(folder / "config.toml")]
    arguments += ["--device", device, "--data", str(folder / "ann.parquet"), "--home", str(home)]
    return ["join", *arguments, "--check", *more]


@pytest.mark.slow
def test_the_derived_values_are_those_of_a_run(folder: Path) -> None:
    assert (
        main(["run", str(folder / "whole.toml"), f"out={folder / 'run'}", "pretrain.rounds=1", "--quiet"])
        == 0
    )

    assert (folder / "derived.json").read_bytes() == (folder / "run" / "derived.json").read_bytes()


def test_a_check_finds_everything_good_and_sends_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = with_keys(folder)
    capsys.readouterr()

    assert main(check(folder, home)) == 0

    names = [line.split(":")[0].removeprefix("good  ") for line in capsys.readouterr().out.splitlines()]
    assert names == ["keys and clock", "config, data and policy", "digest", "policy", "disk", "memory"]
    assert not (home / "outbox.jsonl").exists()


def test_a_policy_may_leave_out_a_stage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = with_keys(folder)
    (home / "policy.toml").write_text('stages = ["personalized"]')
    capsys.readouterr()

    assert main(check(folder, home)) == 0

    assert "good  policy: it allows training in `personalized`\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "more", "policy", "bad"),
    [
        ("bob", [], "", "keys and clock: the certificate is for device 'ann', and not for 'bob'"),
        ("bob", [], "", "config, data and policy: The data has no device 'bob'"),
        ("ann", ["--digest", "0" * 64], "", "digest: "),
        ("ann", [], "nonsense = 1", "config, data and policy: Unknown key `nonsense`"),
        ("ann", [], 'names = ["x"]', "policy: The policy does not allow a change of `"),
        ("ann", [], "max_bytes = 4", "policy: The policy allows 4 bytes in a round, and the change has "),
        ("ann", [], "require_clipping = true", "policy: The policy asks for clipping"),
        ("ann", [], "stages = []", "policy: it allows no training"),
    ],
)
def test_a_check_says_what_is_bad(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    device: str,
    more: list[str],
    policy: str,
    bad: str,
) -> None:
    home = with_keys(folder)
    (home / "policy.toml").write_text(policy)
    capsys.readouterr()

    assert main(check(folder, home, *more, device=device)) == 1

    assert f"BAD   {bad}" in capsys.readouterr().out


def test_a_check_says_that_disk_or_memory_are_too_small(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = with_keys(folder)
    for name, (owner, function), answer in (
        ("disk", (shutil, "disk_usage"), SimpleNamespace(free=10)),
        ("memory", (checking, "_available_memory"), 10),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, function, lambda *_, answer=answer: answer)
            capsys.readouterr()
            assert main(check(folder, home)) == 1
            text = capsys.readouterr().out
            assert main(check(folder, home, "--json")) == 1
            found = json.loads(capsys.readouterr().out)

        (line,) = [line for line in text.splitlines() if line.startswith("BAD")]
        assert line.startswith(f"BAD   {name}: ")
        assert "0.0 MB free" in line or "0.0 MB available" in line
        assert [own for own, finding in found.items() if not finding["good"]] == [name]


def test_the_services_of_the_guide_start_commands_that_there_are() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"
    lines = [line for line in page.read_text().splitlines() if line.startswith("ExecStart=")]

    served, joined = (parse(shlex.split(line)[1:]) for line in lines)

    assert (served.name, served.resume, served.status) == ("serve", True, 9090)
    assert served.listen == "0.0.0.0:8443"
    assert served.arguments == []
    assert (joined.name, joined.server, joined.device) == ("join", "https://fl.example.org:8443", "ann")
    for path in (served.home, joined.home):
        assert path.is_relative_to("/var/lib/partita")  # All else is read-only for a service.


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["serve", "whole.toml", "--home", "s", "--insecure"], "derives values"),
        (
            ["serve", "config.toml", "--home", "s", "--insecure", "--listen", "0.0.0.0:0"],
            "is only for 127.0.0.1",
        ),
        (["serve", "config.toml", "--home", "s", "--listen", "127.0.0.1:0"], "partita keys server"),
        (["serve", "config.toml", "--home", "s", "--listen", "8443"], "must be HOST:PORT"),
        (["serve", "config.toml", "--home", "s", "--devices", "0"], "must be at least 1"),
        (["serve", "config.toml", "--home", "s", "--deadline", "-1"], "`deadline` must be"),
        (["serve", "config.toml", "--home", "s", "finetune.baseline=true"], "`finetune.baseline`"),
        (["serve", "--resume", "--home", "s", "--insecure"], "has no run to resume"),
    ],
)
def test_a_server_that_cannot_be_is_one_clear_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(folder)

    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert reason in error
    assert len(error.strip().splitlines()) == 1


def test_a_device_that_cannot_join_is_one_clear_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--config", str(folder / "config.toml"), "--device", "ann", "--home", str(folder / "home")]
    for server, reason in (
        (["--server", "http://localhost:1"], "must be an address such as https://"),
        (["--server", "http://10.0.0.1:1", "--insecure"], "is only for 127.0.0.1"),
        (
            ["--server", "https://localhost:1", "--data", str(folder / "ann.parquet")],
            "`partita keys request` makes it",
        ),
    ):
        assert main(["join", *server, *common]) == 2
        assert reason in capsys.readouterr().err


def test_a_file_that_exists_is_noticed_before_a_device_trains_for_days(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--config", str(folder / "config.toml"), "--device", "ann", "--home", str(folder / "home")]

    code = main(["join", "--server", "https://localhost:1", *own, "--export", str(folder / "ann.parquet")])

    assert code == 2
    assert "exists already" in capsys.readouterr().err


def test_a_check_of_a_home_that_does_not_exist_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(check(folder, folder / "new" / "home")) == 1

    output = capsys.readouterr().out
    assert "device.key` is missing" in output
    assert "good  disk: " in output
    assert not (folder / "new").exists()


@pytest.mark.slow
def test_keys_are_made_without_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from partita.cli import main; code = main(sys.argv[1:]);"
        "print(code, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "keys", "request", "--home", "home", "--device", "ann"]

    printed = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert printed.splitlines()[-1] == "0 False"


def test_the_record_of_what_left_is_printed_and_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = small_deployment(tmp_path)
    home = deployment.devices[0].joined.home

    assert main(["outbox", "--home", str(home)]) == 0
    assert "personalized 0 update: " in capsys.readouterr().out
    assert main(["outbox", "--home", str(home), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["number"] for line in lines] == list(range(1, len(lines) + 1))
    assert main(["outbox", "--home", str(home), "--verify"]) == 0
    path = home / "outbox.jsonl"
    path.write_text(path.read_text().replace('"round": 0', '"round": 1', 1))
    assert main(["outbox", "--home", str(home), "--verify"]) == 2


def test_the_record_of_a_home_that_does_not_exist_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").mkdir()

    assert main(["outbox", "--home", str(tmp_path / "hone"), "--verify"]) == 2
    assert "hone`. Did you mean `home`?" in capsys.readouterr().err


def small_deployment(folder: Path) -> Deployment:
    """Run a small deployment and return it."""
    config = write_config(folder, devices=2)
    names = ["device-0000", "device-0001"]
    devices = [Device(config, folder / name, name) for name in names]
    deployment = Deployment(config, folder / "server", devices, first=2)
    deployment.start()
    deployment.finish()
    return deployment


def test_a_device_exports_its_own_model_by_itself(tmp_path: Path) -> None:
    deployment = small_deployment(tmp_path)
    device = deployment.devices[0]
    out = tmp_path / "own.safetensors"

    export_own(device.joined, device.part.home, out)

    model, shared = partita.load(out), shared_tensors(deployment.run, "personalized")
    state = model.state_dict()
    personal = device.part.home.store.load(device.joined.device)
    assert {**shared, **personal}.keys() == state.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in {**shared, **personal}.items())
    assert out.stat().st_mode & 0o077 == 0


def test_a_device_that_was_not_evaluated_has_no_model_to_export(tmp_path: Path) -> None:
    deployment = small_deployment(tmp_path)
    device = deployment.devices[0]
    for file in device.part.home.folder.glob("*.model.safetensors"):
        file.unlink()

    with pytest.raises(RunFailed, match="no final model"):
        export_own(device.joined, device.part.home, tmp_path / "own.safetensors")
