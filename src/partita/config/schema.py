"""A run as frozen dataclasses: one class per section of the config, one field per key.

The settings of a class of the domain are declared there alone; a section includes them (see `sections`). The
fields here are what only a config has: names of things, and where files are. Reading a config checks the type
of every value; the class that owns a setting checks its value when the run is built.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from partita.config.sections import includes
from partita.executors.settings import Execution
from partita.methods import registry
from partita.methods.method import Finetuning, Method
from partita.partition.personalization import Regularization
from partita.server import registry as servers
from partita.server.schedules import Exponential, Linear
from partita.training.plan import Evaluation, Plan, Training

_PERSONAL = ("personal_lr", "personal_epochs", "personal_steps", "stateful")
"""Settings of the personal part, which pretraining does not have."""
SERVER = "server_"
"""The text before keys of the server's optimizer."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The task: data, loss and metrics."""

    kind: str = "digits"
    """digits (the quickstart's), image, text, speech, tabular, synthetic, or "package.module:function"
    returning a Task."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """All other keys are arguments of the function `kind`."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model."""

    name: str = ""
    """convnet, resnet, transformer, speech, hf (a pretrained Hugging Face model), or
    "package.module:function" returning a module; empty: the task's own model."""
    start: str = ""
    """A safetensors file with initial weights: tensors with matching name and shape are loaded, and the
    run reports which ones."""
    start_names: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions and their replacements, applied to the tensor names of `start`:
    { "^backbone[.]" = "" }."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """All other keys are arguments of the function `name`."""


@includes(Regularization)
class PartitionConfig:
    """The split of the model after pretraining."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    personal: str | list[str] = "output"
    """Parameters that belong to each device: a name (none, full, norm, or a part that the model defines:
    input, output, head, adapter; of a model with LoRA, lora and lora_b), a pattern or a list of them, or
    "rest"."""
    shared: str | list[str] = "rest"
    """Parameters that all devices train together: a part that the model defines, a pattern or a list
    of them, or "rest" for everything that no other part selects. With "adapter" and `personal` = "none", only
    adapters are trained after pretraining."""
    frozen: str | list[str] = field(default_factory=list)
    """Parameters that are neither trained nor sent, in any stage: a part that the model defines, a pattern
    or a list of them, or "rest". Parameters that the model has with requires_grad=False and that no list
    names are frozen too."""
    proximal: float = 0.1
    """With `full`, strength lambda of the proximal term (lambda / 2) ||v_i - u||^2."""
    untie: bool = False
    """Give each part its own copy of a tied tensor whose names fall into different parts."""
    adapter_width: int | str = 0
    """With `adapter`, the bottleneck width of adapters, or "package.module:function", which returns it for a
    device id; 0: as in the paper, 16 after linear layers and attention, all channels after convolutions. Of a
    model with LoRA, the rank with which LoRA begins again after pretraining, in whatever part it is; 0: the
    model's."""
    largest_width: int = 0
    """With `shared` = "adapter" and a function as `adapter_width`, the width of the shared adapters, of which
    each device has the first units. Of shared LoRA, the rank of the model is the largest."""


@includes(Linear, Exponential)
class ScheduleConfig:
    """The schedule of the devices' learning rates over rounds."""

    schedule: str = "constant"
    """Schedule of the devices' learning rates over rounds: constant, linear (see `warmup`) or exponential
    (see `halve_every`)."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer of the devices."""

    optimizer: str = "sgd"
    """Optimizer of the devices: sgd, adamw, or "package.module:function", which takes parameter groups."""
    momentum: float = 0.0
    """Momentum of the devices' optimizer, if it has one."""
    weight_decay: float = 0.0
    """Weight decay of the devices' optimizer."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The optimizer of the server."""

    server_optimizer: str = servers.DEFAULT
    """Optimizer of the server: {server_optimizers}, or "package.module:function". Its other settings are
    keys with the prefix `server_`, such as `server_beta1`."""
    server_lr: float = 1.0
    """Learning rate of the server."""
    server_momentum: float = 0.0
    """Momentum of the server's optimizer, if it has one."""


