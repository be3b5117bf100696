"""Building a run from a config, and the messages about values that cannot be used."""

import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from partita import Adagrad, Adam, Averaging, Exponential, FedAdam, Linear, Yogi
from partita.config.building import build
from partita.config.changes import dotted, with_values
from partita.config.provenance import made_with
from partita.config.reading import config_of
from partita.config.schema import Config
from partita.errors import ConfigError
from partita.methods.fedavg import LocalSGD
from partita.params import to_bytes
from partita.protocol import Pace
from partita.tasks.build import build_model


def config(**sections: dict[str, Any]) -> Config:
    """The quickstart's task with five devices a round, and changes by section."""
    base = {"name": "test", "pretrain": {"devices_per_round": 5}, "personalize": {"devices_per_round": 5}}
    return config_of(with_values(base, dotted(sections)))


def test_every_value_reaches_its_object() -> None:
    settings = {
        "rounds": 7,
        "batch_size": 9,
        "shared_lr": 0.3,
        "personal_lr": 0.2,
        "shared_epochs": 2,
        "personal_steps": 4,
        "max_grad_norm": 0.5,
        "weights": "equal",
        "stateful": False,
        "momentum": 0.9,
        "weight_decay": 0.1,
        "schedule": "linear",
        "warmup": 0.25,
    }

    built = build(config(personalize=settings, finetune={"epochs": 3, "personal_lr": 0.7}), Path())

    training = built.plan.personalize
    assert training is not None
    update = training.method.update
    assert (training.rounds, training.devices_per_round, training.schedule) == (7, 5, Linear(warmup=0.25))
    assert (update.personal, update.shared) == (Pace(lr=0.2, steps=4), Pace(lr=0.3, epochs=2))
    method = training.method
    assert (method.batch_size, method.max_grad_norm, method.weights) == (9, 0.5, "equal")
    assert not training.method.stateful
    optimizer: Any = training.method.optimizer([])
    assert (optimizer.momentum, optimizer.weight_decay) == (0.9, 0.1)
    assert built.plan.finetune is not None
    assert built.plan.finetune.work.personal == Pace(lr=0.7, epochs=3)


@pytest.mark.parametrize(
    ("settings", "server"),
    [
        ({"server_lr": 0.5, "server_momentum": 0.9}, Averaging(lr=0.5, momentum=0.9)),
        ({"server_optimizer": "adam", "server_lr": 0.1}, Adam(lr=0.1)),
        (
            {"server_optimizer": "fedadam", "server_lr": 0.1},
            FedAdam(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3),
        ),
        ({"server_optimizer": "fedadagrad", "server_lr": 0.1}, Adagrad(lr=0.1)),
        ({"server_optimizer": "fedyogi", "server_lr": 0.1}, Yogi(lr=0.1)),
        (
            {"server_optimizer": "adam", "server_beta1": 0.5, "server_beta2": 0.9, "server_eps": 1},
            Adam(lr=1.0, beta1=0.5, beta2=0.9, eps=1),
        ),
        ({"server_optimizer": "partita:Yogi", "server_tau": 0.1}, Yogi(lr=1.0, tau=0.1)),
    ],
)
def test_server_optimizers_are_named(settings: dict, server: Any) -> None:
    built = build(config(pretrain=settings), Path())

    assert built.plan.pretrain is not None
    assert built.plan.pretrain.server == server
    assert built.plan.pretrain.method.local is LocalSGD


