"""A method's settings."""

import math

import pytest

from partita import FedAlt, FedAvg, FedSim, Finetuning
from partita.protocol import Pace


def test_the_personal_rate_follows_the_shared_one_unless_given() -> None:
    assert FedAlt(shared_lr=0.1).update.personal.lr == 0.1
    assert FedAlt(shared_lr=0.1, personal_lr=0.0).update.personal.lr == 0.0


def test_steps_replace_epochs() -> None:
    update = FedAlt(shared_lr=0.1, personal_steps=3).update

    assert update.personal == Pace(lr=0.1, steps=3)
    assert update.shared == Pace(lr=0.1, epochs=1)


def test_fedavg_takes_no_personal_steps() -> None:
    assert FedAvg(shared_lr=0.1).update.personal.epochs == 0


def test_fedsim_with_unequal_epochs_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="as many steps"):
        FedSim(shared_lr=0.1, personal_epochs=2)


@pytest.mark.parametrize("lr", [-1.0, math.nan])
def test_a_bad_learning_rate_is_named(lr: float) -> None:
    with pytest.raises(ValueError, match="`shared_lr` must be"):
        FedAlt(shared_lr=lr)
    with pytest.raises(ValueError, match="`personal_lr` must be"):
        FedAlt(shared_lr=0.1, personal_lr=lr)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"max_grad_norm": -1.0}, "`max_grad_norm` must be"),
        ({"max_grad_norm": math.nan}, "`max_grad_norm` must be"),
    ],
)
def test_settings_of_steps_are_checked(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Finetuning(**settings)
    with pytest.raises(ValueError, match=words):
        FedAlt(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"proximal": -1.0}, "`proximal` must be a finite number, 0 or above, got -1.0."),
        ({"weights": "all"}, "`weights` must be 'examples' or 'equal', got 'all'."),
        ({"optimizer": "sgd"}, "`optimizer` must be a function of parameter groups, got 'sgd'."),
    ],
)
def test_settings_of_a_method_are_checked(settings: dict, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        FedAlt(**settings)
