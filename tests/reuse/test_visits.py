"""Computing once what does not move: the same bits as without, applied where it can be, off where it cannot."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import Plan, Training, pipeline, run
from partita.device.roles import Role
from partita.device.settings import Computing
from partita.device.store import DiskStore, MemoryStore
from partita.device.visit import Visitor
from partita.errors import ConfigError
from partita.methods.carried import sent_by
from partita.methods.descent import descend
from partita.methods.fedalt import LocalAlt
from partita.methods.fedavg import LocalSGD
from partita.methods.fedsim import LocalSim
from partita.methods.method import Finetuning, Method
from partita.methods.pfedme import LocalMoreau
from partita.methods.scaffold import LocalScaffold
from partita.models.full import full
from partita.params import cloned, digest_of
from partita.partition import Partition, Personalization, Regularization
from partita.protocol import Finetune, Order, Pace, Reply, Stage, Start, Update
from partita.reuse import settling
from partita.tasks.build import build_model
from partita.tasks.task import Task
from reuse_traps import HOARD, ROWS, TRAPS, Counted, Net, Trap, cross_entropy

SIZE, BATCH, EPOCHS = 20, 8, 3
"""Batches of 8, 8 and 4 examples."""
FINETUNE = Finetune(personal=Pace(lr=0.1, epochs=EPOCHS))
UPDATE = Update(personal=Pace(lr=0.1, epochs=EPOCHS), shared=Pace(lr=0.1, epochs=2))


@pytest.fixture(autouse=True)
def _small_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let small models count as large, and start counting."""
    monkeypatch.setattr(settling, "MIN_OPERATIONS", 0)
    ROWS.clear()
    HOARD.clear()
    yield
    ROWS.clear()
    HOARD.clear()


def data(size: int = SIZE, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=draw), torch.randint(3, (size,), generator=draw)


@dataclass
class Stand:
    """A visitor of one task, with or without reuse."""

    trap: Trap
    reuse: bool = True
    sizes: dict[str, int] = field(default_factory=lambda: {"a": SIZE, "b": SIZE})
    method: Method = field(
        default_factory=lambda: Method(
            local=LocalAlt, batch_size=BATCH, personal_epochs=EPOCHS, shared_epochs=2, shared_lr=0.1
        )
    )
    own: Personalization | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        devices = {name: {"train": data(size, seed)} for seed, (name, size) in enumerate(self.sizes.items())}
        metrics = {"zero": lambda predicted, targets: 0.0}
        task = Task(model=self.trap.model, loss=self.trap.loss, metrics=metrics, devices=devices)
        own = self.own or Personalization(Partition(task.model(), **self.trap.partition))
        finetuning = Finetuning(batch_size=self.method.batch_size, epochs=EPOCHS)
        role = Role(personalization=own, method=self.method, finetuning=finetuning)
        self.store = MemoryStore() if self.folder is None else DiskStore(self.folder / "personal")
        computing = Computing(reuse=self.reuse if self.folder is None else "disk")
        self.visitor = Visitor(task, dict.fromkeys(Stage, role), self.store, seed=1, computing=computing)
        self.parts = own.partition.of(build_model(task, own, seed=1))
        sent = sent_by(self.method.local, own.partition, self.parts.shared)
        self.shared = {**self.parts.shared, **{name: each.tensor for name, each in sent.items()}}
        frozen = digest_of(self.parts.frozen)
        self.start = Start(digest="start", personal=cloned(self.parts.personal), frozen=frozen)

    def visit(self, work: Any = FINETUNE, *, device: str = "a", number: int = 0) -> list[Tensor]:
        """Visit a device and return its losses, its new personal part and its change."""
        order = Order(
            device=device,
            stage=Stage.PERSONALIZED,
            round=number,
            work=work,
            shared=cloned(self.shared),
            start=self.start,
        )
        reply = self.visitor(order)
        assert isinstance(reply, Reply), reply
        self.store.commit(order.label, [device], [device])
        measures = [torch.tensor(value or 0, dtype=torch.double) for value in reply.metrics["train"].values()]
        personal = self.store.load(device) or {}
        return [*measures, *(personal[name] for name in sorted(personal)), *(reply.change or {}).values()]

    def rows(self, work: Any = FINETUNE, *, device: str = "a", number: int = 0) -> int:
        """Visit a device and return how many rows the stem has computed."""
        ROWS.clear()
        self.visit(work, device=device, number=number)
        return sum(ROWS)


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


