"""Hugging Face models in a folder or on the hub: read from safetensors or GGUF, once in a process.

No pickle is read, and no code that comes with a model is run. The tensors that were read are common to all
models of the process (`partition.common`); those that a task adds, such as a classifier head, are not.
"""

import copy
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from glob import escape
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partita.errors import ConfigError, needed, one_line
from partita.partition.common import common_memo, make_common

FOLDER = "PARTITA_PRETRAINED"
"""The environment variable with a folder of pretrained models."""
_BY = '`model.name` = "hf"'
_CLASSES = {
    "causal-lm": "AutoModelForCausalLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
}
"""The classes of transformers, by kind of model."""
KINDS = tuple(_CLASSES)
"""The kinds of models."""
_READ = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
"""The files of a model on the hub that are downloaded."""
_ADAPTER = "adapter_config.json"
"""The file by which transformers knows an adapter, which it would read from a pickle too."""
_POOLER = "pooler."
"""The module of a backbone that classifiers use, and that is often not pretrained."""
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class Source:
    """A model in a folder, and what it is used for."""

    folder: Path
    file: str
    """A GGUF file in the folder; empty for safetensors."""
    kind: str
    classes: int
    """The number of classes, 0 for the model's own or for none."""


@dataclass(frozen=True, eq=False)
class Network:
    """A network of transformers, and the tensors of it that no file has."""

    module: Any
    new: tuple[str, ...]
    """Names of the tensors that have to be drawn: those of a head that the file lacks."""
    head: tuple[str, ...]
    """Names of the tensors outside the architecture's backbone, and of the new ones."""

    def copied(self, *, shares: bool) -> Any:
        """Return a copy of the module, around the same common tensors or with tensors of its own."""
        return copy.deepcopy(self.module, common_memo(self.module) if shares else {})


def find_model(path: str, file: str = "") -> Path:
    """Return the folder of a model: a local one, one in $PARTITA_PRETRAINED, or a download from the hub.

    Args:
        path: the folder, or the id of a model on the hub.
        file: a GGUF file in it, which is then downloaded instead of safetensors.

    Raises:
        ConfigError: there is none.
    """
    places = [Path(path), *(Path(root) / path for root in [os.environ.get(FOLDER)] if root)]
    for place in places:
        if place.is_dir():
            return place
    if not _HUB_ID.fullmatch(path):
        raise ConfigError(f"There is no folder `{path}`, and it is no id of the Hugging Face hub.")
    hub = needed("huggingface_hub", by=_BY, extra="hf")
    try:
        return Path(hub.snapshot_download(path, allow_patterns=[escape(file)] if file else list(_READ)))
    except Exception as error:
        raise ConfigError(
            f"`model.path` = {path!r} is no folder, here or in ${FOLDER}, and the Hugging Face hub does not "
            f"give it: {one_line(str(error))[:200]}"
        ) from error


def files_of(folder: Path, file: str = "") -> list[Path]:
    """Return the files that a model and its tokenizer are read from, by name.

    Raises:
        ConfigError: there are no weights in a format that is read.
    """
    if (folder / _ADAPTER).is_file():
        raise ConfigError(f"`{folder}` is an adapter, with `{_ADAPTER}`: `model.path` must be a whole model.")
    if file:
        if not file.endswith(".gguf") or not (folder / file).is_file():
            raise ConfigError(f"`model.file` must be a GGUF file in `{folder}`, got {file!r}.")
        return [folder / file]
    found = sorted({path for pattern in _READ for path in folder.glob(pattern) if path.is_file()})
    if not any(path.suffix == ".safetensors" for path in found):
        gguf = [path.name for path in sorted(folder.glob("*.gguf"))]
        hint = f" Set `model.file` to {gguf[0]!r}." if gguf else " Pickles, such as *.bin, are not read."
        raise ConfigError(f"`{folder}` has no weights as *.safetensors.{hint}")
    return found


@cache
def read_model(source: Source) -> Network:
    """Return the network of a model; a process reads it once, and hashes it."""
    return load_model(source)


def load_model(source: Source) -> Network:
    """Read the network of a model, with its weights in float32.

    Raises:
        ConfigError: it cannot be read.
    """
    files_of(source.folder, source.file)
    module, report = _read(source)
    state = module.state_dict(keep_vars=True)
    new = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])} & state.keys()
    prefix, name = f"{module.base_model_prefix}.", type(module).__name__
    backbone = [each for each in state if each.startswith(prefix)]
    if not backbone:
        raise ConfigError(f"A {name} cannot be used: no name tells its backbone from its head.")
    # A language model lacks nothing, a classifier its head, and often the head of the backbone, a pooler.
    pretrained = [each for each in backbone if not each.startswith(f"{prefix}{_POOLER}")]
    if lost := [each for each in (state if source.kind == "causal-lm" else pretrained) if each in new]:
        raise ConfigError(
            f"The weights in `{source.folder}` are not those of a {name}: `{lost[0]}` and {len(lost) - 1} "
            f"others of {len(state)} tensors are missing, or have other shapes."
        )
    head = tuple(each for each in state if each in new or not each.startswith(prefix))
    trained = () if source.kind == "causal-lm" else head
    make_common(tensor for name, tensor in state.items() if name not in trained)
    return Network(module, tuple(name for name in state if name in new), head)


def _read(source: Source) -> tuple[Any, Any]:
    transformers = needed("transformers", by=_BY, extra="hf")
    if source.file:
        needed("gguf", by="`model.file`", extra="hf")
    options: dict[str, Any] = {"gguf_file": source.file} if source.file else {"use_safetensors": True}
    if source.classes:
        options |= {"num_labels": source.classes, "ignore_mismatched_sizes": True}
    try:
        with quiet_transformers():
            return getattr(transformers, _CLASSES[source.kind]).from_pretrained(
                source.folder,
                dtype=torch.float32,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = one_line(str(error))[:300]
        raise ConfigError(
            f"The model in `{source.folder}` cannot be read as {source.kind}: {reason}"
        ) from error


def draw(network: nn.Module, names: tuple[str, ...]) -> None:
    """Draw tensors by name, in place: matrices from a normal distribution, as transformers draws heads."""
    std = getattr(network.config, "initializer_range", None) or 0.02
    state = network.state_dict(keep_vars=True)
    with torch.no_grad():
        for name in names:
            if state[name].dim() > 1:
                nn.init.normal_(state[name], std=std)
            else:
                nn.init.constant_(state[name], 0.0 if name.endswith("bias") else 1.0)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Let transformers show no progress bars and no warnings in this block."""
    logging = needed("transformers", by=_BY, extra="hf").utils.logging
    level, shows = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The progress bar of GGUF heeds none of these.
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        if shows:
            logging.enable_progress_bar()