def test_schedules_and_optimizers_are_named() -> None:
    built = build(
        config(
            pretrain={"schedule": "exponential", "halve_every": 3, "optimizer": "adamw", "weight_decay": 0.2}
        ),
        Path(),
    )

    assert built.plan.pretrain is not None
    assert built.plan.pretrain.schedule == Exponential(halve_every=3)
    optimizer = built.plan.pretrain.method.optimizer(
        [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.1}]
    )
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["weight_decay"] == 0.2
    plain = build(config(pretrain={"optimizer": "adamw"}), Path()).plan.pretrain
    assert plain is not None
    made = plain.method.optimizer([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.1}])
    assert isinstance(made, torch.optim.AdamW)
    assert made.defaults["weight_decay"] == 0.0


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"pretrain": {"shared_lr": -1.0}},
            "[pretrain] `shared_lr` must be a finite number, 0 or above, got -1.0.",
        ),
        (
            {"personalize": {"personal_lr": float("nan")}},
            "[personalize] `personal_lr` must be a finite number",
        ),
        (
            {"pretrain": {"server_lr": float("nan")}},
            "[pretrain] Averaging: `server_lr` must be a finite number",
        ),
        ({"pretrain": {"rounds": -1}}, "[pretrain] `rounds` must be 0 or above, got -1."),
        ({"pretrain": {"devices_per_round": 15}}, "at most the number of devices, 14, got 15."),
        (
            {"pretrain": {"devices_per_round": 10, "over_select": 5}},
            "`pretrain.devices_per_round` + `over_select` must be at most the number of devices, 14, got 15.",
        ),
        ({"pretrain": {"over_select": -1}}, "[pretrain] `over_select` must be 0 or above, got -1."),
        ({"on_error": "ignore"}, "`on_error` must be 'stop' or 'skip', got 'ignore'."),
        ({"personalize": {"aggregation": "krum"}}, "`personalize.aggregation` must be 'mean' or"),
        ({"personalize": {"trim": 0.5}}, "[personalize] `trim` must be at least 0 and below 0.5, got 0.5."),
        ({"max_failed": 1.5}, "`max_failed` must be from 0 to 1, got 1.5."),
        ({"pretrain": {"devices_per_round": 0}}, "[pretrain] `devices_per_round` must be at least 1, got 0."),
        ({"pretrain": {"schedule": "liner"}}, "got 'liner'. Did you mean `linear`?"),
        (
            {"pretrain": {"server_optimizer": "lamb"}},
            "`pretrain.server_optimizer` must be one of fedavg, fedadam, fedadagrad, fedyogi, adam or an import "
            "path",
        ),
        (
            {"pretrain": {"server_optimizer": "adam", "server_beta3": 0.5}},
            "Known keys of Adam: server_lr, server_beta1, ",
        ),
        (
            {"pretrain": {"server_optimizer": "fedadam", "server_eps": 1e-8}},
            "Known keys of FedAdam: server_lr, ",
        ),
        (
            {"pretrain": {"server_optimizer": "adam", "server_eps": "small"}},
            "`pretrain.server_eps` must be a number, got 'small'.",
        ),
        (
            {"pretrain": {"server_optimizer": "builtins:dict"}},
            "[pretrain] `server_optimizer` = 'builtins:dict' must return an object with `init` and `step`, got {",
        ),
        ({"pretrain": {"optimizer": "sdg"}}, "Did you mean `sgd`?"),
        ({"pretrain": {"momentum": -0.5}}, "`momentum` must be a finite number"),
        ({"pretrain": {"optimizer": "adamw", "momentum": 0.9}}, "[pretrain] `optimizer` = 'adamw' with"),
        ({"pretrain": {"batch_size": 0}}, "[pretrain] `batch_size` must be at least 1"),
        ({"personalize": {"method": "fedlat"}}, "Did you mean `fedalt`?"),
        (
            {"personalize": {"method": "fedsim", "personal_epochs": 2}},
            "[personalize] A simultaneous update takes as many",
        ),
        (
            {"personalize": {"method": "no.such:thing"}},
            "`personalize.method` = 'no.such:thing' does not import: ModuleNotFoundError",
        ),
        ({"task": {"kind": "partita.tasks.digits:none"}}, "does not import: AttributeError"),
        ({"task": {"kind": "collections:UserList"}}, "must return a Task, got []"),
        ({"task": {"kind": "os:sep"}}, "[task] needs a function, got '/'."),
        (
            {"task": {"share": 0.2}},
            "Known keys of digits: kind, validation, test_share, metrics.",
        ),
        (
            {"task": {"test_share": 2}},
            "[task] digits: `test_share` must be between 0 and 1, got 2.",
        ),
        (
            {"model": {"name": "convnet", "widht": 3}},
            "Unknown key `model.widht`. Did you mean `model.width`? Known keys of ConvNet: name, start, "
            "start_names, classes, size, width.",
        ),
        (
            {"task": {"kind": "synthetic", "form": "mixture", "spred": 3}},
            "There is no key `spred`. Did you mean `spread`? The keys: form, devices, examples, dimension, "
            "distance, spread, seed, metrics, validation.",
        ),
        ({"task": {"kind": "image"}}, "[task] image needs a value for `data`."),
        ({"model": {"name": "collections:UserList"}}, "must return a module, got []"),
        ({"model": {"width": 3}}, "The keys width of [model] need `model.name`."),
        ({"model": {"start": "none.safetensors"}}, "`model.start` = 'none.safetensors' is not in `"),
        (
            {"partition": {"personal": "middle"}},
            "ConvNet names no part 'middle'. Known: none, input, output, head, adapter, full",
        ),
        (
            {"partition": {"personal": ["haed.*"]}},
            "[partition] No tensor of ConvNet matches 'haed.*'. Near names: head.*",
        ),
        ({"partition": {"personal": "haed.*"}}, "[partition] No tensor of ConvNet matches 'haed.*'."),
        ({"partition": {"personal": ["*"]}}, "leaves no tensor of ConvNet shared"),
        (
            {"partition": {"shared": "body"}},
            "[partition] ConvNet names no part 'body'. Known: none, input, output",
        ),
        ({"partition": {"personal": "full", "proximal": -1.0}}, "`proximal` must be a finite number"),
        (
            {"partition": {"personal": "full", "shared": ["stem.*"]}},
            "`full` takes no `shared`: it shares all",
        ),
        ({"partition": {"personal": "full", "frozen": ["*"]}}, "`full` needs a parameter that is not frozen"),
        (
            {"partition": {"personal": "adapter", "frozen": ["[sbh]*.weight", "[sbh]*.bias"]}},
            "Pretraining would train nothing: every parameter is frozen. Set its rounds to 0.",
        ),
        ({"partition": {"dropout": 1.0}}, "[partition] `dropout` must be at least 0 and below 1, got 1.0."),
        (
            {"partition": {"personal": "adapter", "adapter_width": -1}},
            "[partition] The width of an adapter must be 0 (the paper's) or above, got -1.",
        ),
        (
            {"partition": {"personal": "adapter", "adapter_width": "wide"}},
            "`partition.adapter_width` must be an import path such as 'package.module:function', got 'wide'.",
        ),
        (
            {"partition": {"personal": "adapter", "adapter_width": "builtins:str"}},
            "An adapter's width must be a whole number, at least 1, got 'form-01' for device 'form-01'.",
        ),
        (
            {"evaluate": {"devices": "some"}},
            "`evaluate.devices` must be a whole number or 'all', got 'some'.",
        ),
        ({"evaluate": {"devices": 0}}, "[evaluate] `devices` must be 'all' or a number, at least 1, got 0."),
        ({"evaluate": {"devices": 15}}, "at most the number of devices, 14, got 15."),
        ({"evaluate": {"every": -1}}, "[evaluate] `every` must be 0 or above"),
        (
            {"finetune": {"baseline": True, "epochs": 0}},
            "`finetune.baseline` needs `finetune.epochs` of at least 1",
        ),
        ({"personalize": {"method": "fedsim", "personal_steps": 1}}, "takes as many steps"),
        ({"personalize": {"method": "partita:FedAlt"}}, "such as 'partita:LocalAlt', got 'partita:FedAlt'"),
        ({"personalize": {"method": "builtins:dict"}}, "it does not return a function"),
        ({"personalize": {"personal_epochs": 0, "shared_epochs": 0}}, "Nothing would be trained"),
        (
            {"pretrain": {"optimizer": "torch.optim:LBFGS"}},
            "`optimizer` = 'torch.optim:LBFGS' with {} cannot be used",
        ),
        ({"pretrain": {"optimizer": "os:sep"}}, "`optimizer` = 'os:sep' with {} cannot be used"),
        ({"model": {"name": "convnet", "width": -1}}, "[model] ConvNet failed: RuntimeError"),
        (
            {"model": {"name": "convnet", "width": "a"}},
            "`model.width` must be a whole number, got 'a'.",
        ),
        ({"model": {"name": "convnet", "classes": 3}}, "The task failed: IndexError"),
        ({"finetune": {"baseline_lr": -1.0}}, "`finetune.baseline_lr` must be a finite number, 0 or above"),
        (
            {"finetune": {"baseline_lr": float("inf"), "baseline": True}},
            "`finetune.baseline_lr` must be a finite number, 0 or above, got inf.",
        ),
        (
            {
                "pretrain": {"rounds": 0},
                "finetune": {"baseline": True},
                "partition": {"personal": "adapter", "shared": [], "frozen": "rest"},
            },
            "`full` needs a parameter that is not frozen",
        ),
        (
            {"finetune": {"personal_lr": -0.1, "baseline": True}, "partition": {"personal": "none"}},
            "[finetune] `personal_lr` must be a finite number, 0 or above, got -0.1.",
        ),
        (
            {"finetune": {"batch_size": 0, "baseline": True}, "partition": {"personal": "none"}},
            "[finetune] `batch_size` must be at least 1, got 0.",
        ),
        (
            {"finetune": {"personal_lr": -0.1}},
            "[finetune] `personal_lr` must be a finite number, 0 or above, got -0.1.",
        ),
    ],
)
def test_an_error_about_a_value_is_one_line_that_names_it(sections: dict, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(config(**sections), Path())

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_named_partition_can_have_a_frozen_part() -> None:
    built = build(config(partition={"personal": "output", "frozen": ["stem.*"]}), Path())

    assert built.personalization.partition.names("frozen") == ("stem.weight", "stem.bias")
    assert built.personalization.partition.names("personal") == ("head.weight", "head.bias")


def test_a_text_with_a_dot_or_a_star_is_one_pattern() -> None:
    for pattern in ("head.*", "head*"):
        built = build(config(partition={"personal": pattern, "frozen": "stem.bias"}), Path())

        assert built.personalization.partition.names("personal") == ("head.weight", "head.bias")
        assert built.personalization.partition.names("frozen") == ("stem.bias",)


def test_a_model_can_start_from_a_file(tmp_path: Path) -> None:
    plain = build(config(), Path())
    tensors = {name: tensor + 1 for name, tensor in build_model(plain.task, seed=1).state_dict().items()}
    (tmp_path / "start.safetensors").write_bytes(to_bytes(tensors))

    built = build(config(model={"start": "start.safetensors"}), tmp_path)

    assert torch.equal(build_model(built.task, seed=1).state_dict()["head.bias"], tensors["head.bias"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"nonsense", "is not a safetensors file"),
        (
            to_bytes({"x": torch.zeros(1)}),
            "`model.start`: No tensor of the file matches ConvNet: 0 loaded, 8 new",
        ),
    ],
)
def test_a_file_that_does_not_match_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "start.safetensors").write_bytes(content)

    with pytest.raises(ConfigError, match=words):
        build(config(model={"start": "start.safetensors"}), tmp_path)


