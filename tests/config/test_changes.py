"""Changes of a config by dotted keys."""

import pytest

from partita.config.changes import dotted, parse_overrides, value_at, with_values
from partita.errors import ConfigError


def test_the_values_that_are_changed_stay_as_they_were() -> None:
    values = {"model": {"start_names": {"a": "b"}}}

    changed = with_values(values, {"model.start_names.c": "d"})

    assert changed == {"model": {"start_names": {"a": "b", "c": "d"}}}
    assert values == {"model": {"start_names": {"a": "b"}}}


def test_the_values_of_changes_stay_as_they_were() -> None:
    section = {"personal": "full"}

    changed = with_values({}, {"partition": section, "partition.dropout": 0.1})

    assert changed == {"partition": {"personal": "full", "dropout": 0.1}}
    assert section == {"personal": "full"}


def test_a_section_is_replaced_as_a_whole() -> None:
    values = {"partition": {"personal": "output", "dropout": 0.5}}

    assert with_values(values, {"partition": {"personal": "none"}}) == {"partition": {"personal": "none"}}


def test_none_removes_a_key() -> None:
    values = {"out": "here", "model": {"name": "resnet", "start_names": {}}}

    assert with_values(values, {"out": None, "model.start_names": None}) == {"model": {"name": "resnet"}}
    assert with_values({}, {"out": None}) == {}


def test_a_key_below_a_plain_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="`seed` must be a section, got 1."):
        with_values({"seed": 1}, {"seed.x": 2})


@pytest.mark.parametrize("key", ["", ".", "a.", "a b", "a = 1\nb"])
def test_a_malformed_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="A key must be like `section.key`, got"):
        with_values({}, {key: 2})


def test_nested_values_are_changes_that_merge() -> None:
    values = {"partition": {"personal": "output"}}
    settings = {"partition": {"proximal": 0.01}, "compare": {"settings": {"my.module:Own": {"seed": 2}}}}

    assert with_values(values, dotted(settings)) == {
        "partition": {"personal": "output", "proximal": 0.01},
        "compare": {"settings": {"my.module:Own": {"seed": 2}}},
    }


def test_values_are_found_by_dotted_key() -> None:
    values = {"seed": 1, "model": {"start_names": {"^a[.]": ""}}}

    assert value_at(values, 'model.start_names."^a[.]"') == ""
    assert value_at(values, "seed.x") is None
    assert value_at(values, "finetune.epochs") is None


def test_overrides_are_toml_values_or_else_strings() -> None:
    overrides = ["seed=2", "a.b=text", "a.c=", 'a.d=["x"]', "a.e=true", "a.f=1\nb = 2", "model.name=0x"]

    assert parse_overrides(overrides) == {
        "seed": 2,
        "a.b": "text",
        "a.c": "",
        "a.d": ["x"],
        "a.e": True,
        "a.f": "1\nb = 2",
        "model.name": "0x",
    }
