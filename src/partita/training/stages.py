"""What a stage works with: how the model is split, where u and v begin, what the devices do."""

from dataclasses import dataclass

import torch

from partita.device.visit import Role
from partita.methods import registry
from partita.methods.carried import sent_by
from partita.methods.sgd import SGD
from partita.params import Params, cloned, digest_of
from partita.partition import Partition, Parts
from partita.partition.selection import tensors_of
from partita.protocol import DeviceId, Stage, Start
from partita.runs.journal import Record
from partita.server.optimizers import Averaging
from partita.server.round import Server, State
from partita.tasks.build import build_model
from partita.tasks.task import Task
from partita.training.plan import Plan, Training


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a stage works with on the server's side."""

    stage: Stage
    server: Server
    state: State
    frozen: Params
    sent: frozenset[str]
    """What the method sends besides the shared part."""

    @property
    def shared(self) -> Params:
        """u, the shared part, without what a method sends besides it."""
        return {name: tensor for name, tensor in self.state.shared.items() if name not in self.sent}

    @property
    def left_behind(self) -> dict[str, torch.Tensor]:
        """All that the stage leaves on the server: w_g whole after pretraining, u after that."""
        whole = self.frozen if self.stage is Stage.PRETRAINED else {}
        return {**self.shared, **whole}


class Stages:
    """Opens the stages of a run, each from what the one before has left in the record.

    Pretraining shares everything but what is frozen; the later stages split the model as asked.
    """

    def __init__(self, task: Task, partition: Partition, plan: Plan, *, seed: int, record: Record) -> None:
        self.task = task
        self.plan = plan
        self.seed = seed
        self.record = record
        self.partition = partition
        self._starts: dict[int, tuple[Partition, Start]] = {}
        model = build_model(task, seed=seed)
        state = tensors_of(model)
        absent = [name for name in partition.names("frozen") if name not in state]
        if absent and plan.training(Stage.PRETRAINED):
            raise ValueError(
                f"`{absent[0]}` is frozen and has no such name before `prepare`: pretraining would move it."
            )
        frozen = {id(state[name]) for name in partition.names("frozen") if name in state}
        self.everything = Partition(model, frozen=(lambda _, tensor: id(tensor) in frozen) if frozen else ())

    def roles(self) -> dict[Stage, Role]:
        """Return what devices do in each stage."""
        finetune = self.plan.finetune
        return {
            Stage.PRETRAINED: _role(self.everything, self.plan.pretrain),
            Stage.PERSONALISED: _role(self.partition, self.plan.personalize),
            Stage.FINETUNED: Role(
                partition=self.partition,
                local=registry.find(registry.REFERENCE).update,
                optimizer=finetune.optimizer if finetune else SGD,
            ),
        }

    def open(self, stage: Stage, state: State | None = None) -> Scene:
        """Return the scene of a stage: at its beginning, or at `state` where a run is resumed."""
        parts = self._parts(stage)
        training = self.plan.training(stage)
        partition = self._partition_of(stage)
        sent = sent_by(training.method.local, partition, parts.shared) if training else {}
        server = Server(
            optimizer=training.server if training else Averaging(),
            buffers=partition.buffers("shared"),
            sent={name: each.aggregation for name, each in sent.items()},
            devices=len(self.task.devices),
        )
        return Scene(
            stage=stage,
            server=server,
            state=server.begin({**parts.shared, **{name: each.tensor for name, each in sent.items()}})
            if state is None
            else state,
            frozen=parts.frozen,
            sent=frozenset(sent),
        )

    def start_of(self, stage: Stage, device: DeviceId) -> Start:
        """Return what a device begins a stage with: one draw for all that have the same model."""
        partition = self._partition_of(stage).on(device)
        if id(partition) not in self._starts:
            parts = self._begin(stage, partition)
            start = Start(
                digest=digest_of(parts.personal),
                personal=parts.personal,
                frozen=digest_of(parts.frozen),
            )
            self._starts[id(partition)] = partition, start
            if self._partition_of(stage).by_device is not None:
                self.record.save_shared(f"start-{start.digest[:8]}", parts.personal)
        return self._starts[id(partition)][1]

    def _partition_of(self, stage: Stage) -> Partition:
        return self.everything if stage is Stage.PRETRAINED else self.partition

    def _parts(self, stage: Stage) -> Parts:
        """Return the parts of the model with which a stage begins."""
        parts = self._begin(stage, self._partition_of(stage))
        if stage is Stage.PRETRAINED:
            return parts
        if self.partition.by_device is None:
            self.record.save_shared("start", parts.personal)
        if stage is Stage.FINETUNED:
            if self.plan.training(Stage.PERSONALISED) is None:
                self.record.save_shared(Stage.PERSONALISED, parts.shared)
            shared = self.record.load_shared(Stage.PERSONALISED)
            parts = Parts(shared, parts.personal, parts.frozen)
        return parts

    def _begin(self, stage: Stage, partition: Partition) -> Parts:
        """Return the parts of the initial model, of the pretrained one after the first stage."""
        pretrained = None if stage is Stage.PRETRAINED else self.record.load_shared(Stage.PRETRAINED)
        parts = partition.of(build_model(self.task, partition, seed=self.seed, state=pretrained))
        return Parts(cloned(parts.shared), cloned(parts.personal), cloned(parts.frozen))


def _role(partition: Partition, training: Training | None) -> Role:
    if training is None:
        return Role(partition=partition, local=registry.find(registry.REFERENCE).update, optimizer=SGD)
    method = training.method
    return Role(
        partition=partition,
        local=method.local,
        optimizer=method.optimizer,
        stateful=method.stateful,
    )
