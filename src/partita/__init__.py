"""Partita: federated learning with partial model personalization.

A model is split into parameters u that all devices share and parameters v_i that belong to device i and
never leave it. FedAlt updates v_i first and u after it; FedSim updates both at once.

Names are imported when they are first used, so that `partita --help` does not wait for torch. Nothing at all
is imported here: a command cannot end in one line at Ctrl-C before this module is read.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from partita.api.comparison import ComparisonResult, compare, open_comparison
    from partita.api.opening import open
    from partita.api.result import Result
    from partita.api.runs import pipeline, run
    from partita.api.tuning import TuningResult, tune
    from partita.data.devices import Devices
    from partita.errors import CannotDo
    from partita.exports.files import load, model_metadata
    from partita.methods.apfl import LocalAPFL
    from partita.methods.carried import Carried, Sent, mean_over_all_devices, mean_over_replies
    from partita.methods.declared import OwnExamples
    from partita.methods.descent import Steps, descend
    from partita.methods.fedala import LocalALA
    from partita.methods.fedalt import FedAlt, LocalAlt
    from partita.methods.fedavg import FedAvg, LocalSGD
    from partita.methods.fedrod import LocalRoD
    from partita.methods.fedsim import FedSim, LocalSim
    from partita.methods.hetlora import LocalHetLoRA
    from partita.methods.knn_per import LocalMemory
    from partita.methods.method import Finetuning, Method
    from partita.methods.named import Citation, NamedMethod
    from partita.methods.pfedme import LocalMoreau
    from partita.methods.scaffold import LocalScaffold
    from partita.models.adapters import Adapters, adapters, shared_adapters
    from partita.models.additive import Additive, Mixture
    from partita.models.full import full
    from partita.models.parts import named_partition
    from partita.models.resnet import ResNet
    from partita.models.speech import SpeechTransformer
    from partita.models.split_input import SplitInput
    from partita.models.start import load_start
    from partita.models.transformer import NextWordTransformer
    from partita.partition import Partition, Personalization, Regularization
    from partita.progress.tensorboard import TensorBoard
    from partita.protocol import Stage
    from partita.server.aggregation import Aggregating
    from partita.server.optimizers import Adagrad, Adam, Averaging, FedAdam, Yogi
    from partita.server.schedules import Exponential, Linear, constant
    from partita.tasks.metrics import Metric, Undefined, accuracy
    from partita.tasks.predictor import Predictor
    from partita.tasks.task import Task
    from partita.training.plan import Evaluation, Plan, Training

__all__ = [
    "Adagrad",
    "Adam",
    "Adapters",
    "Additive",
    "Aggregating",
    "Averaging",
    "CannotDo",
    "Carried",
    "Citation",
    "ComparisonResult",
    "Devices",
    "Evaluation",
    "Exponential",
    "FedAdam",
    "FedAlt",
    "FedAvg",
    "FedSim",
    "Finetuning",
    "Linear",
    "LocalALA",
    "LocalAPFL",
    "LocalAlt",
    "LocalHetLoRA",
    "LocalMemory",
    "LocalMoreau",
    "LocalRoD",
    "LocalSGD",
    "LocalScaffold",
    "LocalSim",
    "Method",
    "Metric",
    "Mixture",
    "NamedMethod",
    "NextWordTransformer",
    "OwnExamples",
    "Partition",
    "Personalization",
    "Plan",
    "Predictor",
    "Regularization",
    "ResNet",
    "Result",
    "Sent",
    "SpeechTransformer",
    "SplitInput",
    "Stage",
    "Steps",
    "Task",
    "TensorBoard",
    "Training",
    "TuningResult",
    "Undefined",
    "Yogi",
    "accuracy",
    "adapters",
    "compare",
    "constant",
    "descend",
    "full",
    "load",
    "load_start",
    "mean_over_all_devices",
    "mean_over_replies",
    "model_metadata",
    "named_partition",
    "open",
    "open_comparison",
    "pipeline",
    "run",
    "shared_adapters",
    "tune",
]

_HOMES = {
    "partita.api.comparison": ("ComparisonResult", "compare", "open_comparison"),
    "partita.api.opening": ("open",),
    "partita.api.result": ("Result",),
    "partita.api.runs": ("pipeline", "run"),
    "partita.api.tuning": ("TuningResult", "tune"),
    "partita.data.devices": ("Devices",),
    "partita.errors": ("CannotDo",),
    "partita.exports.files": ("load", "model_metadata"),
    "partita.methods.apfl": ("LocalAPFL",),
    "partita.methods.carried": ("Carried", "Sent", "mean_over_all_devices", "mean_over_replies"),
    "partita.methods.declared": ("OwnExamples",),
    "partita.methods.fedala": ("LocalALA",),
    "partita.methods.fedalt": ("FedAlt", "LocalAlt"),
    "partita.methods.fedavg": ("FedAvg", "LocalSGD"),
    "partita.methods.fedrod": ("LocalRoD",),
    "partita.methods.hetlora": ("LocalHetLoRA",),
    "partita.methods.knn_per": ("LocalMemory",),
    "partita.methods.fedsim": ("FedSim", "LocalSim"),
    "partita.methods.method": ("Finetuning", "Method"),
    "partita.methods.named": ("Citation", "NamedMethod"),
    "partita.methods.pfedme": ("LocalMoreau",),
    "partita.methods.scaffold": ("LocalScaffold",),
    "partita.methods.descent": ("Steps", "descend"),
    "partita.models.adapters": ("Adapters", "adapters", "shared_adapters"),
    "partita.models.additive": ("Additive", "Mixture"),
    "partita.models.full": ("full",),
    "partita.models.parts": ("named_partition",),
    "partita.models.resnet": ("ResNet",),
    "partita.models.speech": ("SpeechTransformer",),
    "partita.models.split_input": ("SplitInput",),
    "partita.models.start": ("load_start",),
    "partita.models.transformer": ("NextWordTransformer",),
    "partita.partition": ("Partition", "Personalization", "Regularization"),
    "partita.protocol": ("Stage",),
    "partita.progress.tensorboard": ("TensorBoard",),
    "partita.server.aggregation": ("Aggregating",),
    "partita.server.optimizers": ("Adagrad", "Adam", "Averaging", "FedAdam", "Yogi"),
    "partita.server.schedules": ("Exponential", "Linear", "constant"),
    "partita.training.plan": ("Evaluation", "Plan", "Training"),
    "partita.tasks.metrics": ("Metric", "Undefined", "accuracy"),
    "partita.tasks.predictor": ("Predictor",),
    "partita.tasks.task": ("Task",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> "Any":
    """Import a public name when it is first asked for."""
    from importlib import import_module

    if name == "__version__":
        from importlib import metadata  # Slow: not before it is needed.

        return metadata.version("partita")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'partita' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
