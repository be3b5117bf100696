"""Verdicts, counted and printed as tables."""

import sys
import time
from collections import Counter
from collections.abc import Iterable


class Tables:
    """Counts verdicts, prints those that are wrong (in capitals) at once, and tables at the end."""

    def __init__(self) -> None:
        self.has_wrong = False
        self._counts: dict[str, Counter[tuple[str, str]]] = {}

    def add(self, part: str, title: str, verdicts: Iterable[tuple[str, str]]) -> None:
        """Count verdicts on a command, each with its details (in place)."""
        begin, counts = time.monotonic(), self._counts.setdefault(part, Counter())
        for verdict, details in verdicts:
            counts[title, verdict] += 1
            if verdict.isupper():
                self.has_wrong = True
                print(f"{verdict}: {part}, {title}: {details}", flush=True)
        own = ", ".join(f"{count:,} {verdict}" for (each, verdict), count in counts.items() if each == title)
        print(f"{part}, {title}: {own} ({time.monotonic() - begin:.0f} s)", file=sys.stderr, flush=True)

    def print(self) -> None:
        """Print a table for each part."""
        for part, counts in self._counts.items():
            verdicts = sorted({verdict for _, verdict in counts}, key=lambda name: (name.isupper(), name))
            print(f"\n| {part} | {' | '.join(verdicts)} |\n| --- {'| --- ' * len(verdicts)}|")
            for title in dict.fromkeys(title for title, _ in counts):
                print(f"| {title} | {' | '.join(f'{counts[title, verdict]:,}' for verdict in verdicts)} |")
            totals = [sum(n for (_, own), n in counts.items() if own == verdict) for verdict in verdicts]
            print(f"| all | {' | '.join(f'{total:,}' for total in totals)} |")
