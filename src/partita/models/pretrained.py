"""A pretrained Hugging Face model, frozen or not, with LoRA or without."""

import copy
import sys
from collections.abc import Mapping, Sequence
from glob import escape
from typing import Any

import torch
from torch import Tensor, nn

from partita.models.adapters import Resizable
from partita.models.hub import KINDS, Source, draw, find_model, read_model
from partita.models.lora import A, B, add_lora, lora_from, resize_lora
from partita.partition.common import common_memo

PADDING = -100
"""In the place of a token where a text has ended."""
_EVALUATED = 32
"""Texts in one pass of an evaluation: the scores of all tokens of the vocabulary take much memory."""


class Pretrained(nn.Module):
    """A pretrained Hugging Face model, from safetensors or GGUF.

    Args:
        path: a folder, which may be in $PARTITA_PRETRAINED, or the id of a model on the Hugging Face hub.
        file: a GGUF file in the folder; empty: safetensors.
        kind: causal-lm, sequence-classification or image-classification.
        lora: LoRA beside the frozen weights, { r = 8, alpha = 16, targets = ["q_proj", "v_proj"], layers =
            [-2, -1] }; not set: none. `targets` are names of linear layers (by default peft's choice),
            `layers` the numbers of blocks (by default all).
        ffa: FFA-LoRA: A stays as it is drawn, and B alone is trained.
        freeze: whether the pretrained weights are frozen; a classifier head is trained in any case.
        classes: the number of classes of a classification; 0: that of the model.
    """

    def __init__(
        self,
        *,
        path: str,
        file: str = "",
        kind: str = "causal-lm",
        lora: Mapping[str, Any] | None = None,
        ffa: bool = False,
        freeze: bool = True,
        classes: int = 0,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"`kind` must be one of {', '.join(KINDS)}, got {kind!r}.")
        if ffa and lora is None:
            raise ValueError("`ffa` needs `lora`: it freezes the A of LoRA.")
        self.kind, self.ffa = kind, ffa
        self.path, self.file = path, file
        self.classes = 0 if _is_lm(kind) else classes
        self.lora = None if lora is None else lora_from(lora)
        found = read_model(Source(find_model(path).resolve(), file, kind, self.classes))
        self.network = found.copied(shares=freeze)
        draw(self.network, found.new)
        self.head = self._train(found.head, freeze=freeze)

    def _train(self, head: Sequence[str], *, freeze: bool) -> tuple[str, ...]:
        """Add LoRA, let the right tensors take a gradient, in place, and return the head's names."""
        if self.lora is not None:
            add_lora(self.network, self.lora)
        state = self.network.state_dict()
        live = [name if name in state else ".base_layer.".join(name.rsplit(".", 1)) for name in head]
        trained = () if _is_lm(self.kind) else live
        for name, parameter in self.network.named_parameters():
            is_lora = ".lora_A." in name or ".lora_B." in name
            is_kept = self.ffa and ".lora_A." in name
            parameter.requires_grad_((is_lora and not is_kept) or not (is_lora or freeze) or name in trained)
        return tuple(f"network.{name}" for name in live)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pretrained":
        """Return a copy around the same pretrained base, which nothing changes."""
        memo |= common_memo(self)
        memo[id(self)] = copied = type(self).__new__(type(self))
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    @property
    def parts(self) -> Mapping[str, Sequence[str] | Resizable]:
        """LoRA's matrices, B alone, and the head."""
        head = {"head": [escape(name) for name in self.head]}
        if self.lora is None:
            return head
        both = Resizable((B,) if self.ffa else (A, B), resize_lora)
        return {"lora": both, "lora_b": (B,), **head}

    def forward(self, inputs: Tensor, targets: Tensor | None = None, *, at: Tensor | None = None) -> Tensor:
        """Return the scores of classes, or of the next token; with targets, the loss of each token.

        Args:
            inputs: normalized images (image, channel, height, width), or tokens (text, position), with
                `PADDING` after the end of a text.
            targets: for a causal language model, the next tokens, with `PADDING` where none counts. Then the
                result is, for each text and position, the loss and the most likely token.
            at: for a causal language model, whether scores are wanted at each position; then the result has
                those alone, of shape (position, token).
        """
        self._check(inputs)
        if self.kind == "image-classification":
            return self.network(pixel_values=inputs).logits
        if self.kind == "sequence-classification":
            mask = (inputs != PADDING).long()
            return self.network(input_ids=self._padded(inputs), attention_mask=mask).logits
        if targets is None:
            return self._scores(inputs, at)
        if self.training:
            return self._losses(inputs, targets)
        pairs = zip(inputs.split(_EVALUATED), targets.split(_EVALUATED), strict=True)
        return torch.cat([self._losses(*_trimmed(*pair), length=inputs.shape[1]) for pair in pairs])

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a text."""
        return getattr(self.network.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize

    def _check(self, inputs: Tensor) -> None:
        """Raise if inputs are not of the model's kind, or too long."""
        takes_images = self.kind == "image-classification"
        if inputs.is_floating_point() != takes_images or inputs.dim() != (4 if takes_images else 2):
            given = f"{inputs.dim()} dimensions of {inputs.dtype}"
            raise ValueError(
                f"A model of kind {self.kind!r} takes {'images' if takes_images else 'tokens'}, got {given}: "
                "`model.kind` must be one that fits the task."
            )
        if not takes_images and inputs.shape[1] > self.max_length:
            raise ValueError(f"A text must have at most {self.max_length} tokens, got {inputs.shape[1]}.")

    def _padded(self, tokens: Tensor) -> Tensor:
        """Return tokens with the model's own padding."""
        config = self.network.config.get_text_config()
        if config.pad_token_id is None:
            end = config.eos_token_id
            config.pad_token_id = (end[0] if isinstance(end, list) else end) or 0
        return tokens.masked_fill(tokens == PADDING, config.pad_token_id)

    def _losses(self, tokens: Tensor, targets: Tensor, *, length: int = 0) -> Tensor:
        """Return the loss and the most likely token at each position, 0 where none counts."""
        counted = targets != PADDING
        scores = self._scores(tokens, counted)
        losses = nn.functional.cross_entropy(scores, targets[counted], reduction="none")
        found = losses.new_zeros(len(tokens), max(length, tokens.shape[1]), 2)
        found[:, : tokens.shape[1]][counted] = torch.stack([losses, scores.argmax(dim=-1).to(losses)], dim=-1)
        return found

    def _scores(self, tokens: Tensor, at: Tensor | None) -> Tensor:
        """Return the scores of the next token at all positions, or at those that are wanted."""
        # Nothing looks at a later token, so that padding at the end needs no mask.
        inputs: dict[str, Any] = {"input_ids": self._padded(tokens), "use_cache": False}
        if at is None:
            return self.network(**inputs).logits
        head = self.network.get_output_embeddings()
        with head.register_forward_pre_hook(lambda _, args: (args[0][at], *args[1:])):
            return self.network(**inputs).logits


def _is_lm(kind: str) -> bool:
    return kind == "causal-lm"


def _trimmed(tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return texts without the padding that all of them have at the end."""
    longest = max(1, int((tokens != PADDING).sum(dim=1).max()))
    return tokens[:, :longest], targets[:, :longest]
