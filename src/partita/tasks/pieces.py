"""What texts are made of, for models that write them: characters, or pieces of words."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from partita.errors import ConfigError, needed


class Pieces(Protocol):
    """Turns texts into numbers from 1 on, and back; 0 is left for CTC's blank."""

    def __len__(self) -> int:
        """Return how many pieces there are."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the pieces of a text."""
        ...

    def decode(self, pieces: Sequence[int]) -> str:
        """Return the text of pieces."""
        ...


@dataclass(frozen=True)
class Characters:
    """Every character is a piece; those that training texts do not have are left out."""

    alphabet: str

    def __len__(self) -> int:
        return len(self.alphabet)

    def encode(self, text: str) -> list[int]:
        """Return the places of a text's characters."""
        return [self.alphabet.index(letter) + 1 for letter in text if letter in self.alphabet]

    def decode(self, pieces: Sequence[int]) -> str:
        """Return the text of places."""
        return "".join(self.alphabet[piece - 1] for piece in pieces)


@dataclass(frozen=True)
class Subwords:
    """Pieces of words, by sentencepiece's byte-pair encoding."""

    model: Any

    def __len__(self) -> int:
        return self.model.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """Return the pieces of a text."""
        return [piece + 1 for piece in self.model.encode(text)]

    def decode(self, pieces: Sequence[int]) -> str:
        """Return the text of pieces."""
        return self.model.decode([piece - 1 for piece in pieces])


def given_subwords(file: Path) -> Subwords:
    """Return the pieces of a sentencepiece model file."""
    sentencepiece = needed("sentencepiece", by="pieces of words", extra="speech")
    try:
        return Subwords(sentencepiece.SentencePieceProcessor(model_proto=file.read_bytes()))
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"Cannot read the sentencepiece model `{file}`: {error}.") from None


def characters(texts: Iterable[str]) -> Characters:
    """Return the characters of some texts.

    >>> characters(["ab", "ba c"]).encode("cab")
    [4, 2, 3]
    """
    return Characters("".join(sorted(set().union(*texts))))


def subwords(texts: Sequence[str], count: int) -> Subwords:
    """Return as many pieces as asked for, learned from some texts."""
    sentencepiece = needed("sentencepiece", by="pieces of words", extra="speech")
    learned = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=learned,
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
        raise ConfigError(f"`pieces` = {count} cannot be learned from {len(texts)} texts: {reason}") from None
    return Subwords(sentencepiece.SentencePieceProcessor(model_proto=learned.getvalue()))
