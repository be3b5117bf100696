"""The options of a table."""

from typing import Any

import pytest

from partita.data.options import keys_of, options_of
from partita.tasks.text import text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tets": 0.2}, "There is no key `tets`. Did you mean `test`?"),
        ({"frobnicate": 1}, "There is no key `frobnicate`. The keys: device, split"),
        ({"test": "a"}, "`test` must be a number, got 'a'."),
        ({"min_train_examples": 1.5}, "`min_train_examples` must be a whole number, got 1.5."),
        ({"devices": True}, "`devices` must be a whole number, got True."),
        ({"test": 1.0}, "`test` must be at least 0 and below 1, got 1.0."),
        ({"max_examples": -1}, "`max_examples` must be 0 or above, got -1."),
    ],
)
def test_a_wrong_option_is_an_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options_of(values)


def test_a_share_may_be_a_whole_number() -> None:
    assert options_of({"test": 0}).test == 0


def test_a_wrong_key_is_compared_with_the_keys_of_the_task_too() -> None:
    with pytest.raises(
        ValueError, match="There is no key `vocabulary_sise`. Did you mean `vocabulary_size`?"
    ):
        text(data="t.parquet", vocabulary_sise=3)
    with pytest.raises(
        ValueError, match="There is no key `words`. The keys: data, vocabulary_size, .*, devices,"
    ):
        options_of({"words": 3}, keys_of(text))
