"""The runs of a comparison."""

import math
from pathlib import Path
from typing import Any

import pytest

from compared import ROUNDS, values
from partita.config.reading import config_of
from partita.config.schema import Config
from partita.errors import ConfigError
from partita.methods import registry
from partita.studies.begin import methods_of
from partita.studies.cells import Cell, cells_of
from partita.studies.partitions import Compared, merge
from partita.studies.search import space_of
from partita.studies.variants import in_full
from small import Affine


def cells(*methods: str, **sections: Any) -> list[Cell]:
    whole = values(*methods, **sections)
    partitions = Compared(whole["compare"]["partitions"], own="output")
    return cells_of(whole, devices=6, partitions=partitions)


def configs(*methods: str, **sections: Any) -> dict[str, Config]:
    """The configs of the cells of the first seed, by what they are called without it."""
    return {cell.kind: cell.config(out=Path("x")) for cell in cells(*methods, **sections) if cell.seed == 3}


def test_each_seed_has_its_pretraining_then_the_reference_methods_then_the_listed_ones() -> None:
    names = [cell.name for cell in cells("fedalt", "finetune")]

    per_seed = ["start", "local", "fedavg", "fedalt-output", "finetune", "finetune-continued"]
    assert names == [f"{name}-{seed}" for seed in (3, 4) for name in per_seed]


def test_only_methods_without_a_personal_part_of_their_own_are_run_with_each_partition() -> None:
    found = configs("fedper", "ditto", "fedsim", compare={"partitions": ["output", "none", "output"]})

    assert list(found)[3:] == ["fedper", "ditto", "ditto-continued", "fedsim-output", "fedsim-none"]
    assert found["fedsim-none"].partition.personal == "none"
    assert found["ditto"].partition.personal == "full"


def test_methods_without_rounds_of_their_own_begin_from_the_reference_too() -> None:
    found = cells("finetune", "ditto", "ft_part", compare={"seeds": 1})

    assert [cell.kind for cell in found if cell.begins_continued] == ["finetune-continued", "ditto-continued"]
    titles = {name: method.title for name, method in methods_of(found).items()}
    assert titles["finetune-continued"] == "Finetune after continued FedAvg"
    assert titles["ditto"] == "Ditto"


def test_a_continued_variant_may_be_the_baseline_and_have_settings_of_its_own() -> None:
    settings = {"ditto": {"partition": {"proximal": 0.5}}, "ditto-continued": {"finetune": {"epochs": 7}}}

    found = configs("ditto", compare={"baseline": "ditto-continued", "settings": settings})

    assert [found[kind].partition.proximal for kind in ("ditto", "ditto-continued")] == [0.5, 0.5]
    assert [found[kind].finetune.epochs for kind in ("ditto", "ditto-continued")] == [1, 7]


def test_no_method_begins_from_a_reference_without_rounds() -> None:
    settings = {"fedavg": {"personalize": {"rounds": 0}}}

    assert "finetune-continued" not in configs("finetune", personalize={**ROUNDS, "rounds": 0})
    assert "finetune-continued" not in configs("finetune", compare={"settings": settings})
    with pytest.raises(ConfigError, match="`finetune-continued` needs rounds to begin from: set `personal"):
        cells("finetune-continued", personalize={**ROUNDS, "rounds": 0})


def test_a_method_listed_twice_is_run_once() -> None:
    assert [cell.kind for cell in cells("fedalt", "local", "fedalt", compare={"seeds": 1})] == [
        *("start", "local", "fedavg", "fedalt-output"),
    ]


def test_all_methods_but_those_from_scratch_begin_from_the_pretrained_model() -> None:
    begin = {
        cell.kind for cell in cells("fedalt", "fedbabu", "fedadam", "scaffold") if cell.begins_pretrained
    }

    assert begin == {"fedavg", "fedalt-output", "scaffold"}


def test_a_cell_that_begins_from_a_file_does_not_pretrain() -> None:
    cell = cells("fedalt", model={"start": "other", "start_names": {"a": "b"}})[3]

    config = cell.config(out=Path("there"), start=Path("w.safetensors"))

    assert (config.model.start, config.model.start_names) == ("w.safetensors", {})
    assert (config.pretrain.rounds, config.out, config.seed) == (0, "there", 3)


def test_local_training_makes_as_many_passes_as_the_whole_pipeline() -> None:
    # 4 rounds of 3 devices with one pass, and 2 of 3 with two, v's and u's, are 24 passes, 4 for each of 6 devices;
    # and 5 epochs of finetuning.
    rounds = {**ROUNDS, "rounds": 4, "shared_lr": 0.7, "momentum": 0.5}

    local = configs(pretrain=rounds, finetune={"epochs": 5})["local"]

    assert local.finetune.epochs == 9
    assert (local.finetune.personal_lr, local.finetune.momentum) == (0.7, 0.5)
    assert (local.pretrain.rounds, local.personalize.rounds) == (0, 0)


