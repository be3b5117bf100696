"""Devices that join when the run has begun, or is over: they are onboarded, and get a model of their own."""

from pathlib import Path
from typing import Any

import pytest
import torch

from deployed import Deployment, Device, lines_of, lines_so_far, write_config
from partita.runs.folder import RunFolder
from partita.runs.tensors import shared_tensors

IDS = [f"device-{number:04}" for number in range(3)]
LATE = ["device-0003", "device-0004"]


def with_late(folder: Path) -> tuple[Deployment, list[Device]]:
    """Return a deployment of three devices, and two further ones."""
    config = write_config(folder, devices=5)
    devices = [Device(config, folder / name, name) for name in [*IDS, *LATE]]
    return Deployment(config, folder / "server", devices[:3], first=3), devices[3:]


def join_late(deployment: Deployment, device: Device) -> None:
    """Let a device join a run that has begun."""
    while not lines_so_far(deployment):
        deployment.step()
    deployment.devices = [*deployment.devices, device]
    device.connect(deployment.server.hub)


def check_onboarded(deployment: Deployment, number: int, device: Device) -> None:
    """Check that an onboarding is finished, and that its device has a model of its own."""
    onboarded = RunFolder(deployment.run.onboarded_folder / str(number))
    assert onboarded.is_finished
    assert set(device.part.home.results) == {"pretrained", "personalized", "finetuned"}
    assert device.personal
    assert not list(deployment.run.path.rglob("personal"))  # Personal parts are on the devices.
    assert all(device.joined.device not in line["asked"] for line in lines_of(deployment.run))


def test_late_devices_are_onboarded_when_training_is_over(tmp_path: Path) -> None:
    deployment, (late, _) = with_late(tmp_path)

    deployment.start()
    while lines_so_far(deployment) < 4:
        deployment.step()
    join_late(deployment, late)
    deployment.finish()

    assert deployment.server.served.devices == IDS
    assert deployment.server.served.late == {"1": LATE[:1]}
    check_onboarded(deployment, 1, late)


def test_a_device_that_joins_while_another_is_onboarded_is_onboarded_after_it(tmp_path: Path) -> None:
    deployment, (first, second) = with_late(tmp_path)

    states: list[tuple[str, ...]] = []

    def join_second(line: dict[str, Any], done: int, total: int) -> None:
        states.append(deployment.server.hub.onboarding)
        if line["asked"] == LATE[:1] and second not in deployment.devices:
            join_late(deployment, second)
            second.ask()

    deployment.start(watch=join_second)
    join_late(deployment, first)
    deployment.finish()

    assert deployment.server.served.late == {"1": LATE[:1], "2": LATE[1:]}
    assert list(dict.fromkeys(states)) == [(), (LATE[0],), (LATE[1],)]
    assert deployment.server.hub.onboarding == ()
    check_onboarded(deployment, 1, first)
    check_onboarded(deployment, 2, second)


def test_a_device_that_joins_a_finished_run_is_onboarded_when_the_server_is_resumed(tmp_path: Path) -> None:
    deployment, (late, _) = with_late(tmp_path)
    deployment.start()
    deployment.finish()
    shared = shared_tensors(deployment.run, "personalized")

    deployment.start(resume=True)
    join_late(deployment, late)
    while not late.is_done:
        assert late.ask() != "refused"
    for device in deployment.devices:
        device.ask()
    deployment.finish()

    check_onboarded(deployment, 1, late)
    assert all(
        torch.equal(tensor, shared[name])
        for name, tensor in shared_tensors(deployment.run, "personalized").items()
    )


class Stop(Exception):
    """The server ends."""


@pytest.mark.parametrize("moment", ["announced", "begun"])
def test_an_onboarding_that_the_server_loses_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    from partita.deploy import serving
    from partita.studies import run as runner

    deployment, (late, _) = with_late(tmp_path)
    name = "write_onboarding" if moment == "announced" else "write_config"
    owner = serving if moment == "announced" else runner
    original = getattr(owner, name)

    def losing(*arguments: Any, **options: Any) -> None:
        if moment == "begun":
            original(*arguments, **options)
        if any(isinstance(own, RunFolder) and "onboarded" in own.path.parts for own in arguments):
            raise Stop

    with monkeypatch.context() as patch:
        deployment.start()
        join_late(deployment, late)
        patch.setattr(owner, name, losing)
        with pytest.raises(Stop):
            deployment.finish()
    deployment.start(resume=True)
    while not late.is_done:
        late.ask()
    for device in deployment.devices:
        device.ask()
    deployment.finish()

    check_onboarded(deployment, 1, late)
