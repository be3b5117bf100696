"""What computing only once saves: fine-tuning the output layer of a ResNet-18, and FedRep on the same.

    python benchmarks/reuse.py

The model is `partita.models.resnet.ResNet` for 28x28 images; a device has 100 of them, in batches of 32.
Visits take turns, on one thread, and the minimum counts; what a stage settles once is not in it.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from partita.data.examples import Shuffled, TensorExamples
from partita.device.roles import Role
from partita.device.settings import Computing
from partita.device.store import MemoryStore
from partita.device.visit import Visitor
from partita.methods.fedalt import LocalAlt
from partita.methods.method import Finetuning, Method
from partita.models.parts import named_partition
from partita.models.resnet import ResNet
from partita.params import cloned, digest_of
from partita.partition import Part
from partita.protocol import Finetune, Order, Pace, Stage, Start, Update
from partita.tasks.build import build_model, one_thread
from partita.tasks.task import Task
from row import Row

EXAMPLES = 100
BATCH = 32
EPOCHS = 5
REPEATS = 5


def rows() -> Iterator[Row]:
    """Yield the three rows of the benchmark."""
    finetune = Finetune(personal=Pace(lr=0.01, epochs=EPOCHS))
    fedrep = Update(personal=Pace(lr=0.01, epochs=10), shared=Pace(lr=0.01, epochs=1))
    sides: dict[str, Callable[[], None]] = {
        "once": _visits(finetune, reuse=True),
        "recomputed": _visits(finetune, reuse=False),
        "backpropagated": _backpropagation(),
        "FedRep once": _visits(fedrep, reuse=True),
        "FedRep recomputed": _visits(fedrep, reuse=False),
    }
    seconds = _minimum(sides)
    work = f"ResNet-18 28x28, output part, {EPOCHS} epochs of fine-tuning"
    for against, other, target in (
        ("frozen but recomputed", "recomputed", 4.5),
        ("full backpropagation", "backpropagated", 12.0),
    ):
        yield Row(
            workload=work,
            against=against,
            goal="faster",
            target=target,
            ours=seconds["once"],
            other=seconds[other],
            flops=necessary_flops(EPOCHS),
        )
    yield Row(
        workload="ResNet-18 28x28, FedRep, 10 epochs on the head",
        against="reuse=false",
        goal="faster",
        target=2.7,
        ours=seconds["FedRep once"],
        other=seconds["FedRep recomputed"],
        flops=necessary_flops(10, shared_epochs=1),
    )


def necessary_flops(epochs: int, *, shared_epochs: int = 0) -> float:
    """Return the operations that a visit cannot do without: what precedes the output layer is computed once.

    Args:
        epochs: passes over the examples in which the output layer moves alone.
        shared_epochs: passes after them, in which everything else moves.
    """
    with torch.device("meta"):
        model = ResNet(depth=18)
        batch = torch.empty(EXAMPLES, 1, 28, 28), torch.empty(EXAMPLES, dtype=torch.long)
        features = torch.empty(EXAMPLES, model.fc.in_features)
    partition = named_partition(ResNet(depth=18), "output").partition
    forward = _counted(lambda: model(batch[0]))
    output = _counted(lambda: model.fc(features))
    steps: dict[Part, float] = {}
    for part in ("personal", "shared"):
        partition.let_move(model, part)
        steps[part] = _counted(lambda: _loss(model, batch).backward())
    before = forward - output
    return before + epochs * (steps["personal"] - before) + shared_epochs * steps["shared"]


def _counted(work: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def _minimum(sides: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Return the processor time of each side, the minimum of several turns after one that does not count."""
    best = dict.fromkeys(sides, float("inf"))
    with one_thread():
        for turn in range(REPEATS + 1):
            for name, run in sides.items():
                begin = time.process_time()
                run()
                if turn:
                    best[name] = min(best[name], time.process_time() - begin)
    return best


def _data() -> TensorExamples:
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(EXAMPLES, 1, 28, 28, generator=draw)
    return TensorExamples((images, torch.randint(62, (EXAMPLES,), generator=draw)))


def _loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def _visits(work: Finetune | Update, *, reuse: bool) -> Callable[[], None]:
    """Return a function that visits the device once."""
    task = Task(
        model=partial(ResNet, depth=18),
        loss=_loss,
        metrics={"none": lambda predicted, labels: 0.0},
        devices={"ann": {"train": _data()}},
    )
    own = named_partition(task.model(), "output")
    method = Method(local=LocalAlt, batch_size=BATCH, personal_epochs=10)
    role = Role(personalization=own, method=method, finetuning=Finetuning(batch_size=BATCH))
    visitor = Visitor(
        task, dict.fromkeys(Stage, role), MemoryStore(), seed=1, computing=Computing(reuse=reuse)
    )
    parts = own.partition.of(build_model(task, own, seed=1))
    start = Start(digest="start", personal=cloned(parts.personal), frozen=digest_of(parts.frozen))
    order = Order(
        device="ann", stage=Stage.FINETUNED, round=0, work=work, shared=cloned(parts.shared), start=start
    )
    return lambda: _checked(visitor(order))


def _checked(answer: object) -> None:
    assert type(answer).__name__ == "Reply", answer


def _backpropagation() -> Callable[[], None]:
    """Return a function that steps on the output layer alone, with gradients of everything."""
    model, examples = ResNet(depth=18), _data()

    def run() -> None:
        optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.01)
        batches = iter(Shuffled(examples, BATCH, torch.Generator().manual_seed(1)))
        for _ in range(EPOCHS * -(-EXAMPLES // BATCH)):
            model.zero_grad()
            _loss(model, next(batches)).backward()
            optimizer.step()

    return run


if __name__ == "__main__":
    for row in rows():
        print(f"{row.workload}, against {row.against}:")
        print(f"  {row.other:.2f} s / {row.ours:.2f} s = {row.figure:.2f}, target {row.target}")
