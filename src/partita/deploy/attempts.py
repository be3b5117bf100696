"""Requests that a device repeats until the server can be reached, and those that it gives up."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

logger = logging.getLogger(__name__)

_FIRST, _LONGEST = 0.5, 60.0
"""Seconds before the first new attempt, and the longest time between two."""

Result = TypeVar("Result")


class Unreachable(Exception):
    """The server cannot be reached, or cannot answer now: later it may."""


class Rejected(Exception):
    """The server does not accept a request, and would not later."""


def persistently(attempt: Callable[[], Result], sleep: Callable[[float], None] = time.sleep) -> Result:
    """Try a request until the server can be reached, however long that takes.

    The time between attempts grows, and is random, so that devices do not all come back at once.
    """
    failed = 0
    while True:
        try:
            result = attempt()
        except Unreachable as error:
            if not failed:
                logger.warning("The server cannot be reached, and is tried again: %s.", error)
            delay = min(_LONGEST, _FIRST * 2 ** min(failed, 20))
            failed += 1
            sleep(delay * random.uniform(0.5, 1.0))
        else:
            if failed:
                logger.warning("The server can be reached again.")
            return result
