"""LoRA: low-rank changes B A beside the frozen weights of linear layers; peft's layers in a model of ours.

LoRA: Low-Rank Adaptation of Large Language Models
    E. J. Hu, Y. Shen, P. Wallis, Z. Allen-Zhu, Y. Li, S. Wang, L. Wang, W. Chen. ICLR 2022.
    https://arxiv.org/abs/2106.09685

Selective Aggregation for Low-Rank Adaptation in Federated Learning (FedSA-LoRA: A shared, B personal)
    P. Guo, S. Zeng, Y. Wang, H. Fan, F. Wang, L. Qu. ICLR 2025.
    https://arxiv.org/abs/2410.01463

Improving LoRA in Privacy-Preserving Federated Learning (FFA-LoRA: A frozen)
    Y. Sun, Z. Li, Y. Li, B. Ding. ICLR 2024.
    https://arxiv.org/abs/2403.12313
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from partita.errors import needed

ADAPTER = "default"
"""The name of the adapter: live tensors carry it (`q_proj.lora_A.default.weight`), saved ones do not."""
A, B = f"*.lora_A.{ADAPTER}.*", f"*.lora_B.{ADAPTER}.*"
"""Patterns of the two factors."""


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Where a model gets LoRA, and how large it is."""

    r: int = 8
    """The rank of the changes."""
    alpha: float = 16
    """A change is scaled by alpha / r, also where a device has another rank."""
    targets: Sequence[str] = ()
    """The names of the linear layers, such as q_proj; empty: peft's choice for the architecture."""
    layers: Sequence[int] = ()
    """The numbers of the blocks that get LoRA, from 0, or from the end with -1; empty: all."""

    def __post_init__(self) -> None:
        if isinstance(self.r, bool) or not isinstance(self.r, int) or self.r < 1:
            raise ValueError(f"`lora.r` must be a whole number, at least 1, got {self.r!r}.")
        if not isinstance(self.alpha, int | float) or not 0 < self.alpha < float("inf"):
            raise ValueError(f"`lora.alpha` must be a finite number above 0, got {self.alpha!r}.")
        for name, kind, what in (("targets", str, "names"), ("layers", int, "whole numbers")):
            given = getattr(self, name)
            if isinstance(given, str) or not all(type(each) is kind for each in given):
                raise ValueError(f"`lora.{name}` must be a list of {what}, got {given!r}.")

    def config(self, network: nn.Module, **others: Any) -> Any:
        """Return the settings as peft has them.

        Args:
            network: the network that gets LoRA.
            others: further settings of `peft.LoraConfig`.
        """
        peft = needed("peft", by="`model.lora`", extra="hf")
        return peft.LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            target_modules=list(self.targets) or None,
            layers_to_transform=_layers(self.layers, network) or None,
            fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in network.modules()),
            **others,
        )


def lora_from(values: Mapping[str, Any]) -> Lora:
    """Return the settings with some values.

    Raises:
        ValueError: there are no keys, a key does not exist, or a value cannot be used.
    """
    known = Lora.__dataclass_fields__
    if not isinstance(values, Mapping):
        raise ValueError(f"`lora` must be a table with the keys {', '.join(known)}, got {values!r}.")
    if unknown := [name for name in values if name not in known]:
        raise ValueError(f"There is no key `lora.{unknown[0]}`. The keys: {', '.join(known)}.")
    return Lora(**values)


def add_lora(network: nn.Module, lora: Lora) -> Any:
    """Add LoRA to a network, in place, with random A and B = 0, and return peft's settings."""
    peft = needed("peft", by="`model.lora`", extra="hf")
    config = lora.config(network)
    try:
        peft.inject_adapter_in_model(config, network, ADAPTER)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"`lora.targets` = {list(lora.targets)} cannot be used: {reason}") from error
    return config


def resize_lora(model: nn.Module, *, width: int) -> nn.Module:
    """Give all LoRA layers of a model another rank, in place: they begin again, with random A and B = 0.

    Their scale stays: what a small rank learns means the same when it is padded with zeros to a large one.
    """
    tuners = needed("peft.tuners.lora", by="`model.lora`", extra="hf")
    for layer in lora_layers(model):
        trains_a = layer.lora_A[ADAPTER].weight.requires_grad
        config = tuners.LoraConfig(r=width, lora_alpha=layer.scaling[ADAPTER] * width)
        layer.update_layer(ADAPTER, width, lora_alpha=config.lora_alpha, config=config)
        layer.lora_A[ADAPTER].weight.requires_grad_(trains_a)
    return model


def lora_layers(model: nn.Module) -> list[Any]:
    """Return peft's layers in a model."""
    tuners = needed("peft.tuners.lora", by="`model.lora`", extra="hf")
    return [module for module in model.modules() if isinstance(module, tuners.LoraLayer)]


def _layers(numbers: Sequence[int], network: Any) -> list[int]:
    """Return the numbers of blocks from 0 on."""
    count = network.config.get_text_config().num_hidden_layers if numbers else 0
    for number in numbers:
        if not -count <= number < count:
            raise ValueError(f"`lora.layers` must be from {-count} to {count - 1}, got {number}.")
    return sorted({number % count for number in numbers})
