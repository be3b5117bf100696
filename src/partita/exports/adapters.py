"""Pretrained models for programs without Partita: an adapter folder that peft opens, or a whole model.

Saved tensors carry no adapter's name, unlike live ones, and the base is left out, tied embeddings too:
whoever opens an adapter folder has the base already. A trained head is in the folder as one of peft's
`modules_to_save`.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from partita.errors import CannotDo, needed
from partita.exports.samples import all_inputs, largest_difference, output_of
from partita.exports.subject import Subject
from partita.models.heads import merge_second_head
from partita.models.hub import Source, find_model, load_model, quiet_transformers, read_model
from partita.models.lora import ADAPTER, lora_layers
from partita.models.pretrained import Pretrained
from partita.partition.common import common_names
from partita.tasks.model_text import read_tokenizer

_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TYPES = {"causal-lm": "CAUSAL_LM", "sequence-classification": "SEQ_CLS"}
"""peft's names for the kinds of models; it has none for images."""
_TOLERANCE = 1e-4
"""Adding B A to a weight rounds otherwise than adding what both compute."""


def write_adapter(subject: Subject, folder: Path) -> None:
    """Write an adapter folder for `PeftModel.from_pretrained`, after a check that it gives the same bits.

    Raises:
        CannotDo: the model has no LoRA, or trains more than LoRA and a head.
    """
    peft = needed("peft", by="an adapter folder", extra="hf")
    model = _pretrained(subject)
    if model.lora is None:
        raise CannotDo("It has no LoRA: `--merged` writes the whole model.")
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in common_names(model)}
    if others := [name for name in state if ".lora_" not in name and name not in model.head]:
        raise CannotDo(f"It trains `{others[0]}`, which is no LoRA: `--merged` writes the whole model.")
    heads = {_module(name, model.network) for name in state if ".lora_" not in name}
    if both := [name for name in state if ".base_layer." in name]:
        raise CannotDo(
            f"`{both[0].partition('.base_layer.')[0]}` is trained and has LoRA too, which no adapter "
            "folder can have: `--merged` writes the whole model."
        )
    layer = lora_layers(model)[0]  # All have the same rank and scale, which may be the device's own.
    plain = read_model(_source(model)).copied(shares=True)
    config = replace(model.lora, r=layer.r[ADAPTER], alpha=layer.lora_alpha[ADAPTER]).config(
        plain,
        base_model_name_or_path=model.path,
        task_type=_TYPES.get(model.kind),
        modules_to_save=sorted(heads) or None,
        inference_mode=True,
    )
    config.save_pretrained(folder)
    saved = {_saved_name(name): tensor.contiguous() for name, tensor in state.items()}
    safetensors.torch.save_file(saved, folder / _FILE, metadata={"format": "pt"})
    opened = copy.deepcopy(model)
    opened.network = peft.PeftModel.from_pretrained(plain, folder).get_base_model()
    _check(subject, opened.eval(), tolerance=0.0)


def write_merged(subject: Subject, folder: Path) -> None:
    """Write a whole model for `AutoModel...from_pretrained`, with LoRA added to its weights.

    Raises:
        CannotDo: it is no pretrained model, or predicts otherwise when it is opened.
    """
    model = _pretrained(subject)
    network = copy.deepcopy(model.network)
    _merge(network)
    merge_second_head(network)
    _as_plain(network)
    with quiet_transformers():
        network.save_pretrained(folder)
        if model.kind != "image-classification":
            read_tokenizer(str(find_model(model.path) / model.file)).save_pretrained(folder)
    opened = copy.deepcopy(model)
    opened.network = load_model(replace(_source(model), folder=folder, file="")).module
    _check(subject, opened.eval(), tolerance=_TOLERANCE)


def _pretrained(subject: Subject) -> Pretrained:
    if not isinstance(subject.model, Pretrained):
        raise CannotDo("It is no pretrained Hugging Face model: export it as safetensors.")
    return subject.model


def _source(model: Pretrained) -> Source:
    return Source(find_model(model.path).resolve(), model.file, model.kind, model.classes)


def _module(name: str, network: Any) -> str:
    """Return the module that a tensor of a head is saved with: the whole head, or a layer of the backbone."""
    path = name.removeprefix("network.")
    is_inside = path.startswith(f"{network.base_model_prefix}.")
    return path.rpartition(".")[0] if is_inside else path.partition(".")[0]


def _saved_name(name: str) -> str:
    """Return the name of a tensor in an adapter folder.

    >>> _saved_name("network.model.layers.1.self_attn.q_proj.lora_A.default.weight")
    'base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight'
    """
    return _PREFIX + name.removeprefix("network.").replace(f".{ADAPTER}.", ".")


def _merge(network: nn.Module) -> None:
    """Add LoRA to the weights of a network that has its own, in place, and remove its layers."""
    tuners = needed("peft.tuners.lora", by="a merged model", extra="hf")
    modules: dict[str, Any] = dict(network.named_modules())
    for name, layer in modules.items():
        if isinstance(layer, tuners.LoraLayer):
            layer.merge(safe_merge=True)
            owner, _, attribute = name.rpartition(".")
            setattr(network.get_submodule(owner), attribute, layer.get_base_layer())


def _as_plain(network: Any) -> None:
    """Let a network be what it is without LoRA and GGUF, in place; a head of its own is not tied any more."""
    for attribute in ("quantization_config", "_pre_quantization_dtype"):
        vars(network.config).pop(attribute, None)
    for attribute in ("hf_quantizer", "quantization_method", "peft_config"):
        vars(network).pop(attribute, None)
    network.is_quantized = False
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    if head is not None and _is_untied(head, embedding):
        network.config.tie_word_embeddings = False


def _is_untied(head: nn.Module, embedding: nn.Module) -> bool:
    one, other = head.get_parameter("weight"), embedding.get_parameter("weight")
    return one is not other and one.shape == other.shape and not _are_equal(one, other)


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return bool((one == other).all())


def _check(subject: Subject, opened: nn.Module, *, tolerance: float) -> None:
    """Raise if what was written, opened as another program would, predicts otherwise than the model."""
    for inputs in all_inputs(subject.task, subject.model, subject.examples):
        difference = largest_difference(output_of(subject.model, inputs), output_of(opened, inputs))
        if difference > tolerance:
            raise CannotDo(f"Opened again, it predicts otherwise, by {difference:.1g} of the largest value.")
