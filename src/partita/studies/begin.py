"""Beginning a comparison: its cells are resolved and checked, and written to a folder of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from partita.config.building import build, build_plan, check_machine
from partita.config.changes import with_values
from partita.config.files import contents_of, find_files
from partita.config.loading import own_code
from partita.config.overrides import relative_to
from partita.config.provenance import COMMAND, find_own_code, made_with
from partita.config.reading import config_of
from partita.durable import make_folder, replace_file
from partita.errors import ConfigError
from partita.methods import registry
from partita.runs.folder import RunFolder
from partita.seals import sealed_json, sealed_text
from partita.server import registry as servers
from partita.studies import run as runner
from partita.studies.cells import START, Cell, base_of, cells_of
from partita.studies.claiming import claimed
from partita.studies.comparison import ComparedMethod, Comparison, first_seed, reopen
from partita.studies.evaluations import with_evaluations
from partita.studies.folders import CELLS, COMPARISON_FILE
from partita.studies.partitions import compared_partitions, merge
from partita.studies.same_task import fingerprint_in, task_and_model
from partita.studies.search import space_of
from partita.studies.tuning import check_trial
from partita.studies.variants import check, named, titles_of


def begin(values: Mapping[str, Any], beside: Path, command: str = "") -> Comparison:
    """Return a new comparison, in a folder of its own.

    Args:
        values: the config's values.
        beside: the folder of the config, where files that it names are found.
        command: the command line, which is kept in the folder.
    """
    config = base_of(values)
    check_machine(config)
    cells, notes = cells_in(values, beside)
    for cell in first_seed(cells):
        check_cell(cell, beside)
        if config.compare.tune and cell.method != START:
            check_trial(cell.values, beside)
            _check_space(cell, config.compare.tune)
    with claimed(config, f"{config.name}-compare") as folder:
        make_folder(folder / CELLS)
        settled = _from_folder(values, cells, beside, folder)
        settled["made_with"] |= {COMMAND: command} if command else {}
        resolved = {
            "methods": {method: asdict(own) for method, own in methods_of(cells).items()},
            "cells": [asdict(cell) for cell in cells_in(settled, folder)[0]],
            "notes": notes,
            "fingerprint": fingerprint_in(base_of(settled), folder),
        }
        replace_file(folder / COMPARISON_FILE, sealed_json(resolved))
        replace_file(folder / "config.toml", sealed_text(tomli_w.dumps(settled)))
        return reopen(folder)


def _check_space(cell: Cell, trials: int) -> None:
    """Raise if tuning would try a value that cannot be used."""
    for key, choices in space_of(cell.config(out=Path()), trials).items():
        for choice in choices:
            try:
                build_plan(config_of(with_values(cell.values, {key: choice})))
            except ConfigError as error:
                raise ConfigError(f"{cell.title}, tuned with `{key}` = {choice!r}: {error}") from error


def methods_of(cells: Sequence[Cell]) -> dict[str, ComparedMethod]:
    """Return the methods of cells; those without a personal part have the title of their server optimizer."""
    citations = {cell.method: cell.citation for cell in cells}
    papers = registry.citations()
    configs = {cell.method: cell.config(out=Path()) for cell in reversed(cells)}
    pretrain = configs[START].pretrain
    first, later = pretrain.server_optimizer, configs[registry.REFERENCE].personalize.server_optimizer
    again = servers.title_of(later)
    reference = f"continued {again}" if pretrain.rounds else again
    titles = titles_of([cell.method for cell in cells if cell.method != START], reference)
    citations[registry.REFERENCE] = papers.get(servers.cites_of(later))
    if pretrain.rounds:
        titles |= {START: servers.title_of(first), registry.REFERENCE: f"{again}, continued"}
        citations[START] = papers.get(servers.cites_of(first))
    else:
        titles |= {START: "Start", registry.REFERENCE: again}
    return {
        cell.method: ComparedMethod(
            title=titles[cell.method],
            citation=citations[cell.method],
            begins_pretrained=cell.begins_pretrained,
            begins_continued=cell.begins_continued,
            trains_alone=cell.method != START and named(cell.method).trains_alone,
        )
        for cell in cells
    }


def cells_in(values: Mapping[str, Any], beside: Path) -> tuple[list[Cell], list[str]]:
    """Return the cells of a comparison, and notes on personal parts that have no cells of their own.

    Files that the comparison names are found `beside` it.
    """
    find_own_code(values, beside)
    config = base_of(values)
    check(config)
    task, model = task_and_model(config, beside)
    partitions = compared_partitions(config, model)
    with own_code("`evaluate.unseen`"):
        seen, _ = config.evaluate.divide(task.devices.ids)
    cells, notes = merge(cells_of(values, devices=len(seen), partitions=partitions), model)
    return with_evaluations(cells, devices=len(seen)), [*partitions.notes, *notes]


def check_cell(cell: Cell, beside: Path) -> runner.Prepared:
    """Return a cell's run without a folder, or raise if it cannot be built."""
    try:
        config = cell.config(out=Path())
        return runner.Prepared(config, build(config, beside), RunFolder(Path()))
    except ConfigError as error:
        name = " ".join(filter(None, (cell.title or "The start", cell.partition)))
        raise ConfigError(f"{name}: {error}") from error


def _from_folder(
    values: Mapping[str, Any], cells: Sequence[Cell], beside: Path, folder: Path
) -> dict[str, Any]:
    """Return a config's values with paths relative to the comparison's folder, and with versions."""
    config, folder = base_of(values), folder.resolve()
    changes = relative_to(folder, find_files(config, beside))
    versions = contents_of(config, beside) | made_with(
        config, folder, *(cell.config(out=folder) for cell in first_seed(cells))
    )
    return with_values(values, {**changes, "made_with": versions, "out": None})