@pytest.mark.parametrize("name", TRAPS)
def test_reuse_changes_no_bit_and_applies_where_it_can(name: str) -> None:
    computed: dict[bool, int] = {}
    for work in (FINETUNE, UPDATE):
        found: dict[bool, list[Tensor]] = {}
        for reuse in (True, False):
            HOARD.clear()
            stand = Stand(TRAPS[name], reuse=reuse)
            found[reuse] = stand.visit(work, device="a")
            ROWS.clear()
            found[reuse] += stand.visit(work, device="b")
            computed.setdefault(reuse, sum(ROWS))
        assert same(found[True], found[False])

    # In fine-tuning, whose rows were counted first.
    if TRAPS[name].applies:
        assert computed[True] <= computed[False] - (EPOCHS - 1) * SIZE
    elif TRAPS[name].applies is False:
        assert computed[True] >= computed[False]


class Deep(Net):
    """A stem, a middle layer and a head; also a dropout that is off."""

    def __init__(self) -> None:
        super().__init__(lambda net, x: torch.relu(net.middle(torch.relu(x))), middle=nn.Linear(16, 16))


FROZEN = Trap(Deep, partition={"personal": "head.*", "frozen": "stem.*"})


@pytest.mark.parametrize(
    "work", [FINETUNE, UPDATE, Update(personal=Pace(lr=0.1, epochs=1), shared=Pace(lr=0.1, epochs=1))]
)
def test_the_rows_of_a_frozen_layer_are_kept_for_later_rounds(work: Finetune | Update) -> None:
    on, off = Stand(FROZEN), Stand(FROZEN, reuse=False)
    first = on.visit(work, number=0)
    on.rows(work, device="b", number=0)

    assert on.rows(work, device="a", number=1) == 0
    assert same(first, off.visit(work, number=0))
    assert same(on.visit(work, number=2), [off.visit(work, number=1), off.visit(work, number=2)][1])