def test_a_task_that_samples_its_data_depends_on_the_seed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drawn_task.py").write_text(
        "import torch\nfrom partita.tasks.digits import digits\nfrom partita import Task\n"
        "def make():\n    task = digits()\n    task.drawn = torch.rand(1).item()\n    return task\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    one, again, other = (
        build(replace(config(task={"kind": "drawn_task:make"}), seed=seed), Path()).task.drawn
        for seed in (1, 1, 2)
    )

    assert one == again != other


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('x')", "[task] make failed: KeyError: 'x' (bad_task.py, line 2)."),
        ("raise ValueError('one\\ntwo')", "[task] make failed: ValueError: one two (bad_task.py, line 2)."),
        ("open('/no/such/file')", "[task] make failed: FileNotFoundError: "),
        (
            "import partita; partita.Task(model=None, loss=None, metrics={}, devices={})",
            "[task] make: `metrics` must",
        ),
        (
            "import partita; partita.Task(model=None, loss=None, metrics={'m': len}, devices={1: {}})",
            "must be strings, got 1",
        ),
    ],
)
def test_an_exception_in_own_code_is_one_line_with_file_and_line_number(
    body: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "bad_task", raising=False)
    (tmp_path / "bad_task.py").write_text(f"def make():\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError) as caught:
        build(config(task={"kind": "bad_task:make"}), Path())

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_own_code_is_recorded_by_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_update.py").write_text("from partita import LocalAlt as Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    mine = config(personalize={"method": "my_own_update:Mine"})

    versions = made_with(mine, tmp_path / "runs")

    assert versions["my_own_update"].startswith("sha256 ")
    assert versions["torch"] == metadata.version("torch")
    assert versions["code"] == ".."
    assert "code" not in made_with(config(), tmp_path)


def test_a_metric_that_fails_is_found_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_metric.py").write_text(
        "from small import affine_task\n"
        "def metric(predictions, targets):\n    return predictions.no_such_method()\n"
        "def make():\n    return affine_task(metrics={'mine': metric})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match=r"The task failed: AttributeError: .*\(bad_metric.py, line 3\)"):
        build(config(task={"kind": "bad_metric:make"}, model={}, partition={"personal": "none"}), Path())


def test_a_server_optimizer_that_fails_is_found_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_server.py").write_text(
        "class Server:\n    def init(self, shared):\n        return {}\n"
        "    def step(self, shared, change, state):\n        return state['momentum']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match="`pretrain.server_optimizer` in a trial step failed: KeyError"):
        build(config(pretrain={"server_optimizer": "bad_server:Server"}), Path())
