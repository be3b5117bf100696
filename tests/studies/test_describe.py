"""What partitions cost, against numbers worked by hand and against what a run really sends and stores."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.cli import main
from partita.config.reading import read_config
from partita.params import to_bytes
from partita.reuse import settling
from partita.studies import run as runner
from partita.studies.describe import describe

ROOT = Path(__file__).parents[2]

TASK = """
import torch
from torch import nn
from partita import Adapters, Task, accuracy

class Net(nn.Module):
    parts = {"output": ("head.*",), "head": ("head.*",), "adapter": Adapters(after=("body",))}
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int32))
    def forward(self, inputs):
        return self.head(torch.relu(self.body(inputs)))

class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

class Mixing(Net):
    class Body(nn.Linear):
        def forward(self, inputs):
            features = super().forward(inputs)
            return features - features.mean(dim=0)
    def __init__(self):
        super().__init__()
        self.body = Mixing.Body(3, 4)

class Padded(Net):
    # Sums over the steps of sequences, of which a batch has as many as its longest.
    def forward(self, inputs):
        longest = int((inputs != 0).any(dim=2).sum(dim=1).max())
        return self.head(torch.relu(self.body(inputs[:, :longest])).sum(dim=1))

def sequences(examples=9):
    inputs = torch.randn(examples, examples, 3)
    for number in range(examples):
        inputs[number, number + 1 :] = 0
    return inputs

def width(device):
    return {"a": 1, "b": 2, "c": 1}[device]

def boom(device):
    return {"a": 1}[device]

number = 7

def make(model="Net", examples=5):
    inputs = sequences(examples) if model == "Padded" else torch.randn(examples, 3)
    data = inputs, torch.randint(2, (examples,))
    return Task(
        model=globals()[model],
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        metrics={"accuracy": accuracy},
        devices={name: {"train": data, "test": data} for name in "abc"},
    )
"""

CONFIG = """
[task]
kind = "net_task:make"
[partition]
personal = "output"
[pretrain]
rounds = 1
devices_per_round = 2
[personalize]
rounds = 1
devices_per_round = 2
[finetune]
epochs = 1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "net_task", raising=False)
    (tmp_path / "net_task.py").write_text(TASK)
    (tmp_path / "net.toml").write_text(CONFIG)
    return tmp_path


def described(*overrides: str) -> dict:
    return dict(describe(read_config(Path("net.toml"), overrides), Path()).partitions)


def test_costs_by_hand(here: Path) -> None:
    output = described()["output"]

    # The body, 3 x 4 + 4 = 16 numbers, and an int32 that travels up as an int64.
    assert output["down_bytes"] == 16 * 4 + 4
    assert output["up_bytes"] == 16 * 4 + 8
    # What autograd keeps: the input (3 numbers), the hidden layer after ReLU (4), and for the cross-entropy
    # its log probabilities (2), the label (an int64) and a total weight (1).
    assert output["backprop_bytes"] == 4 * (3 + 4 + 2 + 1) + 8
    # 3 size(u) + 2 size(v), with 4 x 2 + 2 = 10 numbers in v.
    assert output["memory_bytes"] == 3 * (16 * 4 + 4) + 2 * 10 * 4 + output["backprop_bytes"]
    assert (output["personal"], output["shared"], output["frozen"]) == (10, 16, 0)


