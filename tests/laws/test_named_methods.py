"""Methods by name: each is an update with settings, which are in the run's config."""

import json
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from partita import FedAlt, FedSim, LocalScaffold, Partition, Plan, Result, Training, pipeline
from partita.cli import main
from partita.config.methods import replaced_settings
from partita.config.reading import config_of
from partita.config.reference import reference
from partita.errors import ConfigError
from partita.methods import registry
from partita.tasks.build import build_model
from small import Normed, built, normed_task, same_bits, task_of

NORMED = "small:normed_task"
HEAD = tuple(name for name in Normed().state_dict() if name.startswith("head."))
BODY = tuple(name for name in Normed().state_dict() if name.startswith("body."))
NORM = tuple(name for name in Normed().state_dict() if ".1." in name)


def run_built(method: str, task: str = "small:affine_task", **sections: Any) -> Result:
    made = built(method, task, **sections)
    return pipeline(made.task, made.personalization, made.plan)


def test_fedper_is_fedsim_on_the_output() -> None:
    named = run_built("fedper", NORMED)
    by_hand = run_built("fedsim", NORMED, partition={"personal": ["head.*"]})

    assert same_bits(named.shared, by_hand.shared)
    assert named.devices.equals(by_hand.devices)
    assert set(named.shared) == set(BODY)
    assert built("fedper", NORMED).personalization.partition.names("personal") == HEAD


def test_fedrep_moves_the_head_ten_times_and_then_the_body_once() -> None:
    # At the target 3 with rates of 1/2: v halves its way to 3 - u ten times, from 1: v = 3 - 2 / 2^10.
    # Then u sees the new v: u = 1/2 (3 - v) = 2^-10. With the body first, u would be 1.
    settings = {"rounds": 1, "devices_per_round": 1, "shared_lr": 0.5}

    result = run_built(
        "fedrep", "small:point_task", pretrain={"rounds": 0}, personalize=settings, finetune={"epochs": 0}
    )

    assert result.personal("d0")["v"].item() == 3 - 2**-9
    assert result.shared["u"].item() == 2**-10


def test_fedrep_is_fedalt_on_the_output_with_epochs_of_its_own() -> None:
    task = normed_task()
    method = FedAlt(shared_lr=0.1, personal_epochs=3, batch_size=3)
    training = Training(method=method, rounds=2, devices_per_round=2)

    named = run_built(
        "fedrep",
        NORMED,
        pretrain={"rounds": 0},
        personalize={"personal_epochs": 3},
        finetune={"epochs": 0},
    )
    by_hand = pipeline(task, Partition(Normed(), personal="head.*"), Plan(personalize=training))

    assert same_bits(named.shared, by_hand.shared)
    assert same_bits(named.personal("d0"), by_hand.personal("d0"))


def test_lg_fedavg_shares_the_output_alone() -> None:
    made = built("lg_fedavg", NORMED)

    result = run_built("lg_fedavg", NORMED)

    assert made.personalization.partition.names("shared") == HEAD
    assert made.personalization.partition.names("personal") == BODY
    assert set(result.shared) == set(HEAD)
    assert all(set(result.personal(device)) == set(BODY) for device in made.task.devices)
    by_hand = pipeline(
        normed_task(),
        Partition(Normed(), personal="body.*"),
        Plan(
            pretrain=made.plan.pretrain,
            personalize=Training(method=FedSim(shared_lr=0.1, batch_size=3), rounds=2, devices_per_round=2),
            finetune=made.plan.finetune,
        ),
    )
    assert same_bits(result.shared, by_hand.shared)
    assert result.devices.equals(by_hand.devices)


def test_fedbn_keeps_weights_and_statistics_of_normalization_layers_alone() -> None:
    made = built("fedbn", NORMED)

    result = run_built("fedbn", NORMED)

    assert made.personalization.partition.names("personal") == NORM
    assert {name.rpartition(".")[2] for name in NORM} == {
        *("weight", "bias", "running_mean", "running_var", "num_batches_tracked"),
    }
    assert set(result.shared) == {*BODY, *HEAD} - set(NORM)
    kept = [result.personal(device) for device in made.task.devices]
    for name in ("body.1.weight", "body.1.running_mean", "head.1.running_var"):
        assert all(not one[name].equal(other[name]) for one, other in pairwise(kept))


