"""A task: the data by device, the model, the loss and what to measure."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from partita.data.devices import Devices, Splits, devices_of
from partita.data.examples import Batch
from partita.data.skipped import Skipped
from partita.protocol import DeviceId
from partita.tasks.metrics import Metric, MetricFn

LossFn = Callable[[nn.Module, Batch], Tensor]
"""From a model and a batch to the mean loss over that batch; may be a whole training step of your own."""
WeightFn = Callable[[Any], int]
"""From all targets of a device to how much it counts in a mean over devices."""
PredictFn = Callable[[nn.Module, Batch], tuple[Any, Any]]
"""From a model and a batch to predictions and targets: tensors or lists with an entry an example."""

COLUMNS = ("stage", "model", "device", "split", "examples", "weight", "loss", "metric", "reason")
"""What a table of measurements has besides further metrics, whose names must differ from these."""


def first_predicts_second(model: nn.Module, batch: Batch) -> tuple[Any, Any]:
    """Return the model's output for the batch's first field, and its second field as the target."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        raise TypeError(f"A batch that is not a pair needs `predict`, got a batch of {type(batch).__name__}.")
    inputs, targets = batch
    return model(inputs), targets


class Task:
    """What is learned: any `nn.Module`, a loss, metrics, and data by device.

    Args:
        model: builds the model, freshly initialized from torch's random numbers.
        loss: `loss(model, batch)` is the mean loss over a batch, a tensor with a gradient; it may be a whole
            training step of your own.
        metrics: by name, the first one the headline; `metric(predictions, targets)` of a whole device is a
            number. A bare function is better when higher; `Metric(function, "down")` when lower.
        devices: each device's splits by id, `{"ann": {"train": (inputs, targets), "test": ...}}`: a dict, or
            `Devices` where data is loaded when visited. A split is a tuple or a dict of tensors or arrays,
            a list of examples, a map-style Dataset, or anything with `__len__` and `batch_at(positions)`.
        predict: `predict(model, batch)` is a pair of predictions and targets, tensors or lists with an entry
            an example; without it, the batch's first field goes in and its second is the target.
        weight: how much a device counts in means over devices, from all its targets; without it, as its
            examples.
        skipped: grows by every bad row of the data that was left out; a table's own, `DeviceTable.skipped`.
        model_options: what a model that a config names is given where it takes it and the config does not
            say: the number of classes, say.
    """

    def __init__(
        self,
        *,
        model: Callable[[], nn.Module],
        loss: LossFn,
        metrics: Mapping[str, Metric | MetricFn],
        devices: Mapping[DeviceId, Splits],
        predict: PredictFn = first_predicts_second,
        weight: WeightFn = len,
        model_options: Mapping[str, Any] | None = None,
        skipped: Skipped | None = None,
    ) -> None:
        if isinstance(model, nn.Module):
            raise TypeError("`model` must be a function that builds the model, got the model itself.")
        if not metrics:
            raise ValueError("`metrics` must name at least one metric, got none.")
        if taken := sorted(set(COLUMNS) & set(metrics)):
            raise ValueError(f"A metric cannot be called {taken[0]!r}: a column has that name.")
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
        self.skipped = Skipped() if skipped is None else skipped

    @property
    def headline(self) -> str:
        """The name of the metric that comes first."""
        return next(iter(self.metrics))

    def with_model(self, model: Callable[[], nn.Module]) -> "Task":
        """Return the same task for another model."""
        return self._with(model, self.devices)

    def with_devices(self, devices: Devices) -> "Task":
        """Return the same task on other data."""
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
        )
