"""SIGKILL at random moments, again and again, until a command has ended by itself: the same bits.

A third of the kills are at a random time, a third before a random call that changes a file, and a third before
a rename, a deletion or an fsync: those are what a commit consists of.
"""

import random
from collections.abc import Iterator

from soak.processes import CHANGES, LIMIT, Call, Ended, Fault
from soak.subjects import Bench

COMMIT = Call.RENAME | Call.UNLINK | Call.FSYNC
_MOST = 6
"""Kills of one command, after which it is left alone."""


def kill(bench: Bench, count: int, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Kill a command so many times, and yield what has come of each chain of kills, and details."""
    while count > 0:
        kills, verdict, details = _chain(bench, min(count, chance.randint(1, _MOST)), chance)
        yield from [("killed", "")] * kills
        yield verdict, details
        count -= kills


def _chain(bench: Bench, most: int, chance: random.Random) -> tuple[int, str, str]:
    """Kill a command up to so many times; return the number of kills, the verdict, and details."""
    bench.reset()
    kills, command = 0, bench.subject.first
    while True:
        ended = _disturbed(bench, command, chance) if kills < most else bench.place.run(command)
        if ended.was_killed:
            kills, command = kills + 1, bench.subject.resume
            continue
        if not ended.is_plain:
            return kills, "TRACEBACK" if ended.has_traceback else "OTHER MESSAGE", "\n".join(ended.lines)
        if ended.code == 0 or bench.is_done:
            return kills, "same bits" if bench.is_done else "OTHER BITS", f"{bench.differences()} {ended}"
        if command == bench.subject.first:
            return kills, "DEAD END", "\n".join(ended.lines)
        command = bench.subject.first  # There is nothing to resume yet.


def _disturbed(bench: Bench, command: list[str], chance: random.Random) -> Ended:
    """Run a command and kill it at a random moment, which may be after its end."""
    match chance.randrange(3):
        case 0:
            return bench.place.run(command, seconds=min(LIMIT - 1, chance.uniform(0, bench.expected.seconds)))
        case 1:
            number = chance.randint(1, bench.calls(CHANGES))
            return bench.place.run(command, Fault(CHANGES, number))
        case _:
            return bench.place.run(command, Fault(COMMIT, chance.randint(1, bench.calls(COMMIT))))
