"""Warnings about a finished run: failed stages, divergence, failed devices, bad rows skipped."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from partita.data.arrow import rows_where, rows_with, tuples_of
from partita.data.rows import skipped_text
from partita.protocol import DeviceId, Stage
from partita.runs.folder import RunFolder
from partita.runs.onboarded import served_models
from partita.shown import shown_id
from partita.training.evaluation import weighted_mean
from partita.training.stopping import NO_MEASUREMENT

_SHOWN = 3
"""Failed devices that a warning lists."""
_DIVERGED = 100
"""A loss or an error that is so many times as large as at the start of a run has diverged."""
_FEW_UNSEEN = 5
"""Unseen devices below which their mean says little."""


def warnings_of(run: RunFolder) -> list[str]:
    """Return a sentence, without its full stop, for each kind of problem in a finished run.

    The most important ones come first. Those of the Finetune baseline inside the run are included.
    """
    found = _warnings_of_one(run)
    if run.baseline is not None:
        found += [f"In the Finetune baseline: {warning}" for warning in _warnings_of_one(run.baseline)]
    return found


def _warnings_of_one(run: RunFolder) -> list[str]:
    found = [*failed_stages(run), *_failed_unseen(run), *divergence(run), *_without_result(run)]
    found += [
        *_reset(run),
        *_failed(run),
        *_not_finite(run),
        *_unmeasured(run),
        *_unstopped(run),
        *_unchosen(run),
    ]
    return found + ([skipped_text(skipped)] if (skipped := run.skipped()) else [])


def has_failed_stage(run: RunFolder) -> bool:
    """Return whether a stage of a finished run or of its baseline failed, and has no result.

    It may have failed for the devices in training, or for the unseen ones.
    """
    has_failed = bool(run.summary.get("failed") or _without_result_unseen(run))
    return has_failed or (run.baseline is not None and has_failed_stage(run.baseline))


def _without_result_unseen(run: RunFolder) -> Mapping[str, Any]:
    """Return the stages in which too many unseen devices failed: how many, of how many, and why."""
    unseen = run.summary.get("unseen", {})
    return {stage: numbers for stage, numbers in unseen.items() if "reason" in numbers}


def _reset(run: RunFolder) -> Iterator[str]:
    """Yield a sentence for each device that was reset."""
    for device, rounds in run.resets:
        yield f"device {device!r} had lost its personal part and started again after {rounds} rounds"


def failed_stages(run: RunFolder) -> Iterator[str]:
    """Yield a sentence for each stage without a result: most devices failed in it, or it began from such."""
    for stage, failure in run.summary.get("failed", {}).items():
        if not failure["failed"]:
            yield f"the stage `{stage}` has no result: {failure['reason']}"
            continue
        yield (
            f"the stage `{stage}` failed and has no result: {failure['failed']} of "
            f"{_devices(failure['devices'])} failed in it ({failure['reason'].rstrip('.')})"
        )


def _failed_unseen(run: RunFolder) -> Iterator[str]:
    """Yield a sentence for each stage without a result on unseen devices."""
    for stage, failure in _without_result_unseen(run).items():
        count = f"{failure['failed']} of {_devices(failure['devices'], 'unseen device')} failed in it"
        reason = failure["reason"].rstrip(".")
        why = f"{count} ({reason})" if failure["failed"] else reason
        yield f"the stage `{stage}` has no result on unseen devices: {why}"


def divergence(run: RunFolder) -> Iterator[str]:
    """Yield a sentence about the first stage after which the loss or the error is far above the start's."""
    losses, summary = _training_losses(run), run.summary
    start = _start_loss(run, losses)
    for stage, loss in losses.items():
        if start and loss > _DIVERGED * start and stage not in summary.get("failed", {}):
            yield (
                f"the run diverged in the stage `{stage}`: the mean loss on training examples is {loss:.4g}, "
                f"and was {start:.4g} at the start"
            )
            return
    means = {stage: numbers["weighted_mean"] for stage, numbers in summary["stages"].items()}
    before = means.get(Stage.PRETRAINED, 0.0)
    for stage, mean in means.items():
        if summary["direction"] == "down" and mean > _DIVERGED * before > 0:
            yield (
                f"the run diverged in the stage `{stage}`: the {summary['split']} {summary['metric']} is "
                f"{mean:.4g}, and was {before:.4g} at the start"
            )
            return


def _without_result(run: RunFolder) -> Iterator[str]:
    """Yield a sentence about a run whose metric no device has for any model."""
    summary = run.summary
    if not summary["stages"] and not summary.get("failed"):
        yield (
            f"the run has no {summary.get('split', 'test')} {summary['metric']} on any device: there is "
            "nothing to compare"
        )


def _start_loss(run: RunFolder, losses: dict[str, float]) -> float | None:
    """Return the loss that a run began with; None if it is not known or not positive."""
    lines = (line for line in run.rounds() if line["work"] != "evaluate" and line.get("start_loss"))
    first = next(lines, None)
    pretrains = first is not None and first["stage"] == Stage.PRETRAINED
    start = first["start_loss"] if first and pretrains else losses.get(Stage.PRETRAINED)
    return start if start and start > 0 else None