def test_methods_from_scratch_have_as_many_rounds_as_the_others_in_total() -> None:
    found = configs("fedbabu", "fedadam", pretrain={**ROUNDS, "rounds": 5, "server_lr": 0.9})

    assert (found["fedbabu"].pretrain.rounds, found["fedbabu"].personalize.rounds) == (0, 7)
    assert (found["fedadam"].pretrain.rounds, found["fedadam"].personalize.rounds) == (7, 0)
    # The server's learning rate of FedAvg is not Adam's.
    assert (found["fedadam"].pretrain.server_optimizer, found["fedadam"].pretrain.server_lr) == (
        "fedadam",
        0.01,
    )


def test_fedadam_trains_without_rounds_of_pretraining_too() -> None:
    assert configs("fedadam", pretrain={**ROUNDS, "rounds": 0})["fedadam"].pretrain.rounds == 2


def test_settings_of_one_method_apply_to_its_stateless_variant_too() -> None:
    settings = {"fedalt": {"personalize": {"shared_lr": 0.7}}, "ditto": {"partition": {"proximal": 0.5}}}

    found = configs("fedalt", "fedalt-stateless", "fedsim", "ditto", compare={"settings": settings})

    rates = {kind: config.personalize.shared_lr for kind, config in found.items()}
    assert rates["fedalt-output"] == rates["fedalt-stateless-output"] == 0.7
    assert rates["fedsim-output"] == 0.05
    assert (found["ditto"].partition.proximal, found["fedavg"].partition.proximal) == (0.5, 0.1)
    assert found["fedalt-stateless-output"].personalize.stateful is False
    assert found["fedalt-output"].personalize.stateful is True


def test_only_runs_that_begin_from_the_pretrained_model_choose_between_two_models() -> None:
    found = configs("fedalt", "fedbabu", evaluate={"choose": "validation"}, task={"validation": 0.3})

    assert {kind for kind, config in found.items() if config.evaluate.choose} == {"fedavg", "fedalt-output"}


def test_no_cell_runs_the_finetune_baseline_of_a_run() -> None:
    assert not any(
        config.finetune.baseline for config in configs("fedalt", finetune={"baseline": True}).values()
    )


def test_short_names_are_spelled_out() -> None:
    given = ["methods=fedalt,my.module:Up", "partitions=output", "tune=3", "compare.seeds=2", "seed=7"]

    assert in_full(given) == [
        'compare.methods=["fedalt", "my.module:Up"]',
        'compare.partitions=["output"]',
        *("compare.tune=3", "compare.seeds=2", "seed=7"),
    ]


@pytest.mark.parametrize(
    ("override", "near"),
    [("method=fedalt", "methods"), ("partition=output", "partitions"), ("seeed=2", "seed")],
)
def test_a_key_that_compare_does_not_have_gets_a_near_name_and_the_list(override: str, near: str) -> None:
    words = f"Unknown key `{override.partition('=')[0]}`. Did you mean `{near}`[?] Known keys of `partita compare`"
    with pytest.raises(ConfigError, match=f"{words} outside of sections: methods, partitions, seeds, "):
        in_full([override])


def test_a_section_may_be_given_as_a_whole() -> None:
    assert in_full(["partition={personal='none'}"]) == ["partition={personal='none'}"]


