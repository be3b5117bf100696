"""Measure, and write the results: `make bench`, or `python benchmarks/run.py MODULE ...` for some modules.

Targets that are missed are in the table, and the exit code is 0 all the same; it is 1 if a module ended with
an error. Run it on a machine that does nothing else.
"""

import importlib
import sys
import traceback
from datetime import UTC, datetime

import machine
import results

MODULES = ("overhead", "qmnist", "comparison", "reuse", "million_rounds", "visit_memory", "startup")


def measure(module: str) -> results.Measured:
    """Return a module's rows, with the date and the machine, and print each as it comes."""
    facts = machine.facts()
    records = []
    for row in importlib.import_module(module).rows():
        record = row.record(facts["gemm"])
        records.append(record)
        outcome = {True: "met", False: "MISSED", None: ""}[row.met]
        texts = [*results.named(record), results.result_text(record), results.target_text(record), outcome]
        print("; ".join(text for text in texts if text), flush=True)
    return {"date": datetime.now(UTC).date().isoformat(), "machine": facts, "rows": records}


def main(modules: list[str]) -> int:
    """Run modules, all by default, and write the results after each of them."""
    if unknown := [module for module in modules if module not in MODULES]:
        print(f"No benchmark {', '.join(unknown)}: there are {', '.join(MODULES)}.", file=sys.stderr)
        return 2
    failed = False
    for module in modules or MODULES:
        try:
            measured = measure(module)
        except Exception:
            traceback.print_exc()
            failed = True
        else:
            known = {**results.read(), module: measured}
            results.write({name: known[name] for name in MODULES if name in known})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
