"""The names of a comparison's columns."""

import re

import pytest

from partita.config.reference import reference
from partita.errors import ConfigError
from partita.studies.columns import COLUMNS, DEFAULT, chosen


def test_each_column_is_shown_once_in_the_order_given() -> None:
    assert chosen(["memory", "metric", "memory"]) == ("memory", "metric")
    assert chosen([]) == DEFAULT


def test_an_unknown_column_is_refused_with_the_list_and_a_near_name() -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(["metric", "helpd"])

    message = str(caught.value)
    assert message.startswith("There is no column 'helpd'. Known: kept, metric, rounds, mb, ")
    assert message.endswith("quartile4. Did you mean `helped`?")


def test_the_key_lists_every_column_the_default_ones_first() -> None:
    text = " ".join(reference().replace("\n# ", " ").split())
    (listed,) = re.findall(r"the table `methods` shows.*? By name: (.*?);", text)

    names = listed.replace("quartile1 to quartile4", "quartile1, quartile2, quartile3, quartile4").split(", ")
    assert sorted(names) == sorted(COLUMNS)
    assert tuple(names[:5]) == DEFAULT