def test_changes_that_the_server_holds_at_once_are_counted(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    robust = ["personalize.aggregation='median'", "personalize.devices_per_round=2"]
    further = ["pretrain.over_select=1"]
    description = describe(read_config(Path("net.toml"), [*robust, *further]), here)

    # A change of the body, and in pretraining one of the whole model: 26 numbers and an int64.
    assert description.server == {"pretrain": 26 * 4 + 8, "personalize": 2 * (16 * 4 + 8)}
    assert describe(read_config(Path("net.toml"), []), here).server == {}
    assert main(["describe", "net.toml", *robust, *further]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "In `personalize`, the server holds changes of several devices at once: 144 B." in printed


def without_visit(costs: Mapping[str, Any]) -> dict[str, Any]:
    """The costs of a partition without those of a visit, which are only those of the config's own."""
    return {name: value for name, value in costs.items() if not name.startswith("visit")}


def test_the_configs_own_partition_has_the_peak_memory_of_a_visit_by_its_method(here: Path) -> None:
    alternating, at_once = (
        described("partition.personal=full", f"personalize.method={method}")
        for method in ("fedalt", "fedsim")
    )

    # Where both parts move at once there is a gradient of u, 26 values, beside that of v.
    assert at_once["full"]["visit_bytes"] - alternating["full"]["visit_bytes"] == 26 * 4
    assert at_once["full"]["visit_examples"] == 1
    assert "visit_bytes" not in at_once["none"]


def test_what_a_method_declares_is_sent_and_kept_as_a_run_does_it(here: Path) -> None:
    plain, none = (
        described("partition.personal=none")["none"],
        described("personalize.method=scaffold")["none"],
    )
    rounds = ["personalize.devices_per_round=3", "finetune.epochs=0"]

    assert main(["run", "net.toml", "personalize.method=scaffold", *rounds, "out=run"]) == 0

    # SCAFFOLD's control of the 26 parameters travels both ways and stays on each device.
    assert none["down_bytes"] - plain["down_bytes"] == none["up_bytes"] - plain["up_bytes"] == 26 * 4
    lines = [json.loads(line) for line in Path("run/rounds.jsonl").read_text().splitlines()]
    (sent,) = [line["bytes"] for line in lines if (line["stage"], line["work"]) == ("personalized", "update")]
    assert sent == {"down": 3 * none["down_bytes"], "up": 3 * none["up_bytes"]}
    assert sum(file.stat().st_size for file in Path("run/personal").iterdir()) == none["disk_bytes"]
    # Of the other partitions nothing is said that their method would not do.
    assert described("personalize.method=scaffold")["output"] == without_visit(described()["output"])
    assert described("personalize.method=scaffold", "personalize.rounds=0")["none"] == plain


def reused(model: str, *overrides: str, part: str = "personal") -> Mapping[str, Any]:
    given = [f"task.model={model}", "task.examples=9", "personalize.batch_size=8", *overrides]
    return described(*given)["output"]["reuse"][part]


def test_reuse_names_the_layer_and_the_bytes_that_are_kept(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settling, "MIN_OPERATIONS", 0)
    given = ["task.examples=9", "personalize.batch_size=8"]

    # An input of 3 values, by which the layer is known to be the same, and its output of 4.
    assert reused("Net") == {"begins": "head", "kept_bytes": 4 * (3 + 4)}
    assert "reason" in reused("Net", part="shared")
    assert main(["describe", "net.toml", *given]) == 0
    said = "output: in several passes over v, what precedes `head` is computed once, 28 B kept per example"
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("model", ["Mixing", "Padded"])
def test_reuse_is_not_promised_where_the_examples_of_a_batch_affect_each_other(
    here: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(settling, "MIN_OPERATIONS", 0)

    assert "reason" in reused(model)


def test_reuse_is_not_promised_where_no_device_has_enough_examples_to_try_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "MIN_OPERATIONS", 0)

    reason = "none of the first 20 devices has more than 4 training examples"
    assert reused("Net", "task.examples=4") == {"reason": reason}


def test_full_costs_five_models_and_the_same_buffers(here: Path) -> None:
    partitions = described()

    full, none = partitions["full"], partitions["none"]
    assert full["backprop_bytes"] == none["backprop_bytes"]
    assert full["memory_bytes"] == 5 * (26 * 4 + 4) + none["backprop_bytes"]
    assert none["memory_bytes"] == 3 * (26 * 4 + 4) + none["backprop_bytes"]
    assert none["disk_bytes"] == 0


def test_beside_a_personal_rest_the_other_partitions_are_described_all_the_same(here: Path) -> None:
    plain, by_name = described(), described("personalize.method=lg_fedavg")

    # The head of 4 * 2 + 2 is shared; the body of 3 * 4 + 4 is the rest.
    assert (by_name["rest"]["personal"], by_name["rest"]["shared"]) == (16, 10)
    assert {name: by_name[name] for name in plain} == {name: without_visit(plain[name]) for name in plain}


def test_a_frozen_part_is_in_memory_once_and_never_sent(here: Path) -> None:
    output = described("partition.frozen=['body.*']")["output"]

    assert output["frozen"] == 16
    assert output["up_bytes"] == 8
    assert output["memory_bytes"] == 3 * 4 + 2 * 40 + 64 + output["backprop_bytes"]


def test_traffic_and_disk_are_those_of_a_run(here: Path) -> None:
    config = read_config(Path("net.toml"), ["out=run"])
    output = described()["output"]

    runner.finish(runner.prepare(config, Path()))

    lines = [json.loads(line) for line in Path("run/rounds.jsonl").read_text().splitlines()]
    (update,) = [line for line in lines if line["stage"] == "personalized" and line["work"] == "update"]
    assert update["bytes"] == {"down": 2 * output["down_bytes"], "up": 2 * output["up_bytes"]}
    files = list(Path("run/personal").iterdir())
    assert len(files) == 3
    assert sum(file.stat().st_size for file in files) == output["disk_bytes"]


def test_sizes_by_device_are_told_apart(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setting = "partition.adapter_width=net_task:width"
    adapter = described(setting, "partition.personal=adapter")["adapter"]

    # An adapter of width w after 4 numbers: 4w + w + 4w + 4.
    assert [(size["devices"], size["personal"]) for size in adapter["sizes"]] == [(2, 13), (1, 22)]
    assert adapter["personal"] == 22
    assert adapter["disk_bytes"] == sum(size["disk_bytes"] for size in adapter["sizes"])
    assert adapter["memory_bytes"] == max(size["memory_bytes"] for size in adapter["sizes"])
    assert main(["describe", "net.toml", setting, "partition.personal=adapter"]) == 0
    assert "13-22" in capsys.readouterr().out
    assert main(["run", "net.toml", setting, "partition.personal=adapter", "out=run"]) == 0
    assert "sha256" in Path("run/config.toml").read_text().partition("[made_with]")[2]
    stored = sum(file.stat().st_size for file in Path("run/personal").iterdir())
    assert stored == adapter["disk_bytes"]


def test_a_loss_that_fails_on_one_example_leaves_memory_open(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = described("task.model=Normed", "partition.personal=none")["none"]

    assert none["memory_bytes"] is None
    assert "Expected more than 1 value per channel" in none["reason"]
    assert main(["describe", "net.toml", "task.model=Normed", "partition.personal=none"]) == 0
    assert "Expected more than 1 value per channel" in " ".join(capsys.readouterr().out.split())


def test_no_examples_leave_memory_open(here: Path) -> None:
    none = described("task.examples=0")["none"]

    assert none["memory_bytes"] is None
    assert none["reason"] == "CannotDo: No device has a training example."
    assert none["shared"] == 26


def test_the_file_to_begin_from_is_accounted_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = {"backbone.body.weight": torch.ones(4, 3), "head.weight": torch.zeros(7, 4), "x": torch.zeros(1)}
    Path("start.safetensors").write_bytes(to_bytes(file))
    names = "model.start_names={'^backbone[.]' = ''}"

    assert main(["describe", "net.toml", "model.start=start.safetensors", names, "--json"]) == 0
    start = json.loads(capsys.readouterr().out)["start"]
    assert main(["run", "net.toml", "model.start=start.safetensors", names]) == 0
    told = capsys.readouterr().err
    assert main(["run", "--resume", "runs/net-1"]) == 0

    assert start["loaded"] == {"body.weight": "backbone.body.weight"}
    assert start["new"]["head.weight"] == "7x4 in the file, 2x4 in the model"
    assert start["unused"]["x"] == "no such name in the model"
    assert "4 new (`calls`, `body.bias`, `head.bias`: not in the file" in told.replace("\n", "")


def test_a_run_goes_on_only_from_the_file_that_it_began_from(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = {"body.weight": torch.ones(4, 3)}
    Path("start.safetensors").write_bytes(to_bytes(file))
    assert main(["run", "net.toml", "model.start=start.safetensors", "out=run"]) == 0
    Path("start.safetensors").write_bytes(to_bytes({"body.weight": torch.zeros(4, 3)}))
    capsys.readouterr()

    assert main(["run", "--resume", "run"]) == 2

    assert "has other content than when the run started" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["partition.adapter_width=net_task:boom"],
            "`partition.adapter_width` failed: KeyError: 'b' (net_task.py",
        ),
        (["partition.adapter_width=net_task:Net"], "`partition.adapter_width`"),
        (
            ["partition.adapter_width=net_task:number"],
            "`adapter_width` must be a function of a device's id, got 7.",
        ),
        (["partition.adapter_width=no_module:f", "partition.personal=['head.*']"], "does not import"),
        (
            ["model.start_names={'(' = ''}"],
            "`model.start_names` needs a file with initial weights, `model.start`.",
        ),
    ],
)
@pytest.mark.parametrize("command", ["run", "describe"])
def test_what_is_wrong_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, overrides: list[str], words: str
) -> None:
    assert main([command, "net.toml", "partition.personal=adapter", *overrides]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not Path("runs").exists()


def test_a_cause_is_told_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "net.toml", "task.examples=0"]) == 0

    out = capsys.readouterr().out
    assert out.count("No device has a training example") == 1
    names = "none, output, head, adapter, full"
    assert f"Memory is not known for {names}: CannotDo: No device has a training example." in out


