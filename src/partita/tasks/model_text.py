"""Texts in the tokens of a pretrained model: the next token, or a class."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partita.data.classes import class_names, count_classes
from partita.data.examples import Batch
from partita.data.rows import BadRow, Rows, value_of
from partita.data.table import DeviceTable
from partita.errors import ConfigError, needed, one_line
from partita.models.hub import find_model, quiet_transformers
from partita.models.pretrained import PADDING, Pretrained
from partita.tasks.classification_metrics import classification_metrics
from partita.tasks.derived import check_agrees, read_derived
from partita.tasks.metrics import Metric, NamedMetric, select
from partita.tasks.predictor import Answer, Predictor, class_answers, classes_of
from partita.tasks.task import Task


@dataclass(frozen=True)
class Tokens:
    """A model's own tokenizer, and how texts are cut."""

    tokenizer: Any
    column: str
    max_length: int
    prefix: tuple[int, ...] = ()
    """The tokens that a text to be continued follows."""

    def text(self, row: Mapping[str, Any]) -> list[int]:
        """Return the tokens of a row's text, between the prefix and the last token of a text, not cut."""
        plain = self.tokenizer(value_of(row, self.column, str), add_special_tokens=False)["input_ids"]
        return [*self.prefix, *plain, self.tokenizer.eos_token_id]

    def sentence(self, row: Mapping[str, Any]) -> list[int]:
        """Return the tokens of a row's text as a classifier gets them, cut to the maximum length."""
        text = value_of(row, self.column, str)
        return self.tokenizer(text, truncation=True, max_length=self.max_length)["input_ids"]

    def padded(self, texts: Sequence[Sequence[int]], length: int) -> Tensor:
        """Return texts as a tensor (text, position), each cut or padded to a length."""
        rows = [[*text[:length], *[PADDING] * (length - len(text))] for text in texts]
        return torch.tensor(rows, dtype=torch.long).view(-1, length)


def tokens_of(tokenizer: str, column: str, max_length: int, prefix: str = "") -> Tokens:
    """Return the tokenizer in a model's folder or GGUF file.

    Args:
        tokenizer: the folder or the file.
        column: the column of texts.
        max_length: the maximum number of input tokens.
        prefix: what a text to be continued follows; empty: the tokenizer's first token of a text.

    Raises:
        ConfigError: it cannot be read.
        ValueError: the prefix leaves no place for a text.
    """
    found = read_tokenizer(tokenizer)
    begin = found.eos_token_id if found.bos_token_id is None else found.bos_token_id
    first = [] if begin is None else [begin]
    if prefix:
        first = found(prefix, add_special_tokens=False)["input_ids"]
    if len(first) > max_length:
        raise ValueError(f"`prefix` must have at most `max_length` = {max_length} tokens, got {len(first)}.")
    return Tokens(found, column, max_length, tuple(first))


@cache
def read_tokenizer(path: str) -> Any:
    """Return the tokenizer in a folder or GGUF file; a process reads it once.

    Raises:
        ConfigError: it cannot be read.
    """
    transformers = needed("transformers", by="`task.tokenizer`", extra="hf")
    # Workers are forked, after which the tokenizer's own threads are of no use.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    file = Path(path).name if path.endswith(".gguf") else ""
    folder = Path(path).parent if file else find_model(path)
    options = {"gguf_file": file} if file else {}
    try:
        with quiet_transformers():
            return transformers.AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True, **options
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(
            f"`task.tokenizer`, `{path}`, cannot be read: {one_line(str(error))[:300]}"
        ) from error


def next_token_task(source: DeviceTable, tokens: Tokens, path: str, metrics: Sequence[str]) -> Task:
    """Return a task of causal language modeling.

    Args:
        source: a table by device.
        tokens: the model's tokenizer.
        path: where it comes from, which is also the model where a config names none.
        metrics: the names of metrics.
    """
    if tokens.tokenizer.eos_token_id is None:
        raise ValueError(f"The tokenizer in `{path}` has no token for the end of a text.")
    return Task(
        model=partial(Pretrained, **_model_options(path), kind="causal-lm"),
        loss=_token_loss,
        metrics=select(metrics, _METRICS, of="language modeling"),
        devices=source.devices(partial(_sequences, tokens=tokens)),
        predict=_predict_tokens,
        weight=lambda targets: int((targets != PADDING).sum()),
        model_options={"kind": "causal-lm"},
        skipped=source.skipped,
        predictor=Predictor(
            columns=(tokens.column,),
            examples=partial(_beginnings, tokens=tokens),
            predict=partial(_next_tokens, tokens=tokens),
            kinds={"prediction": str, "probability": float},
            preprocessing={
                "max_length": tokens.max_length,
                "tokenizer": "the model's",
                "prefix": tokens.tokenizer.decode(tokens.prefix),
            },
        ),
    )