def test_fedbabus_head_stays_in_training_and_is_finetuned_after() -> None:
    pretrain = {"rounds": 0}
    trained = run_built("fedbabu", NORMED, pretrain=pretrain, finetune={"epochs": 0})
    finetuned = run_built("fedbabu", NORMED, pretrain=pretrain)

    start = build_model(normed_task(), seed=1).state_dict()
    head = {name: start[name] for name in HEAD}
    assert same_bits(trained.shared, finetuned.shared)
    assert any(not trained.shared[name].equal(start[name]) for name in BODY)
    for device in ("d0", "d1", "d3", "d4"):
        assert same_bits(trained.personal(device), head)
        assert not finetuned.personal(device)["head.2.weight"].equal(head["head.2.weight"])


def test_local_only_begins_every_device_with_the_same_untrained_model() -> None:
    result = run_built("local", NORMED)

    start = build_model(normed_task(), seed=1).state_dict()
    assert same_bits(result.shared, {f"shared.{name}": tensor for name, tensor in start.items()})
    one, other = (result.personal(device)["personal.head.2.weight"] for device in ("d0", "d1"))
    assert not one.equal(other)


def test_ft_part_finetunes_the_personal_part_of_the_config() -> None:
    result = run_built("ft_part", NORMED)
    by_hand = run_built("fedalt", NORMED, personalize={"rounds": 0})

    assert result.devices.equals(by_hand.devices)
    assert set(result.shared) == set(BODY)


OUTPUT_LAYER = ("head.weight", "head.bias")


@pytest.mark.parametrize("method", ["fedper", "fedrep", "fedbabu"])
def test_the_personal_head_of_a_text_model_is_its_output_layer(method: str) -> None:
    partition = built(method, "small:word_task").personalization.partition

    assert partition.names("personal") == OUTPUT_LAYER
    assert "embedding.weight" in partition.names("shared")
    assert partition.untied == {"head.weight": 12 * 8}


def test_lg_fedavg_shares_the_output_layer_of_a_text_model_alone() -> None:
    partition = built("lg_fedavg", "small:word_task").personalization.partition

    assert partition.names("shared") == OUTPUT_LAYER
    assert "embedding.weight" in partition.names("personal")


def test_a_tied_head_is_one_tensor_in_pretraining_and_each_devices_own_after_it() -> None:
    made = run_built("fedper", "small:word_task", personalize={"rounds": 0}, finetune={"epochs": 0})
    start = made.personal("d0")["head.weight"]
    result = run_built("fedper", "small:word_task", personalize={"rounds": 3, "devices_per_round": 3})

    assert start.equal(made.model("d0", "global").get_parameter("embedding.weight"))
    heads = [result.model(device).get_parameter("head.weight") for device in ("d0", "d1", "d2")]
    shared = result.shared["embedding.weight"]
    assert all(not one.equal(other) for one, other in pairwise([*heads, shared, start]))


STAGES = {
    "fedadam": "pretrained",
    **dict.fromkeys(
        ("fedavg", "fedprox", "scaffold", "fedala", "knn_per", "hetlora"), "pretrained personalized"
    ),
    **dict.fromkeys(("finetune", "ditto", "ft_part", "local"), "pretrained finetuned"),
    **dict.fromkeys(
        ("fedalt", "fedsim", "pfedme", "apfl", "fedrod", "fedper", "fedrep", "lg_fedavg", "fedbn", "fedbabu"),
        "pretrained personalized finetuned",
    ),
}


@pytest.mark.parametrize("method", STAGES)
def test_every_name_runs_and_has_its_stages(method: str) -> None:
    result = run_built(method, task_of(method))

    assert " ".join(result.summary["stages"]) == STAGES[method]