@includes(Training, Method, ScheduleConfig, OptimizerConfig, ServerConfig, without=_PERSONAL)
class PretrainConfig:
    """Federated training of the whole model."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    options: Mapping[str, Any] = field(default_factory=dict)
    """All other keys have the prefix `server_` and are settings of the server's optimizer."""


@includes(Training, Method, ScheduleConfig, OptimizerConfig, ServerConfig)
class PersonalizeConfig:
    """Training of the shared and the personal part, from the pretrained model."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    method: str = registry.DEFAULT
    """Method: {methods}, or "package.module:thing" for your own (docs/how-to/own-method.md)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """All other keys are hyperparameters of the method or, with the prefix `server_`, settings of the
    server's optimizer."""


def server_options(section: PretrainConfig | PersonalizeConfig) -> dict[str, Any]:
    """Return the further settings of the server's optimizer."""
    return {name: value for name, value in section.options.items() if name.startswith(SERVER)}


def method_options(section: PersonalizeConfig) -> dict[str, Any]:
    """Return the hyperparameters of the method."""
    return {name: value for name, value in section.options.items() if not name.startswith(SERVER)}


@dataclass(frozen=True, kw_only=True)
class BaselineConfig:
    """The paper's Finetune baseline."""

    baseline: bool = False
    """Also fine-tune the whole pretrained model on every device, the paper's Finetune baseline; its results
    are in the folder `finetune/` of the run."""
    baseline_lr: float | None = None
    """Learning rate of the Finetune baseline; default: `personal_lr`."""


@includes(Finetuning, OptimizerConfig, BaselineConfig)
class FinetuneConfig:
    """Fine-tuning of the personal part on each evaluated device, with the shared part fixed."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Watchers of a run while it trains; they do not change its results."""

    watchers: list[str] = field(default_factory=list)
    """Import paths "package.module:function" of watchers: each is called with the run's folder and its
    config, and returns a callback for every round, or a context manager that yields one
    (docs/how-to/watch-a-run.md)."""
    tensorboard: bool = False
    """Also write TensorBoard events, to the folder `tensorboard/` of the run; needs
    partita[tensorboard]."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """The methods, partitions and seeds of `partita compare`; other commands do not use this section."""

    methods: list[str] | None = None
    """Methods by name or import path, with "-stateless" appended for devices that keep nothing between
    rounds; default: the methods of the paper. Three references are always included: the
    pretrained model, `local`, and `fedavg`, which trains the pretrained model for `personalize.rounds`
    more rounds without a personal part. `finetune` and `ditto` are run a second time, from the model of
    `fedavg`, as `finetune-continued` and `ditto-continued`."""
    partitions: list[str] = field(default_factory=list)
    """Personal parts, for methods that do not determine their own: names, or patterns separated by spaces;
    default: those of input, output and adapter that the model defines, and `partition.personal`.
    Those that select the same tensors are one row."""
    seeds: int = 5
    """Number of seeds: `seed`, `seed` + 1 and so on."""
    baseline: str = ""
    """The method that the column `difference` refers to, paired by device and seed; default: fedavg, the
    reference of all tables and charts."""
    columns: list[str] = field(default_factory=list)
    """Columns that the table `methods` shows, in the order given; its CSV has all. By name: metric,
    difference, kept, rounds, mb, seconds, rounds_to_reach, mb_to_reach, memory, worth_joining, helped, hurt,
    same, percentile, quartile1 to quartile4; default: the first five."""
    tune: int = 0
    """Number of trials to tune each method on validation data before the comparison, over the values that
    the method declares; 0: no tuning."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings for a single method and its variants, such as partition.proximal = 0.01 in
    [compare.settings.NAME]."""


@includes(Execution, Plan)
class Config:
    """A run."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    name: str = ""
    """Name of the run; default: the name of the config file."""
    out: str = ""
    """Folder of the run; default: the next free runs/NAME-N."""
    seed: int = 1
    """Random seed; everything random is derived from it."""
    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    personalize: PersonalizeConfig = field(default_factory=PersonalizeConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    evaluate: Evaluation = field(default_factory=Evaluation)
    report: ReportConfig = field(default_factory=ReportConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)
    made_with: Mapping[str, str] = field(default_factory=dict)
    """Command, versions and hashes, written by a run and compared when it is repeated."""
