"""Sections that include the settings of other classes."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

import pytest

from partita.config.reference import field_docs
from partita.config.schema import Config, FinetuneConfig, PersonalizeConfig, PretrainConfig
from partita.config.sections import create, in_section, includes, settings_of
from partita.errors import ConfigError
from partita.methods.method import Finetuning, Method
from partita.training.plan import Training


@dataclass(frozen=True, kw_only=True)
class Walk:
    """A class with settings and an object."""

    guide: Callable[[], str]
    """An object, which is no setting."""
    steps: int = 3
    """Number of steps."""
    pace: float | None = None
    """Meters per second."""
    way: Literal["out", "back"] = "out"
    """Direction."""

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"`steps` must be 0 or above, got {self.steps}.")


@includes(Walk, without=["way"])
class WalkConfig:
    """A section that names the object."""

    guide: str = "nobody"
    """Name of the guide."""


def test_a_section_has_the_plain_settings_of_the_classes_it_includes() -> None:
    assert [entry.name for entry in fields(WalkConfig)] == ["guide", "steps", "pace"]
    assert WalkConfig() == WalkConfig(steps=3, pace=None, guide="nobody")
    assert field_docs(WalkConfig)["pace"] == "Meters per second."
    assert field_docs(WalkConfig)["guide"] == "Name of the guide."


def test_an_object_is_created_with_the_settings_of_its_section() -> None:
    walk = create(Walk, WalkConfig(steps=7), guide=str, way="back")

    assert walk == Walk(guide=str, steps=7, way="back")


def test_a_refused_value_names_the_section() -> None:
    with (
        pytest.raises(ConfigError, match=r"\[walk\] `steps` must be 0 or above, got -1."),
        in_section("walk"),
    ):
        create(Walk, WalkConfig(steps=-1), guide=str)


@pytest.mark.parametrize(
    ("owner", "section"),
    [
        (Training, PretrainConfig),
        (Training, PersonalizeConfig),
        (Method, PersonalizeConfig),
        (Finetuning, FinetuneConfig),
    ],
)
def test_every_setting_of_a_class_is_a_key_of_its_section(owner: type, section: type) -> None:
    keys = {entry.name: entry.default for entry in fields(section)}

    for name, (_, default) in settings_of(owner).items():
        assert keys[name] == default


def test_pretraining_has_no_settings_of_the_personal_part() -> None:
    assert not [entry.name for entry in fields(Config().pretrain) if entry.name.startswith("personal")]
