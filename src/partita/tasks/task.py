"""A task: data by device, model, loss and metrics."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from partita.data.devices import Devices, Splits, devices_of
from partita.data.examples import Batch
from partita.data.rows import SkippedRows
from partita.protocol import DeviceId
from partita.tasks.derived import Derived
from partita.tasks.metrics import Metric, MetricFn
from partita.tasks.predictor import Predictor

LossFn = Callable[[nn.Module, Batch], Tensor]
"""Returns the mean loss of a model over a batch; it may be a whole training step of your own."""
WeightFn = Callable[[Any], int]
"""Returns the weight of a device in means over devices, from all its targets."""
PredictFn = Callable[[nn.Module, Batch], tuple[Any, Any]]
"""Returns predictions and targets for a batch: tensors or lists with one entry per example."""

COLUMNS = ("stage", "model", "device", "seen", "split", "examples", "weight", "loss", "metric", "reason")
"""The columns of a table of measurements; further metrics must have other names."""


def default_predict(model: nn.Module, batch: Batch) -> tuple[Any, Any]:
    """Return the model's output for the first field of a batch, and the second field as targets."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        kind = type(batch).__name__
        raise TypeError(f"`predict` is needed if batches are not pairs, got a batch of {kind}.")
    inputs, targets = batch
    return model(inputs), targets


class Task:
    """A task to learn: any `nn.Module`, a loss, metrics, and data by device.

    Args:
        model: a function that builds the model, initialized from torch's random numbers.
        loss: `loss(model, batch)` returns the mean loss over a batch, a tensor with a gradient; it may be a
            whole training step of your own.
        metrics: metrics by name, the first being the headline metric. `metric(predictions, targets)` gets all
            predictions of a device. For a plain function higher is better; use `Metric(function, "down")`
            where lower is better.
        devices: the splits of each device by id, `{"ann": {"train": (inputs, targets), "test": ...}}`: a
            dict, or `Devices` to load data on access. A split is a tuple or a dict of tensors or arrays, a
            list of examples, a map-style Dataset, or any object with `__len__` and `batch_at(positions)`.
        predict: `predict(model, batch)` returns predictions and targets, tensors or lists with one entry per
            example. Default: the batch is a pair of inputs and targets.
        weight: the weight of a device in means over devices, from all its targets. Default: their number.
        model_options: arguments for a model named in a config, used where the model has such an argument and
            the config does not set it, such as the number of classes.
        skipped: the bad rows of the data skipped so far, such as `DeviceTable.skipped`; grows in place.
        derived: JSON values that were derived from the training data of all devices and that models depend
            on, such as a vocabulary; a run keeps them in its folder.
        predictor: how rows of a table are predicted that nothing is learned from, for `partita predict`.
    """

    def __init__(
        self,
        *,
        model: Callable[[], nn.Module],
        loss: LossFn,
        metrics: Mapping[str, Metric | MetricFn],
        devices: Mapping[DeviceId, Splits],
        predict: PredictFn = default_predict,
        weight: WeightFn = len,
        model_options: Mapping[str, Any] | None = None,
        skipped: SkippedRows | None = None,
        derived: Derived | None = None,
        predictor: Predictor | None = None,
    ) -> None:
        if isinstance(model, nn.Module):
            raise TypeError("`model` must be a function that builds the model, got a model.")
        if not metrics:
            raise ValueError("`metrics` must name at least one metric, got none.")
        if taken := sorted(set(COLUMNS) & set(metrics)):
            raise ValueError(f"A metric cannot be called {taken[0]!r}: `devices.parquet` has that column.")
        if not devices:
            raise ValueError("`devices` must hold at least one device, got none.")
        self.model = model
        self.loss = loss
        self.metrics: Mapping[str, Metric] = {
            name: metric if isinstance(metric, Metric) else Metric(metric) for name, metric in metrics.items()
        }
        self.devices: Devices = devices_of(devices)
        self.predict = predict
        self.weight = weight
        self.model_options: Mapping[str, Any] = model_options or {}
        self.skipped = SkippedRows() if skipped is None else skipped
        self.derived: Derived = derived or {}
        self.predictor = predictor

    @property
    def headline(self) -> str:
        """The name of the headline metric, the first one."""
        return next(iter(self.metrics))

    def with_model(self, model: Callable[[], nn.Module]) -> "Task":
        """Return the same task with another model."""
        return self._with(model, self.devices)

    def with_devices(self, devices: Devices) -> "Task":
        """Return the same task with other data."""
        return self._with(self.model, devices)

    def _with(self, model: Callable[[], nn.Module], devices: Devices) -> "Task":
        return Task(
            model=model,
            loss=self.loss,
            metrics=self.metrics,
            devices=devices,
            predict=self.predict,
            weight=self.weight,
            model_options=self.model_options,
            skipped=self.skipped,
            derived=self.derived,
            predictor=self.predictor,
        )
