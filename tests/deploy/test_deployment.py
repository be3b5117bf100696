"""A run with devices that have only their own data: the bits of the simulation, whoever crashes."""

import random
from pathlib import Path
from typing import cast

import pytest

from deployed import (
    Deployment,
    Device,
    lines_of,
    lines_so_far,
    personal_of,
    same_results,
    simulated,
    write_config,
)
from marks import slow_but
from partita.deploy import joining
from partita.deploy.joining import Participant
from partita.deploy.link import Link
from partita.deploy.messages import BadMessage, Group
from partita.deploy.outbox import Outbox, read_lines, verify
from partita.deploy.policy import Policy
from partita.executors.remote import Patience
from partita.protocol import Order
from partita.runs.folder import RunFolder

IDS = [f"device-{number:04}" for number in range(3)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunFolder]:
    """Return the config of a small run, and that run in simulation."""
    folder = tmp_path_factory.mktemp("base")
    config = write_config(folder)
    return config, simulated(config, folder / "simulated")


def deployed(config: Path, folder: Path, **settings: Policy) -> Deployment:
    devices = [Device(config, folder / name, name, settings.get(f"policy_{name}")) for name in IDS]
    return Deployment(config, folder / "server", devices, first=3)


def test_a_deployed_run_has_the_bits_of_the_simulation(base: tuple[Path, RunFolder], tmp_path: Path) -> None:
    config, simulation = base
    deployment = deployed(config, tmp_path)

    deployment.start()
    deployment.finish()

    assert same_results(deployment.run, simulation)
    for device in deployment.devices:
        assert device.personal == personal_of(simulation, device.joined.device)
        assert not list(device.part.home.store.folder.glob("*.next"))
    assert not deployment.run.personal_folder.exists()


class Crash(BaseException):
    """A device ends in the middle of its work."""