def test_every_name_is_in_the_help_and_in_these_tests() -> None:
    words = reference().partition("[personalize]")[2].partition("method = ")[0].replace("#", " ").split()

    assert set(STAGES) == set(registry.names())
    assert {word.strip(",") for word in words} >= set(registry.names())


# What makes each method the published one, from its paper.
MEANT = {
    "fedavg": {"partition.personal": "none"},
    "fedadam": {
        "partition.personal": "none",
        "pretrain.server_optimizer": "fedadam",
        "pretrain.server_lr": 0.01,
        "personalize.rounds": 0,
    },
    "fedprox": {"partition.personal": "none", "personalize.proximal": 0.01},
    "scaffold": {
        "partition.personal": "none",
        "personalize.weights": "equal",
        "personalize.optimizer": "sgd",
    },
    "local": {"partition.personal": "full", "partition.proximal": 0.0, "pretrain.rounds": 0},
    "finetune": {"partition.personal": "full", "partition.proximal": 0.0, "personalize.rounds": 0},
    "ditto": {"partition.personal": "full", "partition.proximal": 0.1, "personalize.rounds": 0},
    "pfedme": {"partition.personal": "full", "personalize.stateful": False, "personalize.personal_steps": 5},
    "ft_part": {"personalize.rounds": 0, "partition.personal": ["head.*"]},
    "fedper": {"partition.personal": "head", "partition.untie": True},
    "fedrep": {
        "partition.personal": "head",
        "partition.untie": True,
        "personalize.personal_epochs": 10,
        "personalize.shared_epochs": 1,
    },
    "lg_fedavg": {"partition.personal": "rest", "partition.shared": "head", "partition.untie": True},
    "fedbn": {"partition.personal": "norm"},
    "hetlora": {"partition.personal": "none", "partition.shared": "adapter"},
    "fedrod": {"partition.personal": "second_head"},
    "knn_per": {"partition.personal": "none", "personalize.personal_epochs": 0},
    "apfl": {"partition.personal": "full", "partition.proximal": 0.0},
    "fedala": {"partition.personal": "none", "personalize.personal_epochs": 0, "personalize.stateful": True},
    "fedbabu": {
        "partition.personal": "head",
        "partition.untie": True,
        "personalize.stateful": False,
        "personalize.personal_epochs": 0,
    },
}


@pytest.mark.parametrize("method", MEANT)
def test_a_name_puts_its_settings_into_the_config(method: str) -> None:
    config = config_of({"personalize": {"method": method}, "partition": {"personal": ["head.*"]}})

    for key, value in MEANT[method].items():
        section, _, leaf = key.partition(".")
        assert getattr(getattr(config, section), leaf) == value


def test_scaffold_replaces_the_optimizer_and_the_weights_of_the_config() -> None:
    # Its controls are mean gradients only where u moves by the rate times the gradient.
    given = {"optimizer": "adamw", "momentum": 0.9, "weights": "examples", "personal_epochs": 3}

    settings = config_of({"personalize": {"method": "scaffold", **given}}).personalize

    assert (settings.optimizer, settings.momentum, settings.weights) == ("sgd", 0.0, "equal")
    assert settings.personal_epochs == 0


def test_reading_a_config_does_not_change_its_values() -> None:
    values = {"personalize": {"method": "fedrep"}}

    config_of(values)

    assert values == {"personalize": {"method": "fedrep"}}


@pytest.mark.parametrize(
    ("method", "key", "value"),
    [("fedrep", "personal_epochs", 3), ("pfedme", "personal_steps", 7), ("fedprox", "proximal", 1.5)],
)
def test_an_explicit_value_overrides_a_suggested_one(method: str, key: str, value: Any) -> None:
    config = config_of({"personalize": {"method": method, key: value}})

    assert getattr(config.personalize, key) == value


