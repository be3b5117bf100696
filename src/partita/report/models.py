"""The models that a run has evaluated, with the titles that tables and charts give them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partita.config.provenance import TITLE
from partita.methods import registry
from partita.methods.named import NamedMethod
from partita.protocol import Stage
from partita.runs.folder import RunFolder
from partita.server import registry as servers
from partita.shown import shown
from partita.training.onboarding import PREVIOUS

_AGAIN: Mapping[Stage, str] = {
    Stage.PERSONALIZED: "personal part before",
    Stage.FINETUNED: "personalized again",
}
"""The titles where devices that a run knows were personalized again."""


@dataclass(frozen=True)
class EvaluatedModel:
    """A model that a run has evaluated on its devices."""

    title: str
    run: RunFolder
    """The run that it belongs to: the Finetune baseline has its own folder inside the run's."""
    stage: Stage
    statistics: Mapping[str, Any]
    """Its statistics over devices in `summary.json`."""


def evaluated_models(run: RunFolder) -> list[EvaluatedModel]:
    """Return the models of a finished run in the order of their stages, its baseline's second."""
    titles = _titles(run)
    models = [
        EvaluatedModel(titles[Stage(stage)], run, Stage(stage), statistics)
        for stage, statistics in run.summary["stages"].items()
    ]
    if run.baseline is not None:
        finetuned = run.baseline.summary["stages"].get(Stage.FINETUNED)
        if finetuned:
            title = method_title(registry.BASELINE)
            models.insert(1, EvaluatedModel(title, run.baseline, Stage.FINETUNED, finetuned))
    return models


def all_models(run: RunFolder) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the title and the statistics of each model; for a stage that failed, how many devices failed."""
    titles, found = _titles(run), _statistics(run)
    models = [(titles[stage], found[stage]) for stage in Stage if stage in found]
    if run.baseline is not None and (finetuned := _statistics(run.baseline).get(Stage.FINETUNED)):
        models.insert(1, (method_title(registry.BASELINE), finetuned))
    return models


def _statistics(run: RunFolder) -> Mapping[str, Any]:
    return {**run.summary["stages"], **run.summary.get("failed", {})}


def _titles(run: RunFolder) -> dict[Stage, str]:
    """Return the title of the model of each stage."""
    values = run.values
    pretrain, personalize = values["pretrain"], values["personalize"]
    method = personalize["method"]
    title = values["made_with"].get(TITLE) or method_title(method)
    finetuned = f"{title}, fine-tuned" if personalize["rounds"] else _finetuned_alone(method, values)
    server = servers.title_of(pretrain["server_optimizer"])
    return {
        Stage.PRETRAINED: shown(server) if pretrain["rounds"] else "Start",
        Stage.PERSONALIZED: shown(title),
        Stage.FINETUNED: shown(finetuned),
        Stage.SERVED: "chosen on validation",
        **(_AGAIN if PREVIOUS in run.summary else {}),
    }


def _finetuned_alone(method: str, values: Mapping[str, Any]) -> str:
    """Return the title of a model that is fine-tuned without rounds of personalization."""
    if own := values["made_with"].get(TITLE):
        return own
    named = _named(method)
    if named and not named.trains_rounds:
        return named.title
    is_full = values["partition"]["personal"] == "full"
    return method_title(registry.BASELINE if is_full else registry.PARTIAL_BASELINE)


def method_title(method: str) -> str:
    """Return the title of a method that a config names; of an import path, its last part.

    >>> method_title("fedalt"), method_title("my.module:Update")
    ('FedAlt', 'Update')
    """
    named = _named(method)
    return named.title if named else method.rpartition(":")[2]


def _named(method: str) -> NamedMethod | None:
    """Return a method that is known by name; user code by import path is not loaded."""
    return None if ":" in method else registry.find_or_none(method)
