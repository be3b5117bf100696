"""Marks of parametrized tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *fast: Any) -> list[Any]:
    """Return the values of a parameter with the mark `slow`, except on those that are fast."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]
