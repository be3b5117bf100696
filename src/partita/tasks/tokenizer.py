"""Tokenizers for speech recognition: characters, or subwords by sentencepiece."""

import io
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from partita.errors import ConfigError, needed, raise_fault

_ALPHABET, _SUBWORDS = "alphabet", "sentencepiece"
"""The names of a tokenizer's values."""


class Tokenizer(Protocol):
    """Converts texts to tokens, numbered from 1, and back; 0 is left for CTC's blank."""

    def __len__(self) -> int:
        """Return the number of different tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some tokens."""
        ...

    def to_values(self) -> dict[str, str]:
        """Return the tokenizer as JSON values, from which `tokenizer_from` makes it again."""
        ...


@dataclass(frozen=True)
class Characters:
    """A tokenizer with a token for every character; characters outside the alphabet are left out."""

    alphabet: str

    def __len__(self) -> int:
        return len(self.alphabet)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return [self.alphabet.index(letter) + 1 for letter in text if letter in self.alphabet]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some tokens."""
        return "".join(self.alphabet[token - 1] for token in tokens)

    def to_values(self) -> dict[str, str]:
        """Return the alphabet."""
        return {_ALPHABET: self.alphabet}


@dataclass(frozen=True)
class Subwords:
    """A tokenizer of subwords: a sentencepiece processor."""

    processor: Any

    def __len__(self) -> int:
        return self.processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return [token + 1 for token in self.processor.encode(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some tokens."""
        return self.processor.decode([token - 1 for token in tokens])

    def to_values(self) -> dict[str, str]:
        """Return the sentencepiece model in base64."""
        return {_SUBWORDS: b64encode(self.processor.serialized_model_proto()).decode()}


def tokenizer_from(values: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer with the values of `to_values`.

    >>> tokenizer_from(Characters("abc").to_values()).encode("cab")
    [3, 1, 2]
    """
    if _ALPHABET in values:
        return Characters(values[_ALPHABET])
    return _subwords(b64decode(values[_SUBWORDS]))


def load_subwords(file: Path) -> Subwords:
    """Return the tokenizer of a sentencepiece model file."""
    try:
        return _subwords(file.read_bytes())
    except (OSError, RuntimeError) as error:
        raise_fault(error, file)
        raise ConfigError(f"Cannot read the sentencepiece model `{file}`: {error}.") from None


def _subwords(model: bytes) -> Subwords:
    sentencepiece = needed("sentencepiece", by="a subword tokenizer", extra="speech")
    return Subwords(sentencepiece.SentencePieceProcessor(model_proto=model))


def characters(texts: Iterable[str]) -> Characters:
    """Return the tokenizer with the characters of some texts.

    >>> characters(["ab", "ba c"]).encode("cab")
    [4, 2, 3]
    """
    return Characters("".join(sorted(set().union(*texts))))


def train_subwords(texts: Sequence[str], count: int) -> Subwords:
    """Return a tokenizer with `count` subwords, trained on some texts by byte-pair encoding."""
    sentencepiece = needed("sentencepiece", by="a subword tokenizer", extra="speech")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=count,
            model_type="bpe",
            character_coverage=1.0,
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"`tokens` = {count} cannot be learned from {len(texts)} texts: {reason}") from None
    return _subwords(model.getvalue())
