"""The peak memory of a visit, measured, beside the prediction of `partita describe`.

    python benchmarks/visit_memory.py

The models are the paper's, and each visit has one step on each part with one example, in a process of its
own. A first visit has built the model, filled what libraries keep, and written a personal part; in the
second one u is received, v read, both trained and v written. The figure is the peak of the resident memory
above what there was before; `describe --json` predicts it, with the model, as `visit_bytes`.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path

from process_memory import begin_peak, memory
from row import Row

PAPER = Path(__file__).parents[1] / "experiments" / "paper"
MODELS = {
    "emnist": "ResNet-18, 28x28",
    "gldv2": "ResNet-18, 224x224",
    "stackoverflow": "transformer of 4 layers",
}
VISITS = (
    *(("fedalt", part) for part in ("input", "output", "adapter", "full")),
    ("fedsim", "full"),
)
"""The methods and personal parts of each model."""


def rows() -> Iterator[Row]:
    """Measure a visit for each model, personal part and method."""
    for config, model in MODELS.items():
        for method, part in VISITS:
            found = _measured_in_a_process(config, method, part)
            yield Row(
                workload=f"peak memory of a visit above the built model: {model}, {method}, {part}, batch 1",
                against="prediction of `describe`",
                goal="within",
                target=15,
                ours=found["measured"] / 1e6,
                other=found["predicted"] / 1e6,
                unit="MB",
            )


def _measured_in_a_process(config: str, method: str, part: str) -> dict[str, float]:
    # Larger tensors get pages of their own, which the system has back when they are freed.
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, config, method, part]
    environment = {**os.environ, **settings}
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def measure(config: str, method: str, part: str) -> dict[str, float]:
    """Return the peak memory of a visit above the built model, measured and predicted, in bytes."""
    from partita.config.building import build_plan
    from partita.config.partitions import build_partition
    from partita.config.placeholders import with_placeholders
    from partita.config.reading import read_config
    from partita.config.tasks import build_task
    from partita.device.roles import Role
    from partita.device.store import DiskStore
    from partita.device.visit import Visitor
    from partita.params import cloned, digest_of, size_in_bytes
    from partita.protocol import Order, Stage, Start
    from partita.studies.describe import describe
    from partita.tasks.build import build_model, one_thread

    chosen = [f"personalize.method={method}", f"partition.personal={part}", "personalize.batch_size=1"]
    read = read_config(PAPER / f"{config}.toml", chosen)
    predicted = describe(read, PAPER).partitions[part]["visit_bytes"]
    with tempfile.TemporaryDirectory() as folder, one_thread():
        task, _ = build_task(with_placeholders(read, PAPER, Path(folder))[0], PAPER)
        own = build_partition(read.partition, task.model())
        learning = build_plan(read).personalize
        assert learning is not None
        store = DiskStore(Path(folder) / "personal")
        role = Role(personalization=own, method=learning.method)
        visit = Visitor(task, {Stage.PERSONALIZED: role}, store, seed=1)
        parts = own.partition.of(build_model(task, own, seed=1))
        model = sum(map(size_in_bytes, (parts.shared, parts.personal, parts.frozen)))
        shared, frozen = cloned(parts.shared), digest_of(parts.frozen)
        start = Start(digest=digest_of(parts.personal), personal=cloned(parts.personal), frozen=frozen)
        del parts
        before = 0
        for round in range(2):
            _give_memory_back()
            before = memory("VmRSS")
            order = Order(
                stage=Stage.PERSONALIZED,
                round=round,
                device=task.devices.ids[0],
                work=learning.method.update,
                shared=cloned(shared),
                start=start,
            )
            visit(order)
            store.commit(order.label, [order.device], [order.device])
            del order
        return {"measured": memory("VmHWM") - before, "predicted": predicted - model}


def _give_memory_back() -> None:
    """Return freed memory to the system, and let the peak begin again from here."""
    gc.collect()
    CDLL("libc.so.6").malloc_trim(0)
    begin_peak()


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        for row in rows():
            print(row)
