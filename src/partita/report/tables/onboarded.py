"""The table `onboarded`: the devices that have joined a finished run, beside the global model."""

from collections.abc import Mapping
from typing import Any

from partita.protocol import Stage
from partita.report.tables.entries import Entry
from partita.report.tables.table import Table
from partita.runs.onboarded import OnboardedRun, Onboarding

_COLUMNS = (
    *("onboarding", "devices", "global model", "personal model", "helped", "hurt"),
    *("have its personal part", "served a personal model", "served the global model"),
)
_NOTE = (
    "Onboarding: the number of its folder in `onboarded/`; again: known devices were trained further. "
    "Global and personal model: weighted means over its devices. Helped and hurt: devices whose personal "
    "model is strictly better or worse than the global one. The last columns count what its devices have now."
)


def onboarded_table(known: OnboardedRun) -> Table:
    """Return a row for each onboarding of a finished run; without rows if no device was onboarded."""
    summary = known.summary
    better = {"up": "higher", "down": "lower"}[summary["direction"]]
    notes = [_NOTE]
    if (left := known.unfinished) is not None:
        notes.append(
            f"Warning: onboarding {left.path.name} was interrupted and is not listed: finish it with "
            f"`partita onboard {known.run.path} --resume`."
        )
    return Table(
        name="onboarded",
        title=f"Onboarded devices: {summary.get('split', 'test')} {summary['metric']} ({better} is better)",
        columns=_COLUMNS,
        rows=[_row(known, each) for each in known.onboardings],
        notes=notes,
    )


def _row(known: OnboardedRun, each: Onboarding) -> list[Entry]:
    stages: Mapping[str, Any] = each.folder.summary["stages"]
    personal = stages.get(Stage.FINETUNED) or stages.get(Stage.PERSONALIZED) or {}
    have = sum(known.holder(device).path == each.folder.path for device in each.devices)
    served = [known.served.get(device) for device in each.devices]
    return [
        f"{each.number}, again" if each.is_again else str(each.number),
        len(each.devices),
        stages.get(Stage.PRETRAINED, {}).get("weighted_mean"),
        personal.get("weighted_mean"),
        personal.get("helped"),
        personal.get("hurt"),
        have,
        served.count("personal"),
        served.count("global"),
    ]
