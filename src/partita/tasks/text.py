"""Next-word prediction, from a table of texts by device."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partita.data.examples import Batch
from partita.data.options import keys_of, options_of
from partita.data.rows import Rows, value_of
from partita.data.table import DeviceTable
from partita.errors import ConfigError
from partita.models.transformer import NextWordTransformer
from partita.tasks.derived import read_derived
from partita.tasks.metrics import Undefined
from partita.tasks.task import Task

SPECIAL = ("<pad>", "<oov>", "<bos>", "<eos>")
"""The special tokens: padding, a word out of vocabulary, the beginning and the end of a text."""
PAD, OOV, BOS, EOS = range(len(SPECIAL))


def text(
    *,
    data: str,
    vocabulary_size: int = 10_000,
    vocabulary: str = "",
    max_length: int = 20,
    lowercase: bool = True,
    text: str = "text",
    derived: str = "",
    unseen: float = 0.0,
    **table: Any,
) -> Task:
    """Return a task of next-word prediction.

    Args:
        data: a Parquet table by device, with a column of texts; words are separated by spaces.
        vocabulary_size: the number of words in the vocabulary, without special tokens: the most frequent ones
            of the training texts of all devices.
        vocabulary: a file of words to use instead, one per line, the most frequent first; anything after a
            space in a line, such as a count, is ignored.
        max_length: the maximum number of input tokens, the beginning-of-text token included; longer texts are
            truncated.
        lowercase: whether texts are converted to lower case.
        text: the column of texts.
        derived: the file `derived.json` of a run, to use its vocabulary.
        unseen: the share of devices that it does not depend on; in a config, `evaluate.unseen`.
        table: how the table is read, see `TableOptions`.
    """
    if vocabulary_size < 1 or max_length < 1:
        raise ValueError(
            f"`vocabulary_size` and `max_length` must be at least 1, got {vocabulary_size} and {max_length}."
        )
    source = DeviceTable(Path(data), options_of(table, _KEYS), (text,), unseen=unseen)
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
        metrics={"accuracy": word_accuracy},
        devices=source.devices(partial(_examples, parse=parse, tokens=tokens, max_length=max_length)),
        predict=_predict,
        weight=lambda targets: int((targets >= len(SPECIAL)).sum()),
        model_options=options,
        skipped=source.skipped,
        derived=values,
    )


_KEYS = keys_of(text)


def word_accuracy(predictions: Tensor, targets: Tensor) -> float:
    """Return the share of correctly predicted words, among those in the vocabulary.

    >>> word_accuracy(torch.tensor([[4, 5, 3]]), torch.tensor([[4, 6, 3]]))
    0.5
    """
    in_vocabulary = targets >= len(SPECIAL)
    if not in_vocabulary.any():
        raise Undefined("no word of the device is in the vocabulary")
    return (predictions == targets)[in_vocabulary].double().mean().item()


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
    scores = model(inputs)
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=PAD)


def _predict(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    inputs, targets = batch
    return model(inputs).argmax(dim=-1), targets