def class_task(
    source: DeviceTable,
    tokens: Tokens,
    path: str,
    metrics: Sequence[str],
    *,
    label: str,
    derived: str,
    classes: int,
) -> Task:
    """Return a task of text classification; the arguments are those of `next_token_task` and of `text`."""
    values = read_derived("text", derived) or {
        "kind": "text",
        "classes": classes or count_classes(source, label),
    }
    check_agrees("classes", classes, values)
    classes = values["classes"]
    names = class_names(source, label, classes)
    kind = "sequence-classification"
    return Task(
        model=partial(Pretrained, **_model_options(path), kind=kind, classes=classes),
        loss=_class_loss,
        metrics=classification_metrics(metrics, classes),
        devices=source.devices(partial(_labeled, tokens=tokens, label=label, classes=classes)),
        model_options={"kind": kind, "classes": classes},
        skipped=source.skipped,
        derived=values,
        predictor=Predictor(
            columns=(tokens.column,),
            examples=partial(_labeled, tokens=tokens, label="", classes=classes),
            predict=lambda model, batch: class_answers(model(batch[0]), names),
            kinds=classes_of(names),
            preprocessing={"max_length": tokens.max_length, "tokenizer": "the model's"},
        ),
    )


def _model_options(path: str) -> dict[str, str]:
    file = Path(path).name if path.endswith(".gguf") else ""
    return {"path": str(Path(path).parent), "file": file} if file else {"path": path}


def _sequences(rows: Rows, *, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Return the input tokens and the next tokens, each (text, position); a prefix is no target."""
    texts = rows.parse(tokens.text)
    inputs = tokens.padded([text[:-1] for text in texts], tokens.max_length)
    given = len(tokens.prefix)
    targets = [[*[PADDING] * (given - 1), *text[given:]] for text in texts]
    return inputs, tokens.padded(targets, tokens.max_length)


def _token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean loss of a token."""
    inputs, targets = batch
    return model(inputs, targets)[..., 0].sum() / (targets != PADDING).sum()


def _predict_tokens(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the losses of the targets and the most likely tokens, and the targets."""
    inputs, targets = batch
    return model(inputs, targets).cpu().double(), targets


def token_accuracy(predictions: Tensor, targets: Tensor) -> float:
    """Return the share of correctly predicted tokens, the end of a text among them.

    Args:
        predictions: the loss of the target and the most likely token, of shape (text, position, 2).
        targets: the tokens, of shape (text, position).
    """
    counted = targets != PADDING
    return (predictions[..., 1] == targets)[counted].double().mean().item()


def token_perplexity(predictions: Tensor, targets: Tensor) -> float:
    """Return exp(mean loss of a token); the arguments are those of `token_accuracy`."""
    return predictions[..., 0][targets != PADDING].mean().exp().item()


_METRICS = {
    "accuracy": NamedMetric("accuracy", Metric(token_accuracy)),
    "perplexity": NamedMetric("perplexity", Metric(token_perplexity, "down")),
}


def _beginnings(rows: Rows, *, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Return the tokens of texts that go on, cut where they are too long, and the number of these."""
    texts = [_last_tokens(text[:-1], tokens) for text in rows.parse(tokens.text)]
    return tokens.padded(texts, tokens.max_length), torch.tensor([len(text) for text in texts])


def _last_tokens(text: list[int], tokens: Tokens) -> list[int]:
    """Return the prefix of a text and as many of its last tokens as fit."""
    given, surplus = len(tokens.prefix), max(0, len(text) - tokens.max_length)
    return [*text[:given], *text[given + surplus :]]


def _next_tokens(model: nn.Module, batch: Batch, *, tokens: Tokens) -> list[Answer]:
    """Return the most likely next token of each text."""
    inputs, lengths = batch
    # The scores of all positions would take much memory.
    is_last = torch.arange(inputs.shape[1]) == lengths[:, None] - 1
    scores = model(inputs, at=is_last).double().softmax(dim=1)
    best = scores.max(dim=1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{"prediction": tokens.tokenizer.decode([token]), "probability": share} for token, share in pairs]


def _labeled(rows: Rows, *, tokens: Tokens, label: str, classes: int) -> tuple[Tensor, Tensor]:
    """Return the tokens of texts and their labels, 0 where there is no column of labels."""
    parsed = rows.parse(lambda row: (tokens.sentence(row), _label_of(row, label, classes)))
    texts = tokens.padded([text for text, _ in parsed], tokens.max_length)
    return texts, torch.tensor([own for _, own in parsed], dtype=torch.long)


def _label_of(row: Mapping[str, Any], column: str, classes: int) -> int:
    if not column:
        return 0
    label = value_of(row, column, int)
    if not 0 <= label < classes:
        raise BadRow(f"`{column}` must be from 0 to {classes - 1}, got {label}")
    return label


def _class_loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)
