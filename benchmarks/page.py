"""Time to write and to draw the report of a run and of a comparison of 18 methods with 1,000 devices.

The runs are small and synthetic. The time to write is that of the second call of `write_report`, with figures
and tables; the first call also bundles the JavaScript libraries, once per user. The time to draw is until all
charts are there in headless Chromium, which needs Debian's packages chromium and chromium-driver. Run it with
`python benchmarks/page.py`.
"""

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait
from torch import nn

from partita.config.reading import config_of
from partita.report.write import write_report
from partita.studies import run as runner
from partita.studies.begin import begin
from partita.studies.compare import finish
from partita.tasks.synthetic import synthetic
from partita.tasks.task import Task
from partita.tasks.validation import hold_out_validation

DEVICES = 1000
STAGE = {"rounds": 100, "devices_per_round": 10}
METHODS = [
    *("finetune", "ditto", "pfedme", "ft_part", "fedalt", "fedsim", "fedalt-stateless", "fedsim-stateless"),
    *("fedprox", "scaffold", "fedadam", "fedper", "fedrep", "fedbabu", "lg_fedavg"),
]
VALUES = {
    "name": "thousand",
    "task": {"kind": "page:task"},
    "partition": {"personal": "output"},
    "pretrain": STAGE,
    "personalize": STAGE,
    "finetune": {"epochs": 1},
}


class Layers(nn.Sequential):
    """A classifier of two layers with all parts that methods name."""

    parts: ClassVar[Mapping[str, Sequence[str]]] = {"input": ["0.*"], "output": ["2.*"], "head": ["2.*"]}

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))


def task() -> Task:
    """Return a synthetic task with three splits."""
    task = synthetic(form="mixture", devices=DEVICES)
    own = Task(model=Layers, loss=task.loss, metrics=task.metrics, devices=task.devices)
    return hold_out_validation(own, 0.2)


def main() -> None:
    """Run and compare, then write each report and print its time and size."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        baseline = {"epochs": 1, "baseline": True}
        config = config_of({**VALUES, "finetune": baseline, "out": str(folder)})
        runner.finish(runner.prepare(config, Path()))
        measure("A run", folder)

        folder = Path(place) / "comparison"
        compare = {"methods": METHODS, "partitions": ["output"], "seeds": 1}
        comparison = begin({**VALUES, "compare": compare, "out": str(folder)}, Path())
        finish(comparison, lambda done, total, text: None)
        measure(f"A comparison of {len(METHODS) + 3} methods", folder)


def measure(what: str, folder: Path) -> None:
    """Write a report twice and print the time of the second, the size of the page and the time to draw it."""
    write_report(folder)
    began = time.perf_counter()
    page = write_report(folder)
    seconds = time.perf_counter() - began
    figures = sum(file.stat().st_size for file in (folder / "figures").iterdir())
    print(f"{what} on {DEVICES} devices: written in {seconds:.1f} s, drawn in {drawn(page):.1f} s,", end=" ")
    print(f"page {page.stat().st_size / 1e6:.2f} MB, figures {figures / 1e6:.2f} MB", flush=True)


def drawn(page: Path) -> float:
    """Return the seconds until all charts of a page are drawn."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        began = time.perf_counter()
        driver.get(page.resolve().as_uri())
        WebDriverWait(driver, 120, poll_frequency=0.05).until(
            lambda browser: browser.execute_script("return document.body.dataset.drawn") == "all"
        )
        return time.perf_counter() - began
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