def _training_losses(run: RunFolder) -> dict[str, float]:
    """Return each stage's mean loss on training examples, over the devices that have one."""
    found: dict[str, list[tuple[float, int]]] = {}
    train = rows_where(run.devices, "split", value="train")
    for stage, loss, examples in tuples_of(train, "stage", "loss", "examples"):
        if loss is not None:
            found.setdefault(stage, []).append((loss, examples))
    return {stage: weighted_mean(*zip(*found[stage], strict=True)) for stage in Stage if stage in found}


def _failed(run: RunFolder) -> Iterator[str]:
    """Yield which devices failed in any round, and why: those in training, then unseen ones."""
    for name, lines in (("device", run.rounds()), ("unseen device", run.onboarding())):
        reasons: dict[str, str] = {}
        for line in lines:
            reasons |= line["failed"]
        if reasons:
            shown = "; ".join(
                f"{shown_id(device)}: {reason}" for device, reason in list(reasons.items())[:_SHOWN]
            )
            more = f"; the others are in `{run.rounds_file.name}`" if len(reasons) > _SHOWN else ""
            yield f"{_devices(len(reasons), name)} failed in at least one round ({shown}{more})"


def _unmeasured(run: RunFolder) -> Iterator[str]:
    """Yield how many evaluated devices have no metric, and why."""
    summary = run.summary
    lacking = Counter[str]()
    for line in run.rounds():
        if line["final"] and line["stage"] not in summary.get("failed", {}):
            lacking[line["stage"]] += len(line["asked"])
    lacking.subtract({stage: numbers["devices"] for stage, numbers in summary["stages"].items()})
    (stage, missing), *_ = lacking.most_common(1) or [("", 0)]
    if missing <= 0:
        return
    has = "has" if missing == 1 else "have"
    split = summary.get("split", "test")
    yield f"{_devices(missing)} {has} no {split} {summary['metric']} ({_reason(run, stage, split)})"


def _not_finite(run: RunFolder) -> Iterator[str]:
    """Yield which devices have a model of their own that is not finite, and what they are served instead."""
    models = served_models(rows_with(run.measurements, "device", "reason"))
    if replaced := models.not_finite(none=False):
        verb, whose = ("is", "its") if len(replaced) == 1 else ("are", "their")
        yield (
            f"{_devices(len(replaced))} {verb} served the pretrained model, because {whose} own is not "
            f"finite on {whose} data ({_reasons(replaced)})"
        )
    if without := models.not_finite(none=True):
        verb, whose = ("has", "its") if len(without) == 1 else ("have", "their")
        yield f"{_devices(len(without))} {verb} no model that is finite on {whose} data ({_reasons(without)})"


def _reasons(found: Mapping[DeviceId, str]) -> str:
    """Return the first devices with their reasons, the others as dots."""
    shown = [f"{shown_id(device)}: {reason}" for device, reason in list(found.items())[:_SHOWN]]
    return "; ".join([*shown, *(["..."] if len(found) > _SHOWN else [])])


def _unstopped(run: RunFolder) -> Iterator[str]:
    """Yield the stages in which early stopping had nothing to decide by."""
    for stage, outcome in run.summary.get("early_stopping", {}).items():
        if outcome["best_round"] is None:
            yield f"early stopping had no effect in the stage `{stage}`: {NO_MEASUREMENT}"


def _unchosen(run: RunFolder) -> Iterator[str]:
    """Yield which devices could not choose a model, for lack of validation rows."""
    if Stage.SERVED not in run.summary["stages"]:
        return
    chosen = set(rows_where(run.devices, "split", value="validation")["device"].unique().to_pylist())
    lacking = [device for device in run.devices["device"].unique().to_pylist() if device not in chosen]
    if lacking:
        shown = ", ".join([*map(shown_id, lacking[:_SHOWN]), *(["..."] if len(lacking) > _SHOWN else [])])
        has = "has" if len(lacking) == 1 else "have"
        yield f"{_devices(len(lacking))} {has} no validation rows and did not choose a model ({shown})"


def few_unseen(unseen: int) -> Iterator[str]:
    """Yield a sentence if so few devices are unseen that their mean depends on which they are."""
    if 0 < unseen < _FEW_UNSEEN:
        has = "has" if unseen == 1 else "have"
        yield (
            f"Only {_devices(unseen)} {has} not been seen by training: the gap depends much on which, set a "
            "larger `evaluate.unseen`."
        )


def _reason(run: RunFolder, stage: str, split: str) -> str:
    """Return why the first device without a metric in a stage has none."""
    rows = tuples_of(run.devices, "stage", "split", "metric", "device", "reason")
    for at, measured, metric, device, reason in rows:
        if (at, measured) == (stage, split) and metric is None:
            return f"{shown_id(device)}: {reason}".rstrip(".")
    for line in run.rounds():
        if line["final"] and line["stage"] == stage and line["failed"]:
            device, reason = next(iter(line["failed"].items()))
            return f"{shown_id(device)}: its evaluation failed: {reason}".rstrip(".")
    return f"no {split} examples"


def _devices(count: int, name: str = "device") -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
