"""Next-word prediction, or classification in a model's own tokens, from a table of texts by device."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partita.data.examples import Batch
from partita.data.options import keys_of, options_of
from partita.data.rows import Rows, value_of
from partita.data.table import DeviceTable
from partita.errors import ConfigError, raise_fault
from partita.models.transformer import NextWordTransformer
from partita.tasks.derived import read_derived
from partita.tasks.metrics import Metric, NamedMetric, Undefined, select
from partita.tasks.model_text import class_task, next_token_task, tokens_of
from partita.tasks.predictor import Answer, Predictor
from partita.tasks.task import Task

SPECIAL = ("<pad>", "<oov>", "<bos>", "<eos>")
"""The special tokens: padding, a word out of vocabulary, the beginning and the end of a text."""
PAD, OOV, BOS, EOS = range(len(SPECIAL))
_NONE = -100
"""A target that does not count: no class for methods that count or memorize classes."""


def text(
    *,
    data: str,
    vocabulary_size: int = 10_000,
    vocabulary: str = "",
    max_length: int = 20,
    lowercase: bool = True,
    tokenizer: str = "",
    prefix: str = "",
    label: str = "",
    classes: int = 0,
    text: str = "text",
    metrics: Sequence[str] = ("accuracy",),
    derived: str = "",
    unseen: float = 0.0,
    **table: Any,
) -> Task:
    """Return a task of next-word prediction; in the tokens of a pretrained model, or of classes, if asked.

    Args:
        data: a Parquet table by device, with a column of texts; words are separated by spaces.
        vocabulary_size: the number of words in the vocabulary, without special tokens: the most frequent ones
            of the training texts of all devices but the unseen ones.
        vocabulary: a file of words to use instead, one per line, the most frequent first; anything after a
            space in a line, such as a count, is ignored.
        max_length: the maximum number of input tokens, the beginning-of-text token included; longer texts are
            truncated.
        lowercase: whether texts are converted to lower case; with `tokenizer`, they are not.
        tokenizer: "model" for the tokens of the pretrained model, `model.name` = "hf"; from Python, its
            folder or GGUF file. Empty: words, in a vocabulary.
        prefix: with `tokenizer`, what a text follows that is to be continued, special tokens included, such
            as the beginning of a message in the template of a chat model. It does not count in loss and
            metrics. Empty: the tokenizer's first token of a text.
        label: with `tokenizer`, the column of labels, whole numbers from 0 on; empty: the next token is
            predicted.
        classes: with `label`, the number of classes. 0: one more than the largest label.
        text: the column of texts.
        metrics: the names of metrics, the first being the headline metric: accuracy, perplexity; with
            `label`, those of the task `image`.
        derived: the file `derived.json` of a run, to use its vocabulary.
        unseen: the share of devices that the vocabulary does not depend on; in a config, `evaluate.unseen`.
        table: how the table is read, see `TableOptions`.
    """
    if vocabulary_size < 1 or max_length < 1:
        raise ValueError(
            f"`vocabulary_size` and `max_length` must be at least 1, got {vocabulary_size} and {max_length}."
        )
    columns = (text, label) if label else (text,)
    source = DeviceTable(Path(data), options_of(table, _KEYS), columns, unseen=unseen)
    if tokenizer:
        if vocabulary:
            raise ValueError("`tokenizer` and `vocabulary` exclude each other: leave out one of them.")
        if prefix and label:
            raise ValueError("`prefix` and `label` exclude each other: leave out one of them.")
        tokens = tokens_of(tokenizer, text, max_length, prefix)
        if not label:
            return next_token_task(source, tokens, tokenizer, metrics)
        return class_task(source, tokens, tokenizer, metrics, label=label, derived=derived, classes=classes)
    if label or classes or prefix:
        raise ValueError("`prefix`, `label` and `classes` need `tokenizer`.")
    parse = partial(_words, column=text, lowercase=lowercase)
    if derived and vocabulary:
        raise ValueError("`derived` and `vocabulary` exclude each other: leave out one of them.")
    values = read_derived("text", derived)
    if values is None:
        words = (
            _read_words(Path(vocabulary), lowercase=lowercase) if vocabulary else _count_words(source, parse)
        )
        values = {"kind": "text", "vocabulary": words[:vocabulary_size]}
    words = values["vocabulary"][:vocabulary_size]
    tokens = {word: token for token, word in enumerate(words, start=len(SPECIAL))}
    options = {"vocabulary_size": len(SPECIAL) + len(tokens), "max_length": max_length}
    return Task(
        model=partial(NextWordTransformer, dim=64, layers=2, heads=2, hidden=256, **options),
        loss=_loss,
        metrics=select(metrics, _METRICS, of="next-word prediction"),
        devices=source.devices(partial(_examples, parse=parse, tokens=tokens, max_length=max_length)),
        predict=_predict,
        weight=lambda targets: int((targets >= len(SPECIAL)).sum()),
        model_options=options,
        skipped=source.skipped,
        derived=values,
        predictor=_predictor(text, parse, tokens, max_length=max_length, lowercase=lowercase),
    )


_KEYS = keys_of(text)


def _predictor(
    column: str,
    parse: Callable[[Mapping[str, Any]], list[str]],
    tokens: Mapping[str, int],
    *,
    max_length: int,
    lowercase: bool,
) -> Predictor:
    """Return how the next word after a text is predicted: a word, or the end of the text."""
    words = [*SPECIAL, *tokens]
    return Predictor(
        columns=(column,),
        examples=partial(_beginnings, parse=parse, tokens=tokens, max_length=max_length),
        predict=partial(_next_words, words=words),
        kinds={"prediction": str, "probability": float},
        preprocessing={"max_length": max_length, "lowercase": lowercase, "special": list(SPECIAL)},
    )


def _beginnings(
    rows: Rows,
    *,
    parse: Callable[[Mapping[str, Any]], list[str]],
    tokens: Mapping[str, int],
    max_length: int,
) -> tuple[Tensor, Tensor]:
    """Return the tokens of texts that go on, the last ones of a long text, and the number of these."""
    texts = [[tokens.get(word, OOV) for word in words] for words in rows.parse(parse)]
    kept = [[BOS, *text[max(0, len(text) - max_length + 1) :]] for text in texts]
    padded = [text + [PAD] * (max_length - len(text)) for text in kept]
    inputs = torch.tensor(padded, dtype=torch.long).view(-1, max_length)
    return inputs, torch.tensor([len(text) for text in kept], dtype=torch.long)


def _next_words(model: nn.Module, batch: Batch, *, words: Sequence[str]) -> list[Answer]:
    """Return the most likely next word of each text: no padding, nor another beginning."""
    inputs, lengths = batch
    scores = model(inputs)[torch.arange(len(inputs)), lengths - 1].double().softmax(dim=1)
    possible = scores.clone()
    possible[:, [PAD, BOS]] = -1.0
    best = possible.max(dim=1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{"prediction": words[token], "probability": probability} for token, probability in pairs]


def word_accuracy(predictions: Tensor, targets: Tensor) -> float:
    """Return the share of correctly predicted words, among those in the vocabulary.

    Args:
        predictions: the most likely token and the loss of the target, of shape (text, position, 2).
        targets: the tokens, of shape (text, position).

    Raises:
        Undefined: no word of the device is in the vocabulary.
    """
    correct = predictions[..., 0] == targets
    return correct[_in_vocabulary(targets)].double().mean().item()


def perplexity(predictions: Tensor, targets: Tensor) -> float:
    """Return exp(mean loss of a token), over all tokens but padding: those that the training loss counts.

    It is one device's. The mean over devices is that of their perplexities, weighted by words in the
    vocabulary like every metric, and usually larger than exp of the mean loss over all tokens.

    Args:
        predictions: as in `word_accuracy`.
        targets: as in `word_accuracy`.

    Raises:
        Undefined: no word of the device is in the vocabulary; it has no weight in means over devices.
    """
    _in_vocabulary(targets)
    return predictions[..., 1][targets > PAD].mean().exp().item()


def _in_vocabulary(targets: Tensor) -> Tensor:
    """Return which targets are words of the vocabulary."""
    found = targets >= len(SPECIAL)
    if not found.any():
        raise Undefined("no word of the device is in the vocabulary")
    return found


_METRICS = {
    "accuracy": NamedMetric("accuracy", Metric(word_accuracy)),
    "perplexity": NamedMetric("perplexity", Metric(perplexity, "down")),
}


def _words(row: Mapping[str, Any], *, column: str, lowercase: bool) -> list[str]:
    content = value_of(row, column, str)
    return (content.lower() if lowercase else content).split()


def _count_words(source: DeviceTable, parse: Callable[[Mapping[str, Any]], list[str]]) -> list[str]:
    """Return the words of all training texts, the most frequent first, ties in alphabetical order."""
    counts: Counter[str] = Counter()
    for device in source.seen_ids:
        rows = source.rows_of(device).get("train")
        for words in rows.parse(parse) if rows else ():
            counts.update(words)
    return sorted(counts, key=lambda word: (-counts[word], word))


def _read_words(file: Path, *, lowercase: bool) -> list[str]:
    """Return the words of a vocabulary file."""
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise_fault(error, file)
        raise ConfigError(f"Cannot read the vocabulary `{file}`: {error}.") from None
    lines = (content.lower() if lowercase else content).splitlines()
    return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def _examples(
    rows: Rows,
    *,
    parse: Callable[[Mapping[str, Any]], list[str]],
    tokens: Mapping[str, int],
    max_length: int,
) -> tuple[Tensor, Tensor]:
    """Return the input tokens and the next tokens, each of shape (text, `max_length`)."""
    sequences = [_sequence(words, tokens, max_length + 1) for words in rows.parse(parse)]
    table = torch.tensor(sequences, dtype=torch.long).view(-1, max_length + 1)
    return table[:, :-1], table[:, 1:]


def _sequence(words: Iterable[str], tokens: Mapping[str, int], length: int) -> list[int]:
    """Return the tokens of a text, truncated or padded to `length`."""
    sequence = [BOS, *(tokens.get(word, OOV) for word in words), EOS][:length]
    return sequence + [PAD] * (length - len(sequence))


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    return _token_losses(model(inputs), targets, reduction="mean")


def _predict(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the most likely tokens with the losses of the targets, and the targets, padding as `_NONE`.

    The scores of all words would need too much memory.
    """
    inputs, targets = batch
    scores = model(inputs)
    losses = _token_losses(scores, targets, reduction="none").view_as(targets)
    best = scores.argmax(dim=-1)
    # Not every accelerator has float64.
    predictions = torch.stack([best.cpu().double(), losses.cpu().double()], dim=-1)
    return predictions, targets.masked_fill(targets == PAD, _NONE)


def _token_losses(scores: Tensor, targets: Tensor, *, reduction: str) -> Tensor:
    """Return the loss of each token or their mean; padding does not count."""
    flat = scores.flatten(0, 1), targets.flatten()
    return nn.functional.cross_entropy(*flat, ignore_index=PAD, reduction=reduction)