def crashing(monkeypatch: pytest.MonkeyPatch, rng: random.Random, share: float) -> list[str]:
    """Let devices end before or after each step that changes something, now and then; return where."""
    where: list[str] = []

    def now_and_then(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def step(*arguments: object, **options: object) -> object:
            if rng.random() < share:
                where.append(f"before {name}")
                raise Crash
            result = original(*arguments, **options)
            if rng.random() < share:
                where.append(f"after {name}")
                raise Crash
            return result

        monkeypatch.setattr(owner, name, step)

    from partita.deploy.home import RunHome
    from partita.device.store import DiskStore

    for owner, names in (
        (Participant, ("_fetch", "_send")),
        (RunHome, ("settle", "store_reply", "add_result")),
        (DiskStore, ("save", "settle", "commit")),
        (Outbox, ("write",)),
    ):
        for name in names:
            now_and_then(owner, name)
    return where


@pytest.mark.parametrize("seed", slow_but(range(3), 0))
def test_devices_that_crash_anywhere_end_with_the_same_bits(
    base: tuple[Path, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    config, simulation = base
    deployment = deployed(config, tmp_path)
    deployment.start()
    with monkeypatch.context() as patch:
        where = crashing(patch, random.Random(seed), share=0.06)
        while deployment.thread.is_alive():
            for device in deployment.devices:
                try:
                    device.ask()
                except Crash:
                    device.crash()
        deployment.finish()

    assert len(where) > 5
    assert same_results(deployment.run, simulation)
    for device in deployment.devices:
        device.part = device.part or deployment_part(deployment, device)
        assert device.personal == personal_of(simulation, device.joined.device)
        verify(device.joined.home)


def deployment_part(deployment: Deployment, device: Device) -> Participant:
    """Return a device's part in the run again, after it has ended."""
    device.ask()
    assert device.part is not None
    return device.part


class Stop(Exception):
    """The server ends."""


@pytest.mark.parametrize("rounds", slow_but([1, 3, 5, 8], 3))
def test_a_server_that_stops_between_rounds_continues_with_the_same_bits(
    base: tuple[Path, RunFolder], tmp_path: Path, rounds: int
) -> None:
    config, simulation = base
    deployment = deployed(config, tmp_path)

    def stop(line: object, done: int, total: int) -> None:
        if done == rounds:
            raise Stop

    deployment.start(watch=stop)
    with pytest.raises(Stop):
        deployment.finish()
    deployment.start(resume=True)
    deployment.finish()

    assert same_results(deployment.run, simulation)
    for device in deployment.devices:
        assert device.personal == personal_of(simulation, device.joined.device)


@pytest.mark.parametrize("commits", slow_but([2, 4, 7], 4))
def test_a_round_that_the_server_loses_is_rolled_back_and_never_applied_twice(
    base: tuple[Path, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    # The server ends when all replies of a round have arrived and before it is committed: the devices have
    # saved new personal parts, which must not stand.
    from partita.runs.journal import FolderJournal

    config, simulation = base
    deployment = deployed(config, tmp_path)
    commit, left = FolderJournal.commit, [commits]

    def losing(self: FolderJournal, *arguments: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise Stop
        commit(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(FolderJournal, "commit", losing)
        deployment.start()
        with pytest.raises(Stop):
            deployment.finish()
    deployment.start(resume=True)
    deployment.finish()

    assert same_results(deployment.run, simulation)
    for device in deployment.devices:
        assert device.personal == personal_of(simulation, device.joined.device)


def test_a_repeated_order_gets_the_stored_reply_and_counts_once(
    base: tuple[Path, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, simulation = base
    deployment = deployed(config, tmp_path)
    visits: list[object] = []
    carry_out = Participant._carry_out
    monkeypatch.setattr(Participant, "_carry_out", lambda *given: visits.append(given) or carry_out(*given))
    lost = [0]

    def lose_first(self: Participant, nonce: str, content: bytes) -> None:
        lost[0] += 1
        if lost[0] % 2:  # Every other message is lost on its way.
            return
        assert self._carrier.reply(nonce, content)
        assert not self._carrier.reply(nonce, content)  # The same reply again is not counted again.

    monkeypatch.setattr(Participant, "_send", lose_first)
    deployment.start()
    deployment.finish()

    assert same_results(deployment.run, simulation)
    assert len(visits) == sum(len(line["asked"]) for line in lines_of(simulation))
    repeated = [
        line
        for line in read_lines(tmp_path / deployment.devices[0].joined.device)
        if line["purpose"] == "repeated reply"
    ]
    first = {line["sha256"] for line in read_lines(tmp_path / IDS[0]) if "stage" in line}
    assert repeated
    assert {line["sha256"] for line in repeated} <= first


def test_an_order_against_the_policy_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    refusing = Device(config, tmp_path / IDS[0], IDS[0], Policy(stages=("pretrained", "finetuned")))
    others = [Device(config, tmp_path / name, name) for name in IDS[1:]]
    deployment = Deployment(config, tmp_path / "server", [refusing, *others], first=3)

    deployment.start()
    deployment.finish()

    failed = [line["failed"] for line in lines_of(deployment.run) if IDS[0] in line["failed"]]
    assert failed
    assert {reasons[IDS[0]] for reasons in failed} == {"The policy does not allow the stage `personalized`."}
    sent = [line for line in read_lines(tmp_path / IDS[0]) if line.get("stage") == "personalized"]
    assert all(not line["tensors"] and not line["metrics"] for line in sent)


def test_a_device_with_another_config_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    config = write_config(tmp_path)
    other = write_config(tmp_path / "other", more="personal_lr = 0.5")
    devices = [Device(config, tmp_path / name, name) for name in IDS[:2]]
    stranger = Device(other, tmp_path / IDS[2], IDS[2])
    deployment = Deployment(config, tmp_path / "server", [*devices, stranger], first=2)

    deployment.start()
    deployment.finish()

    assert "another `personalize` than the server" in deployment.server.hub.refused()[IDS[2]]
    assert deployment.server.served.devices == IDS[:2]


def test_a_silent_device_misses_its_round_and_its_personal_part_stays(tmp_path: Path) -> None:
    config = write_config(tmp_path, rounds=2, more="over_select = 1")
    devices = [Device(config, tmp_path / name, name) for name in IDS]
    deployment = Deployment(
        config, tmp_path / "server", devices, first=3, patience=Patience(deadline=0.2, min_devices=2)
    )
    silent = devices[0]

    deployment.start()
    while deployment.thread.is_alive():
        for device in devices:
            if device is silent and lines_so_far(deployment) in (2, 3):
                continue  # It is silent in the evaluation after pretraining and in the first round after it.
            device.ask()
    deployment.finish()

    failed = [line["failed"].get(IDS[0]) for line in lines_of(deployment.run)]
    assert "There was no reply in 0.2 seconds." in failed
    counted = [line["heard"] for line in lines_of(deployment.run)]
    assert any(IDS[0] in heard for heard in counted)


def test_early_stopping_takes_devices_back_on_their_own_disks(tmp_path: Path) -> None:
    config = write_config(tmp_path, rounds=8, more="patience = 1\npersonal_lr = 1.9\nshared_lr = 1.9")
    text = config.read_text().replace("examples = 6", "examples = 6\nvalidation = 0.3")
    config.write_text(text)
    simulation = simulated(config, tmp_path / "simulated")
    deployment = deployed(config, tmp_path)

    deployment.start()
    deployment.finish()

    assert simulation.summary["early_stopping"]["personalized"]
    assert deployment.server.served.restored
    assert same_results(deployment.run, simulation)
    for device in deployment.devices:
        assert device.personal == personal_of(simulation, device.joined.device)


def test_a_visit_that_raises_tells_the_server_only_the_kind_of_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from partita.executors.serial import SerialExecutor

    config = write_config(tmp_path)
    deployment = deployed(config, tmp_path)
    ask = SerialExecutor.ask

    def failing(self: SerialExecutor, orders: list) -> object:
        if orders[0].device == IDS[0] and orders[0].stage == "personalized":
            raise ValueError("row 17 of ann: HIV positive")
        return ask(self, orders)

    monkeypatch.setattr(SerialExecutor, "ask", failing)
    deployment.start()
    deployment.finish()

    reasons = {line["failed"][IDS[0]] for line in lines_of(deployment.run) if IDS[0] in line["failed"]}
    assert reasons == {"The visit ended with ValueError."}
    sent = b"".join(content for device in deployment.devices for content in device.link.sent)
    assert b"HIV" not in sent
    assert "HIV" in capsys.readouterr().err


def test_a_text_of_the_tasks_own_stays_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from partita.device.visit import Visitor
    from partita.errors import CannotDo

    config = write_config(tmp_path)
    deployment = deployed(config, tmp_path)
    training = Visitor._training

    def refusing(self: Visitor, order: Order) -> object:
        if order.device == IDS[0] and order.stage == "personalized":
            raise CannotDo("ann is HIV positive")
        return training(self, order)

    monkeypatch.setattr(Visitor, "_training", refusing)
    deployment.start()
    deployment.finish()

    reasons = {line["failed"][IDS[0]] for line in lines_of(deployment.run) if IDS[0] in line["failed"]}
    assert reasons == {"The device could not do its work; its own log says why."}
    assert b"HIV" not in b"".join(content for device in deployment.devices for content in device.link.sent)
    assert "HIV" in caplog.text


@pytest.mark.parametrize(
    "reason",
    [
        "The loss became nan in step 12.",
        "The loss became -inf in step 1.",
        "The device has no training examples.",
        "The personal part is not finite in `head.weight`.",
        "The change of the shared part is not finite in `body.0.weight`.",
        "`batch_size` is 1: BatchNorm needs at least 2 in a batch to train.",
    ],
)
def test_reasons_of_partita_itself_reach_the_operator(reason: str) -> None:
    assert joining._reason_to_send(reason) == reason
    assert joining._reason_to_send(f"{reason} Row 3 is Ann's.") != reason


def test_an_order_with_more_tensors_than_the_devices_model_has_is_not_fetched(
    base: tuple[Path, RunFolder], tmp_path: Path
) -> None:
    device = Device(base[0], tmp_path / "home", IDS[0])
    part = Participant(device.joined, "ab" * 16, cast(Link, None), Outbox(tmp_path / "home"))

    with pytest.raises(BadMessage, match="has 1099511627776 bytes of tensors"):
        part._fetch({"shared": Group("0" * 64, 2**40)})