class Nested(nn.Module):
    """A frozen stem and a shared layer in one module, which as a whole does not move while the head does."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(Counted(6, 16), nn.ReLU(), Counted(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.backbone(inputs))


def test_a_frozen_layer_inside_a_still_module_is_kept_for_later_rounds() -> None:
    trap = Trap(Nested, partition={"personal": "head.*", "frozen": "backbone.0.*"})
    on, off = Stand(trap), Stand(trap, reuse=False)

    assert same(on.visit(UPDATE), off.visit(UPDATE))
    # The second layer: once while the head moves, and in both passes over the shared part.
    assert on.rows(UPDATE, number=1) == SIZE + 2 * SIZE


def test_dropping_kept_rows_changes_no_bit() -> None:
    roomy, tight = Stand(FROZEN), Stand(FROZEN)
    tight.visitor._reuses._rows.max_bytes = 3000

    for number in range(3):
        for device in ("a", "b"):
            assert same(
                roomy.visit(UPDATE, device=device, number=number),
                tight.visit(UPDATE, device=device, number=number),
            )
    assert roomy.rows(UPDATE, number=3) == 0
    assert tight.rows(UPDATE, number=3) == SIZE


def test_rows_on_disk_are_read_by_another_process(tmp_path: Path) -> None:
    first = Stand(FROZEN, folder=tmp_path)
    expected = first.visit(UPDATE), first.visit(UPDATE, number=1)
    second, off = Stand(FROZEN, folder=tmp_path), Stand(FROZEN, reuse=False)
    second.visit(UPDATE, device="b")

    assert second.rows(UPDATE, number=2) == 0
    assert same(expected[0], off.visit(UPDATE))
    assert same(expected[1], off.visit(UPDATE, number=1))


def test_damaged_rows_on_disk_are_computed_anew(tmp_path: Path) -> None:
    first = Stand(FROZEN, folder=tmp_path)
    first.visit(UPDATE)
    (file,) = (tmp_path / "reuse").iterdir()
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(bytes(content))
    second = Stand(FROZEN, folder=tmp_path)
    second.visit(UPDATE, device="b")

    assert second.rows(UPDATE, number=1) == SIZE


def test_a_device_with_other_examples_than_before_is_computed_anew() -> None:
    stand, other = Stand(FROZEN), Stand(FROZEN, reuse=False)
    for each in (stand, other):
        each.visit(UPDATE)
        each.visitor.task.devices["a"]["train"][0].neg_()

    assert same(stand.visit(UPDATE), other.visit(UPDATE))


@pytest.mark.parametrize("size", [9, 10, 11, 18])
def test_batches_of_one_to_three_rows_differ_by_rounding_alone(size: int) -> None:
    trap = TRAPS["relu"]
    on, off = (Stand(trap, reuse=reuse, sizes={"a": SIZE, "b": size}) for reuse in (True, False))

    for with_reuse, without in zip(on.visit(device="b"), off.visit(device="b"), strict=True):
        assert torch.allclose(with_reuse, without, rtol=1e-5, atol=1e-8)
    # The rows of the small batch once more in every pass, and once to keep them, four at a time.
    last = size % BATCH
    assert on.rows(device="b") <= size - last + EPOCHS * last + 4 * last


@pytest.mark.parametrize("local", [LocalAlt, LocalSim, LocalScaffold, LocalSGD])
@pytest.mark.parametrize("personal", ["head.*", "stem.*", ()])
def test_every_method_has_the_same_bits_with_reuse(local: Any, personal: Any) -> None:
    trap = Trap(Deep, partition={"personal": personal, "frozen": "middle.*"})
    epochs = Pace(lr=0.1, epochs=2)
    method = Method(local=local, batch_size=BATCH, personal_epochs=2, shared_epochs=2, proximal=0.1)
    found = [
        [
            tensor
            for number in range(2)
            for tensor in Stand(trap, reuse=reuse, method=method).visit(
                Update(personal=epochs, shared=epochs), number=number
            )
        ]
        for reuse in (True, False)
    ]

    assert same(*found)


def test_full_personalization_with_a_frozen_stem_computes_it_once_in_a_run() -> None:
    method = Method(local=LocalMoreau, batch_size=BATCH, personal_steps=3, shared_epochs=1, stateful=False)
    work = Update(personal=Pace(lr=0.1, steps=3), shared=Pace(lr=0.1, epochs=1))
    on, off = (
        Stand(Trap(Deep), reuse=reuse, method=method, own=full(Deep(), frozen="stem.*"))
        for reuse in (True, False)
    )

    assert same(on.visit(work), off.visit(work))
    assert on.rows(work, number=1) == 0


def test_regularization_of_the_personal_part_leaves_reuse_on() -> None:
    partition = Partition(Net(), personal="head.*")
    own = Personalization(partition, regularization=Regularization(dropout=0.3, l2=0.1, l2_to="start"))
    on, off = (Stand(TRAPS["relu"], reuse=reuse, own=own) for reuse in (True, False))

    assert same(on.visit(), off.visit())
    assert on.rows() == SIZE


def test_little_before_the_cut_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    stand = Stand(TRAPS["relu"])
    stand.visit()

    assert stand.rows() == EPOCHS * SIZE


def test_one_pass_without_a_frozen_part_settles_nothing() -> None:
    once = Pace(lr=0.1, epochs=1)
    method = Method(local=LocalAlt, batch_size=BATCH)
    stand = Stand(TRAPS["relu"], method=method)
    stand.visit(Update(personal=once, shared=once))

    assert not stand.visitor._reuses._plans


def test_the_model_is_as_before_after_a_visit() -> None:
    stand = Stand(TRAPS["a residual"])
    stand.visit()
    (bench,) = stand.visitor._workbenches._kept.values()

    assert not any("forward" in vars(module) for module in bench.model.modules())


def test_a_run_has_the_same_files_with_reuse(tmp_path: Path) -> None:
    task = Task(
        model=Nested,
        loss=cross_entropy,
        metrics={"accuracy": lambda scores, labels: (scores.argmax(1) == labels).double().mean().item()},
        devices={f"d{n}": {"train": data(seed=n), "test": data(8, seed=9 + n)} for n in range(3)},
    )
    partition = Partition(Nested(), personal="head.*", frozen="backbone.0.*")
    method = Method(local=LocalAlt, batch_size=BATCH, personal_epochs=2)
    plan = Plan(
        personalize=Training(method=method, rounds=2, devices_per_round=2), finetune=Finetuning(epochs=2)
    )

    for reuse in (True, False, "disk"):
        pipeline(task, partition, plan, out=tmp_path / str(reuse), reuse=reuse)
    pipeline(task, partition, plan, out=tmp_path / "workers", reuse="disk", workers=2)

    expected = _contents(tmp_path / "False")
    assert expected == _contents(tmp_path / "True") == _contents(tmp_path / "disk")
    assert expected == _contents(tmp_path / "workers")
    assert not (tmp_path / "disk" / "reuse").exists()


def test_a_run_cannot_be_resumed_without_reuse(tmp_path: Path) -> None:
    task = Task(
        model=Net, loss=cross_entropy, metrics={"none": lambda p, t: 0.0}, devices={"a": {"train": data()}}
    )
    start = partial(run, task, Partition(Net(), personal="head.*"), out=tmp_path / "run", rounds=1)
    method = Method(local=LocalAlt)
    start(method)

    with pytest.raises(ConfigError, match="reuse"):
        start(method, resume=True, reuse=False)


def _contents(folder: Path) -> dict[str, bytes]:
    """Return the tensors and tables of a run."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.suffix in (".safetensors", ".parquet") or file.name == "summary.json"
    }


