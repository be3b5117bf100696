"""A run as frozen dataclasses, each field saying what it is.

Values are checked for their type when they are read; what they may be is checked by the objects that own
them, when the run is built.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from partita.methods import registry
from partita.server import registry as servers


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """What is learned."""

    kind: str = "digits"
    """digits (the quickstart's), image, text, speech, tabular, synthetic, or "package.module:function"
    returning a Task."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Every further key goes to that function."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model learns it."""

    name: str = ""
    """convnet, resnet, transformer, speech, or "package.module:function" returning a module; empty: the
    task's own model."""
    start: str = ""
    """A safetensors file to begin from: what fits by name and shape is loaded, and a run says what was."""
    start_names: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions to replace in that file's names, and by what: { "^backbone[.]" = "" }."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Every further key goes to that function."""


@dataclass(frozen=True, kw_only=True)
class PartitionConfig:
    """How the model is split after pretraining."""

    personal: str | list[str] = "output"
    """What belongs to each device: a name (none, full, norm, or one of the model's: input, output, adapter),
    a list of patterns, or "rest"."""
    shared: str | list[str] = "rest"
    """What all devices train together: a name of the model's, a list of patterns, or "rest" for all that no
    other part claims."""
    frozen: str | list[str] = field(default_factory=list)
    """What is neither trained nor sent, in any stage: a list of patterns, or "rest"."""
    proximal: float = 0.1
    """With `full`, how strongly a device's model is pulled towards the shared one (lambda)."""
    untie: bool = False
    """Give tied tensors that fall into different parts their own copies."""
    adapter_width: int | str = 0
    """With `adapter`, how wide adapters are inside, or "package.module:function" from a device's id to that;
    0: the paper's, 16 after linear layers and attention, all channels after convolutions."""
    dropout: float = 0.0
    """With which probability training drops each number that goes into a personal layer."""
    l2: float = 0.0
    """How strongly training pulls the personal part: (l2 / 2) ||v||^2 is added to the loss."""
    l2_to: Literal["zero", "start"] = "zero"
    """Where it pulls it: to `zero`, or to its `start`, which is pretrained or drawn."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Federated training of all of the model."""

    rounds: int = 100
    """How many rounds."""
    devices_per_round: int = 10
    """How many devices are asked in each round."""
    batch_size: int = 32
    """Examples in a step."""
    shared_lr: float = 0.1
    """The devices' learning rate of the shared part, before the schedule."""
    shared_epochs: int = 1
    """Passes over a device's training examples that update the shared part."""
    shared_steps: int = 0
    """Steps on the shared part, in place of epochs; 0: epochs."""
    schedule: str = "constant"
    """How learning rates change over rounds: constant, linear or exponential."""
    warmup: float = 0.1
    """With `linear`, the share of rounds that warm up."""
    halve_every: int = 500
    """With `exponential`, rounds from one halving to the next."""
    optimizer: str = "sgd"
    """The devices' optimizer: sgd, adamw, or "package.module:function" of parameter groups."""
    momentum: float = 0.0
    """The devices' momentum, for optimizers that have one."""
    weight_decay: float = 0.0
    """The devices' weight decay."""
    max_grad_norm: float = 0.0
    """The most that the norm of all that moves in a step may be; 0 does not clip."""
    server_optimizer: str = servers.DEFAULT
    """{server_optimizers}."""
    server_lr: float = 1.0
    """The server's learning rate."""
    server_momentum: float = 0.0
    """The server's momentum, for server optimizers that have one."""
    weights: Literal["examples", "equal"] = "examples"
    """How much a device counts in the mean: as its training `examples`, or `equal`."""
    proximal: float = 0.0
    """The strength mu of a proximal term that holds devices to the shared part that the server sent."""


@dataclass(frozen=True, kw_only=True)
class PersonalizeConfig(PretrainConfig):
    """Training of the shared and the personal part, from the pretrained model."""

    method: str = registry.DEFAULT
    """{methods}, or "package.module:thing", an own method (docs/how-to/own-method.md)."""
    personal_lr: float | None = None
    """The devices' learning rate of the personal part, before the schedule; left out: `shared_lr`."""
    personal_epochs: int = 1
    """Passes over a device's training examples that update the personal part."""
    personal_steps: int = 0
    """Steps on the personal part, in place of epochs; 0: epochs."""
    stateful: bool = True
    """Whether devices keep their personal part, and the state of their method, from one round to the next."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Every further key is a hyperparameter of the method."""


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Training of each evaluated device's personal part alone."""

    epochs: int = 5
    """Passes over a device's training examples; 0 leaves this stage out."""
    personal_lr: float = 0.01
    """The learning rate of the personal part."""
    batch_size: int = 32
    """Examples in a step."""
    optimizer: str = "sgd"
    """sgd, adamw, or "package.module:function" of parameter groups."""
    momentum: float = 0.0
    """The optimizer's momentum, where it has one."""
    weight_decay: float = 0.0
    """The optimizer's weight decay."""
    max_grad_norm: float = 0.0
    """The most that the norm of a step's gradient may be; 0 does not clip."""
    baseline: bool = False
    """Also finetune all of the pretrained model on every device, the paper's Finetune baseline; it is in the
    folder `finetune/` of the run."""
    baseline_lr: float | None = None
    """The learning rate of the Finetune baseline; left out: `personal_lr`."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Which devices are evaluated and finetuned, and how often."""

    devices: int | str = "all"
    """How many, a fixed sample; or "all"."""
    every: int = 0
    """Rounds from one evaluation to the next while training; 0: only at the end of each stage."""
    split: Literal["test", "validation"] = "test"
    """Which rows models are judged by; with `validation`, for tuning, test rows are not read."""
    choose: Literal["", "validation"] = ""
    """With `validation`, each device serves the better of the pretrained model and its own on the rows that
    `task.validation` holds out; reported as the stage `served`."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Who is told of a run's rounds while it goes on; nothing of it changes what comes out."""

    watchers: list[str] = field(default_factory=list)
    """Import paths "package.module:function" of watchers: each is called with a run's folder and its config,
    and returns what is told of every round, or a context manager that gives it (docs/how-to/watch-a-run.md).
    """
    tensorboard: bool = False
    """Whether rounds are also written as TensorBoard's events, to the folder `tensorboard/` of the run; needs
    partita[tensorboard]."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """What `partita compare` compares; a run alone has no use for it."""

    methods: list[str] | None = None
    """Methods by name or import path, "-stateless" behind one for devices that keep nothing between rounds;
    left out: the methods of the paper. The pretrained model, training on each device alone and as many
    further rounds without a personal part are always compared."""
    partitions: list[str] = field(default_factory=list)
    """What is personal, for methods whose name does not say: names, or patterns with spaces between; left
    out: those of input, output and adapter that the model names, and the config's own."""
    seeds: int = 5
    """How many, from `seed` on."""
    baseline: str = ""
    """The method that others are paired with, device by device and seed by seed; left out: finetuning of the
    whole model where it is compared, else further rounds without a personal part."""
    tune: int = 0
    """How many trials each method is tuned with on validation rows beforehand; 0: none."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of one method alone, stateless or not: [compare.settings.NAME] with
    partition.proximal = 0.01, for example."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run."""

    name: str = ""
    """What the run is called; left out: the config file's name."""
    out: str = ""
    """The run's folder; left out: the next free runs/NAME-N."""
    seed: int = 1
    """All randomness derives from it."""
    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    personalize: PersonalizeConfig = field(default_factory=PersonalizeConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)
    made_with: Mapping[str, str] = field(default_factory=dict)
    """What was typed, versions and hashes; written by a run, compared when it is made again."""
