"""The costs of every partition of a config's model: parameters, traffic, disk and training memory."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from partita.config.loading import own_code
from partita.config.partitions import build_partition, frozen_patterns
from partita.config.placeholders import with_placeholders
from partita.config.provenance import find_own_code
from partita.config.reading import to_values
from partita.config.schema import Config, PartitionConfig, method_options
from partita.config.sections import create, in_section
from partita.config.tasks import build_task
from partita.errors import ConfigError
from partita.methods import registry
from partita.methods.carried import kept_by, sent_by
from partita.methods.declared import SEAMS, LocalFn, declared_seams
from partita.models.parts import partition_names
from partita.models.start import LoadReport
from partita.partition import Personalization
from partita.server.aggregation import Aggregating
from partita.tasks.build import initial_model
from partita.tasks.derived import derived_bytes
from partita.training.costs import CostModel, Costs, cost_model_of, same_gradients
from partita.training.visit_memory import visit_of_one_example


@dataclass(frozen=True)
class Description:
    """A config's model, and what each partition of it costs."""

    model: str
    """Name of its class."""
    devices: int
    """Number of devices."""
    start: LoadReport | None
    """How the file to start from was loaded, where there is one."""
    partitions: Mapping[str, Costs]
    """Costs of every named partition and the config's own; an `error` where one does not fit this model. The
    config's own has the peak memory of a visit too, which depends on the method."""
    server: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the changes that the server holds at once, by section of the config; a section in which each
    is added up as it arrives is left out."""
    method: Mapping[str, Any] = field(default_factory=dict)
    """Declarations of the method: its `name`, the shapes of the tensors that it `keeps` on a device and
    `sends` besides the change of the shared part, and its further functions, with the decision of each."""
    notes: Sequence[str] = ()
    """Missing files, and the placeholders used for them."""

    def to_values(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)


def describe(config: Config, beside: Path) -> Description:
    """Return what every named partition and the config's own cost; nothing is trained.

    Missing data and weights do not matter: costs depend on shapes alone, and a placeholder has the same.
    """
    find_own_code(to_values(config), beside)
    with TemporaryDirectory() as folder:
        usable, notes = with_placeholders(config, beside, Path(folder))
        is_placeholder = usable.task.options.get("data") != config.task.options.get("data")
        return _describe(usable, beside, notes, is_placeholder=is_placeholder)


def derived_values(config: Config, beside: Path) -> bytes:
    """Return the content of a file with the values that a config's task derives from the data of all devices.

    Raises:
        ConfigError: the task derives none, or its data are missing.
    """
    find_own_code(to_values(config), beside)
    task, _ = build_task(config, beside)
    if not task.derived:
        raise ConfigError(f"The task {config.task.kind!r} derives no values from data.")
    return derived_bytes(task.derived)


def _describe(config: Config, beside: Path, notes: Sequence[str], *, is_placeholder: bool) -> Description:
    task, start = build_task(config, beside)
    with own_code("The model"):
        initial_model(task, seed=config.seed)
    with own_code("The task"):
        costs = cost_model_of(task, seed=config.seed, is_placeholder=is_placeholder)
    own = build_partition(config.partition, costs.model)
    method = config.personalize.method if config.personalize.rounds else registry.REFERENCE
    local: LocalFn = registry.find(method).update
    if config.personalize.rounds:
        local = partial(local, **method_options(config.personalize))
    chosen = config.partition.personal
    names = partition_names(costs.model)
    with own_code("`partition.adapter_width`"):
        own.kinds(task.devices.ids)
    with own_code("`personalize.method`"):
        own_costs = {**_costs(costs, own, local, config), **visit_of_one_example(costs, own, local)}
        declarations = _declarations(costs, own.on(task.devices.ids[0]), local)
    frozen = frozen_patterns(config.partition, costs.model)
    others = replace(config.partition, shared="rest", frozen=frozen, untie=True)
    partitions = {
        name: own_costs if name == chosen else _named(replace(others, personal=name), costs, config)
        for name in names
    }
    if chosen not in names:
        partitions[chosen if isinstance(chosen, str) else ", ".join(chosen) or "[]"] = own_costs
    return Description(
        type(costs.model).__name__,
        len(task.devices),
        start,
        partitions,
        server=_held_by_server(config, {"pretrain": partitions["none"], "personalize": own_costs}),
        method={"name": method, **declarations},
        notes=notes,
    )


def _declarations(costs: CostModel, own: Personalization, local: LocalFn) -> dict[str, Any]:
    """Return what an update declares: the shapes of kept and sent tensors, and its further functions."""
    with same_gradients(costs.model):
        parts = own.partition.of(costs.prepare(own))
        kept, sent = kept_by(local, own.partition, parts), sent_by(local, own.partition, parts.shared)
    return {
        "keeps": {name: list(tensor.shape) for name, tensor in kept.items()},
        "sends": {name: list(each.tensor.shape) for name, each in sent.items()},
        "declares": {name: SEAMS[name] for name in declared_seams(local)},
    }


def _held_by_server(config: Config, costs: Mapping[str, Costs]) -> dict[str, int]:
    """Return the bytes of the changes that the server holds at once, by section of the config."""
    sections = {"pretrain": config.pretrain, "personalize": config.personalize}
    found: dict[str, int] = {}
    for name, section in sections.items():
        with in_section(name):
            holds_all = create(Aggregating, section).holds_changes
        held = section.over_select + (section.devices_per_round if holds_all else 0)
        if section.rounds and held and "up_bytes" in costs[name]:
            found[name] = held * costs[name]["up_bytes"]
    return found


def _costs(costs: CostModel, own: Personalization, local: LocalFn, config: Config) -> Costs:
    if not config.reuse:
        return costs.costs(own, local)
    return {**costs.costs(own, local), "reuse": costs.reuse(own, config.personalize.batch_size)}


def _named(settings: PartitionConfig, costs: CostModel, config: Config) -> Costs:
    """Return the costs of a named partition, an `error` where it does not fit the model."""
    try:
        own = build_partition(settings, costs.model)
        return _costs(costs, own, registry.find(registry.REFERENCE).update, config)
    except ConfigError as error:
        return {"error": str(error)}