def test_the_settings_that_a_method_replaces_are_named() -> None:
    def replaced(method: str, personal: Any, **personalize: Any) -> str:
        values = {"partition": {"personal": personal}, "personalize": {"method": method, **personalize}}
        return replaced_settings(values)

    assert replaced("fedper", ["stem.*"]) == (
        "The method `fedper` sets `partition.personal` = 'head' instead of ['stem.*']."
    )
    assert replaced("finetune", "full", rounds=5) == (
        "The method `finetune` sets `personalize.rounds` = 0 instead of 5."
    )
    assert replaced("fedper", "head") == replaced("ft_part", ["stem.*"]) == ""
    assert replaced_settings({"personalize": {"method": "fedper"}}) == replaced_settings({}) == ""


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"personalize": {"method": "fedper"}, "partition": 3}, "`partition` must be a section, got 3."),
        ({"personalize": 3}, "`personalize` must be a section, got 3."),
        ({"personalize": {"method": 3}}, "`personalize.method` must be a string, got 3."),
    ],
)
def test_a_value_in_place_of_a_section_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of(values)


def test_named_parts_can_be_shared_in_the_config() -> None:
    shared = built(
        "fedsim", NORMED, partition={"personal": "rest", "shared": "output"}
    ).personalization.partition
    frozen = built(
        "fedsim", NORMED, partition={"personal": ["head.2.*"], "frozen": "norm"}
    ).personalization.partition

    assert (shared.names("shared"), shared.names("personal")) == (HEAD, BODY)
    assert frozen.names("frozen") == NORM
    with pytest.raises(ConfigError, match="`offset` is selected as personal and as shared"):
        built("fedsim", partition={"personal": "output", "shared": "output"})


CONFIG = """
[task]
kind = "small:affine_task"
[partition]
personal = ["slope.*"]
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
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


def test_a_run_writes_the_settings_of_its_method(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["run", "mine.toml", "personalize.method=fedrep", "out=a"]) == 0

    assert "`partition.personal` = 'head' instead of ['slope.*']" in caplog.text
    written = tomllib.loads((here / "a/config.toml").read_text())
    assert written["partition"]["personal"] == "head"
    assert written["personalize"]["method"] == "fedrep"
    assert written["personalize"]["personal_epochs"] == 10

    # The record says all of it: run again, nothing is replaced and the same comes out.
    caplog.clear()
    assert main(["run", "a/config.toml", "out=b"]) == 0
    assert "instead of" not in caplog.text
    for name in ("devices.parquet", "summary.json", "shared/personalized.safetensors"):
        assert (here / "a" / name).read_bytes() == (here / "b" / name).read_bytes()


def test_a_model_that_names_no_head_is_told_how_to(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("small.Affine.parts", {"output": "offset"})

    assert main(["run", "mine.toml", "personalize.method=fedper"]) == 2

    assert capsys.readouterr().err.splitlines()[-1] == (
        "partita: [partition] Affine names no part 'head', its output layer: add it to `parts` of the model, "
        "such as parts = {'head': ['fc.*']}. Known: none, output, full, norm."
    )
    assert not (here / "runs").exists()


def test_scaffold_by_its_name_sends_controls_and_has_nothing_to_finetune(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.toml", "personalize.method=scaffold", "out=a"]) == 0

    assert "SCAFFOLD" in capsys.readouterr().out
    lines = [json.loads(line) for line in (here / "a/rounds.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["work"], line["bytes"]["down"]) for line in lines] == [
        ("pretrained", "update", 2 * 16),
        ("pretrained", "evaluate", 6 * 16),
        ("personalized", "update", 2 * 32),
        ("personalized", "evaluate", 6 * 16),
    ]
    assert list(json.loads((here / "a/summary.json").read_text())["stages"]) == ["pretrained", "personalized"]


class Carrying(LocalScaffold):
    """Would keep its controls under the model's own names."""

    @staticmethod
    def keeps(shared: Any, personal: Any) -> Any:
        return shared


def test_a_method_that_carries_a_name_of_the_model_is_a_one_line_error_before_training(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("small.Carrying", Carrying, raising=False)

    assert main(["run", "mine.toml", "personalize.method=small:Carrying"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "partita: `personalize.method`: A method cannot carry 'offset': the model has a tensor of that name."
    )
    assert not (here / "runs").exists()
