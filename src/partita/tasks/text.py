"""Telling the next word, from a table of texts by device."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partita.data.examples import Batch
from partita.data.options import options_of
from partita.data.rows import Rows, value_in
from partita.data.table import DeviceTable
from partita.errors import ConfigError
from partita.models.transformer import NextWordTransformer
from partita.tasks.metrics import Undefined
from partita.tasks.task import Task

SPECIAL = ("<pad>", "<oov>", "<bos>", "<eos>")
"""Filling, words that are not in the vocabulary, the beginning and the end of a text."""
PAD, OOV, BOS, EOS = range(len(SPECIAL))


def text(
    *,
    data: str,
    words: int = 10_000,
    vocabulary: str = "",
    length: int = 20,
    lower: bool = True,
    text: str = "text",
    **table: Any,
) -> Task:
    """Return the task of telling the next word of texts.

    Args:
        data: a Parquet table with a column of texts, by device; words are what stands between spaces.
        words: how many words are told apart, the most frequent ones of the training texts.
        vocabulary: a file of words to use instead, one a line and the most frequent first; what stands after
            a space in a line, such as a count, is left out.
        length: how many words a model sees: a text is its beginning, its words and its end, cut after them.
        lower: whether upper and lower case are one.
        text: the column of texts.
        table: how the table is read, see `TableOptions`.
    """
    if words < 1 or length < 1:
        raise ValueError(f"`words` and `length` must be at least 1, got {words} and {length}.")
    source = DeviceTable(Path(data), options_of(table), (text,))
    split = partial(_words, column=text, lower=lower)
    known = _given(Path(vocabulary), lower=lower) if vocabulary else _counted(source, split)
    places = {word: place for place, word in enumerate(known[:words], start=len(SPECIAL))}
    options = {"vocabulary": len(SPECIAL) + len(places), "length": length}
    return Task(
        model=partial(NextWordTransformer, dim=64, layers=2, heads=2, hidden=256, **options),
        loss=_loss,
        metrics={"accuracy": word_accuracy},
        devices=source.devices(partial(_examples, split=split, places=places, length=length)),
        predict=_predict,
        weight=lambda targets: int((targets >= len(SPECIAL)).sum()),
        model_options=options,
        skipped=source.skipped,
    )


def word_accuracy(predictions: Tensor, targets: Tensor) -> float:
    """Return the share of words told right, among those in the vocabulary.

    >>> word_accuracy(torch.tensor([[4, 5, 3]]), torch.tensor([[4, 6, 3]]))
    0.5
    """
    known = targets >= len(SPECIAL)
    if not known.any():
        raise Undefined("no word of the device is in the vocabulary")
    return (predictions == targets)[known].double().mean().item()


def _words(row: Mapping[str, Any], *, column: str, lower: bool) -> list[str]:
    content = value_in(row, column, str)
    return (content.lower() if lower else content).split()


def _counted(source: DeviceTable, split: Any) -> list[str]:
    """Return the words of all training texts, the most frequent first, equal ones by the alphabet."""
    counts: Counter[str] = Counter()
    for device in source.ids:
        rows = source.rows_of(device).get("train")
        for found in rows.used(split) if rows else ():
            counts.update(found)
    return sorted(counts, key=lambda word: (-counts[word], word))


def _given(file: Path, *, lower: bool) -> list[str]:
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the vocabulary `{file}`: {error}.") from None
    lines = (content.lower() if lower else content).splitlines()
    return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def _examples(rows: Rows, *, split: Any, places: Mapping[str, int], length: int) -> tuple[Tensor, Tensor]:
    """Return the words that go in and those that should come out, each a row of `length` numbers."""
    tokens = [_tokens(found, places, length + 1) for found in rows.used(split)]
    numbers = torch.tensor(tokens, dtype=torch.long).view(-1, length + 1)
    return numbers[:, :-1], numbers[:, 1:]


def _tokens(found: Iterable[str], places: Mapping[str, int], length: int) -> list[int]:
    whole = [BOS, *(places.get(word, OOV) for word in found), EOS][:length]
    return whole + [PAD] * (length - len(whole))


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    words, following = batch
    scores = model(words)
    return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten(), ignore_index=PAD)


def _predict(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    words, following = batch
    return model(words).argmax(dim=-1), following
