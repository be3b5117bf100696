"""The components of a Flower app with Flower's own messages, without its processes."""

# pyright: reportMissingImports=false
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower has an environment of its own: `make flower` makes it")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from deployed import folder_file, lines_of, personal_of, same_results, simulated, write_config
from partita.deploy.flower import courier as couriers
from partita.deploy.flower.app import client_app, serve
from partita.deploy.flower.courier import Courier
from partita.deploy.flower.records import REPLY, array_of, bytes_in, records_of, values_in
from partita.deploy.home import RunHome
from partita.deploy.hub import Hub
from partita.deploy.joining import Participant
from partita.deploy.outbox import read_lines, verify
from partita.device.store import DiskStore
from partita.errors import ConfigError
from partita.executors.desk import Desk
from partita.executors.replies import encoded_reply
from partita.params import Params
from partita.protocol import Failure, Order, Pace, Reply, Stage, Start, Update, key_of
from partita.runs.folder import RunFolder
from partita.runs.tensors import shared_tensors

IDS = [f"device-{number:04}" for number in range(3)]
Tamper = Callable[[Message, Message], Message]


class LocalGrid:
    """A grid in this process: the client answers a message when its reply is asked for.

    Only this class looks inside Flower's messages: a grid gives them their ids.
    """

    def __init__(self, client: Any, nodes: dict[int, dict[str, Any]], run: dict[str, Any]) -> None:
        self.nodes = nodes
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.tamper: Tamper = lambda message, reply: reply
        self._client = client
        self._run = run
        self._open: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.sent.append(message)
            ids.append(f"message-{len(self.sent)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self._open[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for message in [self._open.pop(own) for own in list(message_ids) if own in self._open]:
            node = message.metadata.dst_node_id
            context = Context(
                run_id=1, node_id=node, node_config=self.nodes[node], state=RecordDict(), run_config=self._run
            )
            replies.append(self.tamper(message, self._client(message, context)))
        self.replies += replies
        return replies


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the grid all the time, and send a message that failed again at once.

    Flower's messages have the ids of the run, the node and the task of their process.
    """
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(couriers, "_PAUSE", 0.002)
    monkeypatch.setattr(couriers, "_AGAIN", 0.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunFolder]:
    """Return the config of a small run, and that run in simulation."""
    folder = tmp_path_factory.mktemp("base")
    config = write_config(folder)
    return config, simulated(config, folder / "simulated")


def nodes_in(folder: Path) -> dict[int, dict[str, Any]]:
    """Return three nodes with a device each."""
    return {
        number: {"device": device, "home": str(folder / device)} for number, device in enumerate(IDS, start=7)
    }


def grid_in(folder: Path, config: Path) -> LocalGrid:
    return LocalGrid(client_app(config), nodes_in(folder), {})


def run(grid: LocalGrid, folder: Path, config: Path, **settings: Any) -> RunFolder:
    serve(grid, {"home": str(folder / "server"), "devices": 3, **settings}, config)
    return RunFolder(folder / "server" / "run")


def store_of(home: Path) -> DiskStore:
    (folder,) = (home / "runs").iterdir()
    return DiskStore(folder / "personal")


def check_same(folder: RunFolder, simulation: RunFolder, homes: dict[str, Path]) -> None:
    """Check that a run and the personal parts on its devices have the bits of the simulation."""
    assert same_results(folder, simulation)
    for device, home in homes.items():
        store = store_of(home)
        assert store.path_of(device).read_bytes() == personal_of(simulation, device)
        assert not list(store.folder.glob("*.next"))
        verify(home)


def homes_in(folder: Path) -> dict[str, Path]:
    return {device: folder / device for device in IDS}


def test_a_run_behind_a_grid_has_the_bits_of_the_simulation(
    base: tuple[Path, RunFolder], tmp_path: Path
) -> None:
    config, simulation = base
    grid = grid_in(tmp_path, config)

    folder = run(grid, tmp_path, config)

    check_same(folder, simulation, homes_in(tmp_path))
    assert not folder.personal_folder.exists()
    kinds = {message.metadata.message_type for message in grid.sent}
    assert kinds == {"query", "train", "evaluate"}


def test_nodes_of_a_simulation_are_devices_by_their_numbers(
    base: tuple[Path, RunFolder], tmp_path: Path
) -> None:
    config, simulation = base
    home = tmp_path / "server"
    nodes = {number: {"partition-id": number - 7, "num-partitions": 3} for number in (7, 8, 9)}
    grid = LocalGrid(client_app(config), nodes, {"home": str(home)})

    folder = run(grid, tmp_path, config)

    check_same(folder, simulation, {device: home / "devices" / key_of(device) for device in IDS})


def test_a_node_that_crashes_after_its_work_sends_the_same_reply_again_and_trains_once(
    base: tuple[Path, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, simulation = base
    grid, visits, failed = grid_in(tmp_path, config), [], []
    carry_out = Participant._carry_out
    monkeypatch.setattr(Participant, "_carry_out", lambda *given: visits.append(given) or carry_out(*given))

    def lose_every_other(message: Message, reply: Message) -> Message:
        nonce = values_in(message).get("nonce")
        if nonce and nonce not in failed:
            failed.append(nonce)
            return Message(Error(code=5, reason="the node is not available"), reply_to=message)
        return reply

    grid.tamper = lose_every_other
    folder = run(grid, tmp_path, config)

    check_same(folder, simulation, homes_in(tmp_path))
    assert len(visits) == len(failed) == sum(len(line["asked"]) for line in lines_of(simulation))
    repeated = [line for line in read_lines(tmp_path / IDS[0]) if line["purpose"] == "repeated reply"]
    assert repeated


def with_nonce(nonce: str, message: Message) -> Message:
    """Return the reply of a device that answers another order than the one it has got."""
    device = values_in(message)["order"]["device"]
    content = encoded_reply(nonce, Failure(device=device, reason="of somebody else"))
    return Message(records_of({"kind": REPLY}, {REPLY: array_of(content)}), reply_to=message)


def test_a_reply_with_another_nonce_is_a_failure_of_its_device(
    base: tuple[Path, RunFolder], tmp_path: Path
) -> None:
    config, _ = base
    grid = grid_in(tmp_path, config)

    def forged(message: Message, reply: Message) -> Message:
        order = values_in(message).get("order", {})
        is_first = (order.get("device"), order.get("stage"), order.get("round")) == (IDS[0], "finetuned", 0)
        return with_nonce("0" * 32, message) if is_first else reply

    grid.tamper = forged
    folder = run(grid, tmp_path, config)

    reasons = {line["failed"][IDS[0]] for line in lines_of(folder) if IDS[0] in line["failed"]}
    assert "The reply was refused: The reply is not to this order: it has another nonce." in reasons


def test_a_reply_that_was_recorded_in_an_earlier_round_is_refused(
    base: tuple[Path, RunFolder], tmp_path: Path
) -> None:
    config, _ = base
    grid, recorded = grid_in(tmp_path, config), []

    def replayed(message: Message, reply: Message) -> Message:
        order = values_in(message).get("order", {})
        if order.get("stage") != "personalized" or order["work"]["kind"] != "Update":
            return reply
        recorded.append(reply.content)
        return Message(recorded[0], reply_to=message)

    grid.tamper = replayed
    folder = run(grid, tmp_path, config)

    updates = [
        line for line in lines_of(folder) if line["stage"] == "personalized" and line["work"] == "update"
    ]
    assert [len(line["heard"]) for line in updates] == [1, 0, 0]
    reasons = {reason for line in updates for reason in line["failed"].values()}
    assert reasons == {"The reply was refused: The reply is not to this order: it has another nonce."}


SHARED: Params = {"u": torch.zeros(3)}
COMPUTES = {"task": "a" * 64}
TRAIN = {"train": {"examples": 2, "loss": 0.5, "start_loss": 0.5}}


class Bench:
    """A courier with one node, whose answers a test gives."""

    def __init__(self, answers: Callable[[Message], Message]) -> None:
        self.desk = Desk()
        self.hub = Hub("f" * 32, COMPUTES, self.desk)
        self.time = 0.0
        self.grid = LocalGrid(lambda message, context: answers(message), {7: {}}, {})
        self.courier = Courier(self.hub, self.grid, clock=lambda: self.time)

    def open(self) -> None:
        pace = Pace(lr=0.1, epochs=1)
        order = Order(
            stage=Stage.PERSONALIZED,
            round=0,
            device="ann",
            work=Update(personal=pace, shared=pace),
            shared=SHARED,
            start=Start(digest="0" * 64, personal=None, frozen="0" * 64),
        )
        self.desk.open([order], [], cohort=1)

    def steps(self, count: int = 4) -> None:
        for _ in range(count):
            self.courier.step()


def introduction(message: Message, device: str = "ann") -> Message:
    return Message(records_of({"device": device, "computes": COMPUTES}), reply_to=message)


def good(message: Message) -> Message:
    """Return the right answer to any message."""
    values = values_in(message)
    if values["kind"] != "order":
        return (
            introduction(message) if values["kind"] == "join" else Message(records_of({}), reply_to=message)
        )
    reply = Reply(device="ann", weight=2, change={"u": SHARED["u"] + 1}, metrics=TRAIN)
    content = encoded_reply(values["nonce"], reply)
    return Message(records_of({"kind": REPLY}, {REPLY: array_of(content)}), reply_to=message)


def test_a_reply_that_comes_twice_counts_once() -> None:
    bench = Bench(good)
    bench.steps(2)
    bench.open()
    bench.steps(1)
    (order,) = [message for message in bench.grid.sent if values_in(message)["kind"] == "order"]
    post = bench.desk.find("ann")
    content = bytes_in(good(order))[REPLY]
    assert post is not None
    assert bench.desk.hand_in(post, content)

    bench.steps()  # The same reply comes through the grid.

    assert isinstance(bench.desk.next_answer(0), Reply)
    assert bench.desk.next_answer(0) is None


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"values": ConfigRecord({"json": "[" * 100_000})}),
        RecordDict({"values": ConfigRecord({"json": 3})}),
        RecordDict({"arrays": ConfigRecord({REPLY: b"x"})}),
        records_of({"kind": REPLY}, {"other": array_of(b"x")}),
        records_of({"kind": REPLY}, {REPLY: array_of(b"")}),
        records_of({"kind": REPLY}, {REPLY: array_of(b"\0" * 10_000)}),
        records_of({"kind": REPLY}, {REPLY: array_of(b"\0" * 1_000_000)}),
        RecordDict({"values": ArrayRecord(), "arrays": ArrayRecord()}),
    ],
    ids=range(9),
)
def test_an_answer_of_another_form_is_a_failure_of_its_device(records: RecordDict) -> None:
    bench = Bench(lambda message: introduction(message) if len(bench.grid.sent) == 1 else broken(message))

    def broken(message: Message) -> Message:
        return Message(records, reply_to=message)

    bench.steps(2)
    bench.open()
    bench.steps(3)

    answer = bench.desk.next_answer(0)
    assert isinstance(answer, Failure)
    assert answer.reason.startswith("The reply was refused: ")


@pytest.mark.parametrize(
    "about", [{}, {"device": 3}, {"device": ""}, {"device": "ann"}, {"problem": "OSError"}]
)
def test_a_node_that_does_not_introduce_itself_takes_no_part_and_is_asked_again(
    about: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(couriers, "_AGAIN", 10.0)
    bench = Bench(lambda message: Message(records_of(about), reply_to=message))

    bench.steps()
    assert not bench.hub.joined()
    assert len(bench.grid.sent) == 1
    bench.time = 11.0
    bench.steps(1)

    assert len(bench.grid.sent) == 2


def test_a_second_node_of_a_device_waits_until_the_first_is_gone() -> None:
    bench = Bench(good)
    bench.grid.nodes[8] = {}
    bench.steps()
    bench.open()
    bench.steps(2)
    to = [
        message.metadata.dst_node_id for message in bench.grid.sent if values_in(message)["kind"] == "order"
    ]
    assert to == [7]

    del bench.grid.nodes[7]
    bench.steps(2)
    bench.open()
    bench.steps(2)

    to = [
        message.metadata.dst_node_id for message in bench.grid.sent if values_in(message)["kind"] == "order"
    ]
    assert to == [7, 8]


def test_a_device_with_another_config_is_refused(
    base: tuple[Path, RunFolder], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, _ = base
    (tmp_path / "other").mkdir()
    strange = client_app(write_config(tmp_path / "other", more="personal_lr = 0.5"))
    usual = client_app(config)
    grid = grid_in(tmp_path, config)

    def client(message: Message, context: Context) -> Message:
        return (strange if context.node_config["device"] == IDS[2] else usual)(message, context)

    grid._client = client
    folder = run(grid, tmp_path, config, devices=2)

    assert {device for line in lines_of(folder) for device in line["asked"]} == set(IDS[:2])
    assert "another `personalize` than the server" in caplog.text


def test_the_text_of_an_exception_stays_on_the_device(
    base: tuple[Path, RunFolder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, _ = base
    grid, raised = grid_in(tmp_path, config), []
    add_result = RunHome.add_result

    def failing(home: RunHome, *given: Any) -> None:
        if not raised:
            raised.append(given)
            raise ValueError("row 17 of ann: HIV positive")
        add_result(home, *given)

    monkeypatch.setattr(RunHome, "add_result", failing)
    run(grid, tmp_path, config)

    answers = [json.dumps(values_in(reply)) for reply in grid.replies]
    assert json.dumps({"problem": "ValueError"}) in answers
    contents = [content for reply in grid.replies for content in bytes_in(reply).values()]
    assert not any("HIV" in text for text in answers)
    assert not any(b"HIV" in content for content in contents)
    assert "HIV" in capsys.readouterr().err


def test_every_message_of_a_device_is_recorded_with_its_purpose_before_it_is_sent(
    base: tuple[Path, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _ = base
    grid, raised = grid_in(tmp_path, config), []
    add_result = RunHome.add_result

    def failing(home: RunHome, *given: Any) -> None:
        if not raised:
            raised.append(given)
            raise ValueError
        add_result(home, *given)

    monkeypatch.setattr(RunHome, "add_result", failing)
    sent: list[tuple[str, str]] = []
    counts: Counter[int] = Counter()

    def check(message: Message, reply: Message) -> Message:
        node, values = message.metadata.dst_node_id, values_in(reply)
        counts[node] += 1
        lines = list(read_lines(tmp_path / IDS[node - 7]))
        assert len(lines) == counts[node]
        kind = "problem" if "problem" in values else values.get("kind", "join")
        sent.append((kind, lines[-1]["purpose"]))
        if kind == "problem":
            assert lines[-1]["reason"] == values["problem"] == "ValueError"
        if kind == REPLY:
            assert lines[-1]["sha256"] == hashlib.sha256(bytes_in(reply)[REPLY]).hexdigest()
        return reply

    grid.tamper = check
    run(grid, tmp_path, config)

    assert {pair for pair in sent if pair[0] != REPLY} == {
        ("join", "join"),
        ("problem", "problem"),
        ("done", "done"),
    }
    assert {purpose for kind, purpose in sent if kind == REPLY} <= {"update", "evaluate", "finetune"}
    for home in homes_in(tmp_path).values():
        verify(home)


def test_nothing_personal_is_in_any_message_or_file_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path)
    # Without pretraining, which shares everything.
    text = config.read_text().replace("[pretrain]\nrounds = 2", "[pretrain]\nrounds = 0")
    config.write_text(text.replace("examples = 6", "examples = 6\npersonal = 16"))
    saved: list[bytes] = []
    save = DiskStore.save

    def recorded(store: DiskStore, device: str, label: str, personal: Params) -> None:
        saved.extend(tensor.detach().contiguous().numpy().tobytes() for tensor in personal.values())
        save(store, device, label, personal)

    monkeypatch.setattr(DiskStore, "save", recorded)
    grid = grid_in(tmp_path, config)
    folder = run(grid, tmp_path, config)

    messages = [*grid.sent, *grid.replies]
    contents = [content for message in messages for content in bytes_in(message).values()]
    contents += [json.dumps(values_in(message)).encode() for message in messages]
    contents += [path.read_bytes() for path in folder.path.parent.rglob("*") if path.is_file()]
    windows = {own[at : at + 32] for own in saved for at in range(0, len(own) - 31, 4)}
    assert len(saved) == 9  # Three rounds of two devices, then all are fine-tuned.
    assert len(windows) > 50
    assert (folder.path / folder_file("personalized")).exists()
    assert not any(window in content for window in windows for content in contents)


class Stop(Exception):
    """The server ends."""


@pytest.mark.parametrize("commits", [2, 5])
def test_a_run_that_was_lost_is_resumed_with_the_same_bits(
    base: tuple[Path, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    from partita.runs.journal import FolderJournal

    config, simulation = base
    commit, left = FolderJournal.commit, [commits]

    def losing(self: FolderJournal, *arguments: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise Stop
        commit(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(FolderJournal, "commit", losing)
        with pytest.raises(Stop):
            run(grid_in(tmp_path, config), tmp_path, config)
    with pytest.raises(ConfigError, match="has a run already"):
        run(grid_in(tmp_path, config), tmp_path, config)
    folder = run(grid_in(tmp_path, config), tmp_path, config, resume=True)

    check_same(folder, simulation, homes_in(tmp_path))


def test_what_the_grid_raises_ends_the_run(base: tuple[Path, RunFolder], tmp_path: Path) -> None:
    config, _ = base
    grid = grid_in(tmp_path, config)

    def gone(message: Message, reply: Message) -> Message:
        raise ConnectionError("the SuperLink is gone")

    grid.tamper = gone
    with pytest.raises(ConnectionError, match="SuperLink"):
        run(grid, tmp_path, config)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"home": ""}, "`home` must be the folder"),
        ({"devices": 0}, "`devices` must be at least 1"),
        ({"devices": "three"}, "`devices` must be a whole number"),
        ({"deadline": -1.0}, "`deadline` must be"),
        ({"round": 3}, "Unknown key `round`"),
        ({"resume": True}, "has no run to resume"),
    ],
)
def test_a_setting_that_cannot_be_is_one_clear_line(
    base: tuple[Path, RunFolder], tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    config, _ = base

    with pytest.raises(ConfigError, match=reason):
        run(grid_in(tmp_path, config), tmp_path, config, **settings)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"home": "h"}, "must have `device`"),
        ({"device": "ann"}, "must have `home`"),
        ({"partition-id": 3, "num-partitions": 4}, "4 nodes, and the data only 3 devices"),
        ({"device": "nobody", "home": "h"}, "has no device 'nobody'"),
    ],
)
def test_a_node_whose_settings_cannot_be_says_why_on_its_own_machine(
    base: tuple[Path, RunFolder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    node: dict[str, Any],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = LocalGrid(client_app(base[0]), {7: node}, {"home": str(tmp_path)})

    (number,) = grid.push_messages(
        [Message(records_of({"kind": "join"}), dst_node_id=7, message_type="query")]
    )
    (reply,) = grid.pull_messages([number])

    assert values_in(reply) == {"problem": "ConfigError"}
    assert reason in capsys.readouterr().err


def test_a_device_writes_its_own_model_when_the_run_is_over(
    base: tuple[Path, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import partita

    config, _ = base
    grid = grid_in(tmp_path, config)
    grid.nodes[7]["export"] = str(tmp_path / "own.safetensors")

    folder = run(grid, tmp_path, config)

    state = partita.load(tmp_path / "own.safetensors").state_dict()
    expected = {**shared_tensors(folder, "personalized"), **(store_of(tmp_path / IDS[0]).load(IDS[0]) or {})}
    assert state.keys() == expected.keys()
    assert all((state[name] == tensor).all() for name, tensor in expected.items())
    assert "finetuned, test: " in capsys.readouterr().out
