"""Writing down what is said, from a table of sounds and texts by device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partita.data.examples import Batch
from partita.data.options import options_of
from partita.data.rows import BadRow, Rows, value_in
from partita.data.table import DeviceTable
from partita.errors import needed
from partita.models.speech import SpeechTransformer
from partita.tasks.metrics import Metric, Undefined
from partita.tasks.pieces import Pieces, characters, given_subwords, subwords
from partita.tasks.task import Task

_BLANK = 0
_LEAST_RATE = 4000
"""Samples a second: with fewer there is no room for the features' bands."""
Reading = tuple[Tensor, Tensor]
"""The features of an utterance (frame, number) and its text in pieces."""


def speech(
    *,
    data: str,
    pieces: int = 0,
    vocabulary: str = "",
    features: int = 40,
    longest: float = 35.0,
    audio: str = "audio",
    text: str = "text",
    **table: Any,
) -> Task:
    """Return the task of writing down utterances.

    Args:
        data: a Parquet table with a column of sounds and one of texts, by device.
        pieces: how many pieces texts are made of, learned from the training texts by byte-pair encoding; 0:
            their characters.
        vocabulary: a sentencepiece model to use instead, as a model that was trained with it needs.
        features: how many log-mel numbers there are to a frame of 10 ms.
        longest: the most seconds that an utterance may have.
        audio: the column of sounds.
        text: the column of what is said.
        table: how the table is read, see `TableOptions`.
    """
    if features < 1 or not longest > 0 or pieces < 0:
        raise ValueError(
            f"`features` and `longest` must be above 0, and `pieces` not below, got {features}, {longest} "
            f"and {pieces}."
        )
    source = DeviceTable(Path(data), options_of(table), (audio, text))
    alphabet = given_subwords(Path(vocabulary)) if vocabulary else _learnt(source, text, pieces)
    options = {"features": features, "outputs": len(alphabet) + 1}
    return Task(
        model=partial(SpeechTransformer, dim=64, layers=2, heads=2, hidden=128, **options),
        loss=_loss,
        metrics={"wer": Metric(word_error_rate, "down")},
        devices=source.devices(
            _Reader(audio=audio, text=text, alphabet=alphabet, features=features, longest=longest)
        ),
        predict=partial(_predict, alphabet=alphabet),
        weight=lambda texts: sum(len(text.split()) for text in texts),
        model_options=options,
        skipped=source.skipped,
    )


def word_error_rate(said: Sequence[str], texts: Sequence[str]) -> float:
    """Return the words that are wrong, missing or too many, as a share of the words of the texts.

    >>> word_error_rate(["one two", "three"], ["one three", "three"])
    0.3333333333333333
    """
    if not any(text.split() for text in texts):
        raise Undefined("the device's texts have no words")
    return needed("jiwer", by="the speech task", extra="speech").wer(list(texts), list(said))


def _learnt(source: DeviceTable, column: str, pieces: int) -> Pieces:
    """Return the pieces of all training texts."""
    texts: list[str] = []
    for device in source.ids:
        rows = source.rows_of(device, content=(column,)).get("train")
        texts += rows.used(partial(_text, column=column)) if rows else []
    return subwords(texts, pieces) if pieces else characters(texts)