@dataclass(frozen=True)
class ChangedByData(LocalAlt):
    """An update of one's own: while v moves, u is changed by way of `data`, which torch does not count."""

    def __call__(self, model: Any, partition: Any, batches: Any, loss: Any) -> list[float]:
        partition.let_move(model, "personal")
        losses: list[float] = []
        for _, batch in zip(range(9), batches, strict=False):
            losses.append(loss(model, batch).item())
            for parameter in model.stem.parameters():
                parameter.data.mul_(0.9)
        return losses


def test_an_update_that_changes_a_layer_by_way_of_data_is_seen() -> None:
    method = Method(local=ChangedByData, batch_size=BATCH, personal_epochs=EPOCHS)
    trap = Trap(Deep, partition={"personal": "head.*"})
    on, off = (Stand(trap, reuse=reuse, method=method) for reuse in (True, False))

    assert same(on.visit(UPDATE), off.visit(UPDATE))


class Scaled(nn.Module):
    """A layer that divides by the largest value of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.layer(inputs)
        return outputs / outputs.abs().amax()


class OverBatch(nn.Module):
    """A model whose stem mixes the examples of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Scaled()
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.stem(inputs))


def test_a_layer_that_mixes_examples_is_seen_on_a_small_first_device() -> None:
    trap = Trap(OverBatch, partition={"personal": "head.*"})
    sizes = {"a": 5, "b": SIZE}
    on, off = (Stand(trap, reuse=reuse, sizes=sizes) for reuse in (True, False))

    assert same(on.visit(device="b"), off.visit(device="b"))


class Sharpened(nn.Module):
    """A frozen layer with a setting that is no part of its state or of its description."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 16)
        self.power = 1

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.layer(inputs)) ** self.power


class WithSetting(nn.Module):
    """A model with such a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle, self.head = Sharpened(), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.relu(self.middle(self.stem(inputs))))


@dataclass(frozen=True)
class SquareForTheHead(LocalAlt):
    """An update of one's own, with another setting of the frozen layer while the head moves."""

    def __call__(self, model: Any, partition: Any, batches: Any, loss: Any) -> list[float]:
        model.stem.power = 2
        losses = descend({"personal": self.personal}, model, partition, batches, loss)
        model.stem.power = 1
        return losses + descend({"shared": self.shared}, model, partition, batches, loss)


def test_rows_kept_with_another_setting_of_a_frozen_layer_are_not_taken() -> None:
    trap = Trap(WithSetting, partition={"personal": "head.*", "frozen": "stem.*"})
    method = Method(local=SquareForTheHead, batch_size=BATCH, personal_epochs=EPOCHS, shared_epochs=2)
    on, off = (Stand(trap, reuse=reuse, method=method) for reuse in (True, False))

    assert same(on.visit(UPDATE), off.visit(UPDATE))


def by_keyword(model: Any, batch: Any) -> Tensor:
    """Compute the loss with operations that are given their tensor by name."""
    outputs = model.head(torch.relu(input=model.stem(batch[0])))
    return nn.functional.cross_entropy(outputs, batch[1])


def test_operations_that_are_given_their_tensor_by_name_leave_reuse_on() -> None:
    trap = Trap(Deep, loss=by_keyword, partition={"personal": "head.*"})
    on, off = (Stand(trap, reuse=reuse) for reuse in (True, False))

    assert same(on.visit(), off.visit())
    assert on.rows(number=1) == SIZE
