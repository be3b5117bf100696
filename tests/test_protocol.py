"""What server and device can say to each other, and what they cannot."""

import dataclasses
import hashlib
import json
import math

import pytest

from partita.protocol import Order, Pace, Reply, Stage, Update, derive_seed


def test_a_reply_has_no_field_for_the_personal_part() -> None:
    assert {field.name for field in dataclasses.fields(Reply)} == {"device", "weight", "change", "metrics"}


def test_an_order_has_the_fields_of_the_design() -> None:
    names = ["stage", "round", "device", "work", "shared", "start", "counted", "keep", "single"]

    assert [field.name for field in dataclasses.fields(Order)] == names


def test_seeds_depend_on_everything_they_are_for() -> None:
    seeds = {
        derive_seed(1, "personalized", 0, "a"),
        derive_seed(2, "personalized", 0, "a"),
        derive_seed(1, "finetuned", 0, "a"),
        derive_seed(1, "personalized", 1, "a"),
        derive_seed(1, "personalized", 0, "b"),
        derive_seed(1, "personalized", "0a"),
    }

    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("path", [(), (Stage.PERSONALIZED, 3, 'a "quoted" id'), ("\0é\n",), (2**70, -1)])
def test_a_seed_is_the_digest_of_its_path_as_json(path: tuple[str | int, ...]) -> None:
    digest = hashlib.sha256(json.dumps([7, *path]).encode()).hexdigest()

    assert derive_seed(7, *path) == int(digest[:16], 16) // 2


@pytest.mark.parametrize("lr", [-0.1, math.nan, math.inf])
def test_a_rate_must_be_finite_and_not_negative(lr: float) -> None:
    with pytest.raises(ValueError, match="finite number, 0 or above"):
        Pace(lr=lr)


def test_epochs_and_steps_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="not both"):
        Pace(lr=0.1, epochs=1, steps=3)
    with pytest.raises(ValueError, match="0 or above"):
        Pace(lr=0.1, epochs=-1)


def test_a_schedule_scales_both_rates_and_nothing_else() -> None:
    update = Update(personal=Pace(lr=0.4, epochs=2), shared=Pace(lr=0.2, steps=3))

    scaled = update.scaled(0.5)

    assert scaled == Update(personal=Pace(lr=0.2, epochs=2), shared=Pace(lr=0.1, steps=3))