def _text(row: Mapping[str, Any], *, column: str) -> str:
    return " ".join(value_in(row, column, str).split())


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Makes examples of rows: features of sound, and texts in pieces."""

    audio: str
    text: str
    alphabet: Pieces
    features: int
    longest: float

    def __call__(self, rows: Rows) -> "_Utterances":
        return _Utterances(rows.used(self._read))

    def _read(self, row: Mapping[str, Any]) -> tuple[Tensor, Tensor, str]:
        text = _text(row, column=self.text)
        numbers = torch.tensor(self.alphabet.encode(text), dtype=torch.long)
        frames = log_mel(*_sound(row, self.audio, self.longest), features=self.features, column=self.audio)
        if not len(numbers):
            raise BadRow(f"`{self.text}` has nothing that is in the pieces")
        # CTC needs a frame of the output, every fourth of the input, a piece, and one between equal ones.
        least = len(numbers) + int((numbers[1:] == numbers[:-1]).sum())
        if (len(frames) + 3) // 4 < least:
            raise BadRow(
                f"`{self.audio}` has {len(frames)} frames of 10 ms, too short for a text of {least} pieces"
            )
        return frames, numbers, text


def _sound(row: Mapping[str, Any], column: str, longest: float) -> tuple[np.ndarray, int]:
    """Return the samples of an utterance, one channel, and how many there are to a second."""
    soundfile = needed("soundfile", by="the speech task", extra="speech")
    content = value_in(row, column, dict).get("bytes")
    try:
        samples, rate = soundfile.read(BytesIO(content or b""), dtype="float32", always_2d=True)
    except Exception as error:
        raise BadRow(f"`{column}` is not sound that can be decoded") from error
    if rate < _LEAST_RATE:
        raise BadRow(f"`{column}` has {rate} samples a second, fewer than {_LEAST_RATE}")
    if len(samples) > longest * rate:
        raise BadRow(f"`{column}` has {len(samples) / rate:.1f} s, more than {longest:g}")
    if not np.isfinite(samples).all():
        raise BadRow(f"`{column}` has samples that are no numbers")
    return samples.mean(axis=1), rate


def log_mel(samples: np.ndarray, rate: int, *, features: int, column: str = "audio") -> Tensor:
    """Return log-mel features (frame, number) of windows of 25 ms, each normed over the utterance."""
    fbank = needed("kaldi_native_fbank", by="the speech task", extra="speech")
    options = fbank.FbankOptions()
    options.frame_opts.samp_freq = rate
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = features
    computer = fbank.OnlineFbank(options)
    computer.accept_waveform(rate, (samples * 32768).tolist())
    computer.input_finished()
    if not computer.num_frames_ready:
        raise BadRow(f"`{column}` is shorter than a window of 25 ms")
    frames = torch.from_numpy(
        np.stack([computer.get_frame(number) for number in range(computer.num_frames_ready)])
    )
    return (frames - frames.mean(dim=0)) / (frames.std(dim=0, correction=0) + 1e-5)


@dataclass(frozen=True)
class _Utterances:
    """Utterances of one device, filled up to the longest of a batch."""

    readings: list[tuple[Tensor, Tensor, str]]

    def __len__(self) -> int:
        return len(self.readings)

    def batch_at(self, positions: Tensor) -> dict[str, Any]:
        """Return the utterances at `positions`."""
        chosen = [self.readings[place] for place in positions.tolist()]
        pad = nn.utils.rnn.pad_sequence
        return {
            "sound": pad([frames for frames, _, _ in chosen], batch_first=True),
            "lengths": torch.tensor([len(frames) for frames, _, _ in chosen]),
            "pieces": pad([pieces for _, pieces, _ in chosen], batch_first=True),
            "piece_lengths": torch.tensor([len(pieces) for _, pieces, _ in chosen]),
            "texts": [text for _, _, text in chosen],
        }


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    scores, frames = model(batch["sound"], batch["lengths"])
    return nn.functional.ctc_loss(
        scores.transpose(0, 1), batch["pieces"], frames, batch["piece_lengths"], blank=_BLANK
    )


def _predict(model: nn.Module, batch: Batch, *, alphabet: Pieces) -> tuple[list[str], list[str]]:
    scores, frames = model(batch["sound"], batch["lengths"])
    best = scores.argmax(dim=-1)
    said = [alphabet.decode(greedy(row[:length].tolist())) for row, length in zip(best, frames, strict=True)]
    return said, batch["texts"]


def greedy(best: Sequence[int]) -> list[int]:
    """Return what CTC reads from the best piece of each frame: repetitions are one, blanks are none.

    >>> greedy([0, 3, 3, 0, 3, 5, 5, 0])
    [3, 3, 5]
    """
    kept = [piece for piece, before in zip(best, [None, *best], strict=False) if piece != before]
    return [piece for piece in kept if piece != _BLANK]