@pytest.mark.parametrize(
    ("methods", "compare", "words"),
    [
        (["fedalt"], {"seeds": 0}, "`seeds` must be at least 1, got 0."),
        (["fedalt"], {"tune": -1}, "`tune` must be 0 (no tuning) or above, got -1."),
        (["fedatl"], {}, "There is no method 'fedatl'. Known: apfl, ditto, fedadam, "),
        (["fedatl"], {}, "Did you mean `fedalt`?"),
        (["fedalt"], {"settings": {"dito": {}}}, "There is no method 'dito'."),
        (["fedalt"], {"settings": {"ditto": 3}}, "`compare.settings.ditto` must be a section, got 3."),
        (
            ["fedalt"],
            {"baseline": "ditto"},
            "`baseline` must be one of the methods compared, local, fedavg, fedalt",
        ),
        (
            ["pfedme-stateless"],
            {},
            "`pfedme` keeps no state between rounds: leave out `-stateless`.",
        ),
        (["ft_part-stateless"], {}, "`ft_part` keeps no state between rounds"),
        (["fedavg-stateless"], {}, "`fedavg` keeps no state between rounds"),
        (["fedalt-continued"], {}, "`fedalt` has no variant after the reference's rounds"),
    ],
)
def test_an_invalid_comparison_is_refused(methods: list[str], compare: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cells(*methods, compare=compare)

    assert words in str(caught.value)


def test_stateless_is_for_methods_that_keep_a_personal_part_between_rounds() -> None:
    keep = {name for name, method in registry.every().items() if method.is_stateful}

    assert keep == {"fedalt", "fedsim", "fedper", "fedrep", "lg_fedavg", "fedbn", "apfl", "fedrod"}


def test_the_values_of_every_cell_are_a_config() -> None:
    named = [name for name in registry.names() if name not in ("fedbn", "lg_fedavg")]

    for cell in cells(*named, "partita:LocalAlt", compare={"seeds": 1}):
        assert config_of(cell.values).personalize.method in (*registry.names(), "partita:LocalAlt")


@pytest.mark.parametrize("trials", [1, 6, 30])
def test_every_search_space_is_large_enough_for_the_trials(trials: int) -> None:
    named = [name for name in registry.names() if name not in ("fedbn", "lg_fedavg")]

    for kind, config in configs(*named).items():
        space = space_of(config, trials)
        assert kind == "start" or math.prod(map(len, space.values())) >= trials, kind


def test_the_search_space_has_the_learning_rates_and_proximal_terms_of_a_method() -> None:
    spaces = {
        kind: list(space_of(config))
        for kind, config in configs("ditto", "fedadam", "fedalt", "fedprox").items()
    }

    assert spaces["local"] == ["finetune.personal_lr"]
    assert spaces["fedavg"] == ["personalize.shared_lr"]
    assert spaces["fedadam"] == ["pretrain.server_lr"]
    assert spaces["ditto"] == ["finetune.personal_lr", "partition.proximal"]
    assert spaces["fedprox"] == ["personalize.shared_lr", "personalize.proximal"]
    assert spaces["fedalt-output"] == [
        *("personalize.shared_lr", "personalize.personal_lr", "finetune.personal_lr"),
    ]


def test_every_learning_rate_that_a_method_declares_is_one_it_trains_with() -> None:
    named = [name for name in registry.names() if name not in ("fedbn", "lg_fedavg")]

    for config in configs(*named).values():
        method = registry.find(config.personalize.method)
        if config.name != "start-3":
            assert list(space_of(config)) == [*method.rates, *method.search], config.name


@pytest.mark.parametrize("method", ["ditto", "local", "finetune", "fedadam", "pfedme"])
def test_the_method_of_a_config_changes_no_cell(method: str) -> None:
    methods = ("fedalt", "fedbabu", "fedadam")

    assert configs(*methods, personalize={"method": method}) == configs(*methods)


def test_patterns_are_compared_beside_names() -> None:
    found = configs("fedalt", compare={"partitions": ["output", "slope.* offset"]})

    assert list(found)[3:] == ["fedalt-output", "fedalt-slope.offset"]
    assert found["fedalt-slope.offset"].partition.personal == ["slope.*", "offset"]


def test_only_the_name_determines_whether_devices_keep_state() -> None:
    found = configs("fedalt", "fedalt-stateless", personalize={"stateful": False})

    assert found["fedalt-output"].personalize.stateful
    assert not found["fedalt-stateless-output"].personalize.stateful


def test_a_cell_is_named_after_the_config_that_it_runs() -> None:
    settings = {
        "fedalt": {"partition": {"personal": ["slope.*"]}, "personalize": {"stateful": False}},
        "fedavg": {"personalize": {"server_optimizer": "fedyogi"}},
        "ditto": {"personalize": {"stateful": False}},
    }

    found = cells("fedalt", "fedsim", "ditto", compare={"settings": settings})

    rows = [cell.row for cell in found[:6]]
    assert rows[3:] == [("fedalt-stateless", "slope.*"), ("fedsim", "output"), ("ditto", "")]
    titles = {method: own.title for method, own in methods_of(found).items()}
    assert titles["fedalt-stateless"] == "FedAlt, stateless"
    assert (titles[""], titles["fedavg"]) == ("FedAvg", "FedYogi, continued")


def test_partitions_of_the_same_tensors_are_one_cell_with_a_note() -> None:
    found = cells("fedalt", "fedsim", compare={"partitions": ["head", "output", "off*", "slope.*"]})

    kept, notes = merge(found, Affine())

    per_seed = [
        "start",
        "local",
        "fedavg",
        *(f"{m}-{p}" for m in ("fedalt", "fedsim") for p in ("head", "slope.")),
    ]
    assert [cell.name for cell in kept] == [f"{name}-{seed}" for seed in (3, 4) for name in per_seed]
    assert notes == [
        f"The personal part `{name}` selects the same tensors as `head`: both are the row `head`."
        for name in ("output", "off*")
    ]


@pytest.mark.parametrize(
    ("section", "key", "listed"),
    [("personalize", "method", "methods"), ("", "seed", "seeds")],
)
def test_the_settings_of_a_method_cannot_make_it_another_one(section: str, key: str, listed: str) -> None:
    settings = {section: {key: "fedsim"}} if section else {key: 7}
    dotted = f"{section}.{key}" if section else key

    with pytest.raises(ConfigError, match=f"cannot set `{dotted}`: use `compare.{listed}` for it."):
        cells("fedalt", compare={"settings": {"fedalt": settings}})
