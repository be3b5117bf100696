"""`python -m soak`: disturbs commands of Partita and prints what has come of it, as tables."""

import argparse
import hashlib
import importlib
import pkgutil
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from soak.processes import IS_PREPARED, Place, home, with_shim

PARTS = ("kills", "full", "faults", "two", "long")
DISK = 64_000_000
"""Bytes of the disk on which commands run."""


def main() -> int:
    """Run the soak test and return 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; by default all")
    parser.add_argument("--kills", type=int, default=200, help="the number of kills in all")
    parser.add_argument("--full", type=int, default=100, help="the number of full disks in all")
    parser.add_argument(
        "--faults", type=int, default=0, help="the number of failing calls in all; 0: each in turn"
    )
    parser.add_argument("--rounds", type=int, default=2000, help="rounds of the long run")
    parser.add_argument("--only", nargs="*", help="some commands alone, by name")
    parser.add_argument("--seed", type=int, default=17)
    options = parser.parse_args()
    if not IS_PREPARED:
        with tempfile.TemporaryDirectory(prefix="partita-soak-") as folder:
            return with_shim(Path(folder))
    return soak(options)


def soak(options: argparse.Namespace) -> int:
    """Run some parts of the soak test, print tables, and return 1 if something was wrong."""
    import_everything()
    from soak.faults import Disk, cases, fail, fill
    from soak.fleet import long_run, two_at_once
    from soak.kills import kill
    from soak.subjects import SUBJECTS, Bench
    from soak.tables import Tables

    parts, tables, chance = options.parts or PARTS, Tables(), random.Random(options.seed)
    subjects = [each for each in SUBJECTS if not options.only or each.name in options.only]
    kills, full, faults = (
        -(-each // len(subjects)) for each in (options.kills, options.full, options.faults)
    )
    disk = Disk(home() / "disk", DISK)
    for subject in subjects if {*parts} - {"long"} else []:
        with reports(are_whole=subject.name == "report"):
            bench = Bench(subject, Place(disk.folder / "work"), home() / "bases")
            if "kills" in parts:
                tables.add("kills", subject.title, kill(bench, kills, chance))
            if "full" in parts:
                tables.add("full", subject.title, fill(bench, disk, full, chance))
            if "faults" in parts:
                chosen = cases(bench, faults, chance)
                tables.add("faults", subject.title, (fail(bench, case) for case in chosen))
            if "two" in parts and subject.resume != subject.first:
                tables.add("two", subject.title, two_at_once(bench))
    disk.close()
    if "long" in parts:
        tables.add("long", f"{options.rounds} rounds", long_run(home(), options.rounds))
    tables.print()
    return 1 if tables.has_wrong else 0


def import_everything() -> None:
    """Import all of Partita, so that the processes that are forked need not."""
    import torch

    import partita

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(partita.__path__, "partita."):
        try:
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name != "flwr":  # Flower has an environment of its own.
                raise


@contextmanager
def reports(*, are_whole: bool) -> Iterator[None]:
    """Write whole reports in this block, each figure of which is drawn only once, or short ones."""
    if not are_whole:
        with mock.patch("partita.report.write.write_report", write_short_report):
            yield
        return
    import vl_convert

    with ExitStack() as stack:
        for name in ("vegalite_to_svg", "svg_to_png", "svg_to_pdf"):
            stack.enter_context(mock.patch.object(vl_convert, name, drawn_once(getattr(vl_convert, name))))
        yield


def drawn_once(draw: Callable[..., str | bytes]) -> Callable[..., str | bytes]:
    """Return a function that keeps what another one draws for all later processes: drawing takes seconds.

    The first process that draws is not disturbed, so the files are whole.
    """

    def drawn(source: str, **options: Any) -> str | bytes:
        kept = home() / f"{draw.__name__}-{hashlib.sha256(source.encode()).hexdigest()}"
        if not kept.exists():
            content = draw(source, **options)
            kept.write_bytes(content.encode() if isinstance(content, str) else content)
        return kept.read_text() if draw.__name__.endswith("svg") else kept.read_bytes()

    return drawn


def write_short_report(folder: Path, **_: Any) -> Path:
    """Write a report without content."""
    from partita.durable import replace_file

    replace_file(folder / "report.html", b"<!doctype html>")
    return folder / "report.html"


if __name__ == "__main__":
    sys.exit(main())