def test_a_table_shows_all_of_a_long_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pattern = "head.[" + "w" * 60 + "b]*"

    assert (
        main(["describe", "net.toml", f"partition.personal=['{pattern}']", "partition.frozen=['body.*']"])
        == 0
    )

    assert pattern in capsys.readouterr().out


PAPER = {
    # 3 size(u) + 2 size(v) by hand, in bytes, for the paper's three partitions and its two ends.
    "emnist": {
        "none": 4 * 3 * 11_199_486,
        "input": 4 * (3 * 11_198_782 + 2 * 704),
        "output": 4 * (3 * 11_167_680 + 2 * 31_806),
        "head": 4 * (3 * 11_167_680 + 2 * 31_806),
        "adapter": 4 * (3 * 11_191_678 + 2 * 1_408_128),
        "full": 4 * 5 * 11_199_486,
    },
    "gldv2": {
        "none": 4 * 3 * 12_216_876,
        "input": 4 * (3 * 12_207_340 + 2 * 9_536),
        "output": 4 * (3 * 11_176_512 + 2 * 1_040_364),
        "head": 4 * (3 * 11_176_512 + 2 * 1_040_364),
        "adapter": 4 * (3 * 12_209_068 + 2 * 1_408_128),
        "full": 4 * 5 * 12_216_876,
    },
    "stackoverflow": {
        "none": 4 * 3 * 5_731_092,
        "input": 4 * (3 * 4_942_356 + 2 * 788_736),
        "output": 4 * (3 * 4_942_356 + 2 * 788_736),
        # The embedding stays shared; the copy for the head, 256 x 10,004, and the bias are personal.
        "head": 4 * (3 * (5_731_092 - 10_004) + 2 * 257 * 10_004),
        "adapter": 4 * (3 * 5_726_996 + 2 * 71_808),
        "full": 4 * 5 * 5_731_092,
    },
    "librispeech": {
        "none": 4 * 3 * 13_386_632,
        "input": 4 * (3 * 12_571_784 + 2 * 814_848),
        "output": 4 * (3 * 12_796_424 + 2 * 590_208),
        "head": 4 * (3 * (13_386_632 - 385 * 5_000) + 2 * 385 * 5_000),
        "adapter": 4 * (3 * 13_386_632 + 2 * 152_256),
        "full": 4 * 5 * 13_386_632,
    },
}
DEVICES = {"emnist": 1114, "gldv2": 823, "stackoverflow": 1000, "librispeech": 902}
MEMORY = {"none": 71, "input": 67, "output": 67, "adapter": 72, "full": 116}
"""The paper's memory for StackOverflow, in MB."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_the_papers_configs_are_described(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = ROOT / "experiments/paper" / f"{name}.toml"

    monkeypatch.delenv("PARTITA_DATA", raising=False)

    description = describe(read_config(path), path.parent)

    assert description.notes[-1] == f"`{name}.parquet` is missing: a placeholder is used."
    assert description.devices == DEVICES[name]
    formula = {
        partition: costs["memory_bytes"] - costs["backprop_bytes"]
        for partition, costs in description.partitions.items()
    }
    assert formula == PAPER[name]
    if name == "stackoverflow":
        for partition, memory in MEMORY.items():
            assert description.partitions[partition]["memory_bytes"] / 1e6 == pytest.approx(memory, abs=1)


@pytest.mark.slow
def test_a_tied_head_is_described_with_what_its_copy_costs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "words.toml").write_text(CONFIG.replace("net_task:make", "small:word_task"))

    assert main(["describe", "words.toml"]) == 0
    # The embedding of 12 words in 8 dimensions.
    note = "`head.weight` is tied in the model and gets a copy of its own, 96 more parameters on each device"
    assert f"head: {note}" in capsys.readouterr().out
    assert main(["describe", "words.toml", "personalize.method=lg_fedavg"]) == 0
    assert f"rest: {note}" in capsys.readouterr().out
    assert main(["describe", "words.toml", "partition.personal=head"]) == 2
    assert "give each its own copy with `untie=true`" in capsys.readouterr().err
    assert main(["describe", "words.toml", "partition.personal=head", "partition.untie=true", "--json"]) == 0
    head = json.loads(capsys.readouterr().out)["partitions"]["head"]
    assert (head["untied"], head["personal"]) == ({"head.weight": 96}, 96 + 12)


def test_a_frozen_part_stays_frozen_in_every_other_partition(here: Path) -> None:
    by_name = described("partition.frozen=['body.*']")
    rest = described(
        "partition.personal=['head.bias']",
        "partition.shared=['head.weight', 'calls']",
        "partition.frozen=rest",
    )

    for name in ("none", "output", "head", "full"):
        assert by_name[name]["frozen"] == rest[name]["frozen"] == 16
    # A device's copy of the head, and the buffer of its copy of the model.
    assert (by_name["full"]["personal"], by_name["full"]["shared"]) == (10, 10)
    assert by_name["full"]["memory_bytes"] == 5 * (40 + 4) + 64 + by_name["full"]["backprop_bytes"]
