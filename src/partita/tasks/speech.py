"""Speech recognition with CTC, from a table of audio and transcripts by device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partita.data.examples import Batch
from partita.data.options import keys_of, options_of
from partita.data.rows import BadRow, Rows, value_of
from partita.data.table import DeviceTable
from partita.errors import needed
from partita.models.speech import SpeechTransformer
from partita.tasks.derived import check_agrees, read_derived
from partita.tasks.metrics import Metric, NamedMetric, Undefined, select
from partita.tasks.predictor import Answer, Predictor
from partita.tasks.task import Task
from partita.tasks.tokenizer import Tokenizer, characters, load_subwords, tokenizer_from, train_subwords

_BLANK = 0
_MIN_RATE = 4000
"""The minimum sampling rate in Hz: with a lower one the mel filters do not fit."""
_MAX_RATE = 192_000
"""The maximum sampling rate in Hz: with it, `max_seconds` bounds the memory for an utterance."""
_BLOCK = 1 << 16
"""Samples of all channels that are decoded at a time: a file may have very many channels."""


def speech(
    *,
    data: str,
    tokens: int = 0,
    tokenizer: str = "",
    features: int = 40,
    max_seconds: float = 35.0,
    audio: str = "audio",
    text: str = "text",
    metrics: Sequence[str] = ("wer",),
    derived: str = "",
    unseen: float = 0.0,
    **table: Any,
) -> Task:
    """Return a task of speech recognition.

    Args:
        data: a Parquet table by device, with a column of audio and one of transcripts.
        tokens: the number of subword tokens, learned from the training transcripts of all devices but the
            unseen ones by byte-pair encoding. 0: the tokens are characters.
        tokenizer: a sentencepiece model file to use instead, such as the one a pretrained model needs.
        features: the number of log-mel features per frame of 10 ms.
        max_seconds: the maximum length of an utterance; longer ones are bad rows and are not decoded.
        audio: the column of audio.
        text: the column of transcripts.
        metrics: the names of metrics, the first being the headline metric: wer, cer (word and character error
            rate).
        derived: the file `derived.json` of a run, to use its tokenizer.
        unseen: the share of devices that the tokenizer does not depend on; in a config, `evaluate.unseen`.
        table: how the table is read, see `TableOptions`.
    """
    if features < 1 or not max_seconds > 0 or tokens < 0:
        raise ValueError(
            "`features` and `max_seconds` must be above 0 and `tokens` at least 0, got "
            f"{features}, {max_seconds} and {tokens}."
        )
    source = DeviceTable(Path(data), options_of(table, keys_of(speech)), (audio, text), unseen=unseen)
    if derived and tokenizer:
        raise ValueError("`derived` and `tokenizer` exclude each other: leave out one of them.")
    if values := read_derived("speech", derived):
        converter = tokenizer_from(values)
        check_agrees("tokens", tokens, {"tokens": len(converter)})
    else:
        converter = load_subwords(Path(tokenizer)) if tokenizer else _train_tokenizer(source, text, tokens)
    options = {"features": features, "outputs": len(converter) + 1}
    parser = _Parser(audio=audio, text=text, tokenizer=converter, features=features, max_seconds=max_seconds)
    return Task(
        model=partial(SpeechTransformer, dim=64, layers=2, heads=2, hidden=128, **options),
        loss=_loss,
        metrics=select(metrics, _METRICS, of="speech recognition"),
        devices=source.devices(parser),
        predict=partial(_predict, tokenizer=converter),
        weight=lambda texts: sum(len(text.split()) for text in texts),
        model_options=options,
        skipped=source.skipped,
        derived={"kind": "speech", **converter.to_values()},
        predictor=_predictor(parser),
    )


def _predictor(parser: "_Parser") -> Predictor:
    """Return how audio without a transcript is transcribed."""

    def predict(model: nn.Module, batch: Batch) -> list[Answer]:
        return [{"prediction": text} for text in _predict(model, batch, tokenizer=parser.tokenizer)[0]]

    return Predictor(
        columns=(parser.audio,),
        examples=replace(parser, text=""),
        predict=predict,
        kinds={"prediction": str},
        preprocessing={
            "features": parser.features,
            "frames": "log-mel features of 25 ms windows every 10 ms, normalized over the utterance",
            "blank": _BLANK,
        },
    )


def word_error_rate(predictions: Sequence[str], texts: Sequence[str]) -> float:
    """Return the word error rate: substitutions, deletions and insertions per word of the transcripts.

    >>> word_error_rate(["one two", "three"], ["one three", "three"])
    0.3333333333333333
    """
    return _jiwer_for(texts).wer(list(texts), list(predictions))


def character_error_rate(predictions: Sequence[str], texts: Sequence[str]) -> float:
    """Return the character error rate: as the word error rate, for characters.

    Spaces at both ends of a text are left out; every other space is a character, repeated ones too.

    >>> character_error_rate(["one to", "three"], ["one two", "three"])
    0.08333333333333333
    >>> character_error_rate([" one  two "], ["one two"])
    0.14285714285714285
    """
    return _jiwer_for(texts).cer(list(texts), list(predictions))


def _jiwer_for(texts: Sequence[str]) -> Any:
    if not any(text.split() for text in texts):
        raise Undefined("the device's texts have no words")
    return needed("jiwer", by="the speech task", extra="speech")


_METRICS = {
    "wer": NamedMetric("wer", Metric(word_error_rate, "down")),
    "cer": NamedMetric("cer", Metric(character_error_rate, "down")),
}


def _train_tokenizer(source: DeviceTable, column: str, tokens: int) -> Tokenizer:
    """Return a tokenizer for all training transcripts."""
    texts: list[str] = []
    for device in source.seen_ids:
        rows = source.rows_of(device, columns=(column,)).get("train")
        texts += rows.parse(partial(_text, column=column)) if rows else []
    return train_subwords(texts, tokens) if tokens else characters(texts)


def _text(row: Mapping[str, Any], *, column: str) -> str:
    return " ".join(value_of(row, column, str).split())


@dataclass(frozen=True)
class _Utterance:
    """One example."""

    features: Tensor
    """Log-mel features (frame, feature)."""
    tokens: Tensor
    text: str


@dataclass(frozen=True, kw_only=True)
class _Parser:
    """Makes examples of rows: log-mel features and tokens."""

    audio: str
    text: str
    """Empty: rows have no transcript, and examples no tokens."""
    tokenizer: Tokenizer
    features: int
    max_seconds: float

    def __call__(self, rows: Rows) -> "_Utterances":
        return _Utterances(rows.parse(self._parse))

    def _parse(self, row: Mapping[str, Any]) -> _Utterance:
        text = _text(row, column=self.text) if self.text else ""
        tokens = torch.tensor(self.tokenizer.encode(text), dtype=torch.long)
        samples, rate = _decode(row, self.audio, self.max_seconds)
        frames = log_mel(samples, rate, features=self.features, column=self.audio)
        if not self.text:
            return _Utterance(frames, tokens, text)
        if not len(tokens):
            raise BadRow(f"`{self.text}` has no character that the tokenizer knows")
        # CTC needs an output frame, which is 4 input frames, for each token and between equal tokens.
        needed_frames = len(tokens) + int((tokens[1:] == tokens[:-1]).sum())
        if (len(frames) + 3) // 4 < needed_frames:
            raise BadRow(
                f"`{self.audio}` has {len(frames)} frames of 10 ms, too few for a transcript of "
                f"{len(tokens)} tokens, which needs {4 * needed_frames - 3}"
            )
        return _Utterance(frames, tokens, text)


def _decode(row: Mapping[str, Any], column: str, max_seconds: float) -> tuple[np.ndarray, int]:
    """Return the samples of an utterance, averaged over channels, and the sampling rate."""
    soundfile = needed("soundfile", by="the speech task", extra="speech")
    content = value_of(row, column, dict).get("bytes")
    try:
        with soundfile.SoundFile(BytesIO(content or b"")) as file:
            _check_size(file.frames, file.samplerate, column, max_seconds)
            blocks = file.blocks(max(_BLOCK // file.channels, 2), dtype="float32", always_2d=True)
            samples = np.concatenate([np.empty(0, np.float32), *(block.mean(axis=1) for block in blocks)])
            rate = file.samplerate
    except BadRow:
        raise
    except Exception as error:
        raise BadRow(f"`{column}` cannot be decoded as audio") from error
    if not np.isfinite(samples).all():
        raise BadRow(f"`{column}` has samples that are not finite")
    return samples, rate


def _check_size(frames: int, rate: int, column: str, max_seconds: float) -> None:
    """Raise if an utterance, by its header, is too long or has an unusual sampling rate."""
    if not _MIN_RATE <= rate <= _MAX_RATE:
        raise BadRow(f"`{column}` must have a sampling rate of {_MIN_RATE} to {_MAX_RATE} Hz, got {rate}")
    if frames > max_seconds * rate:
        raise BadRow(f"`{column}` has {frames / rate:.1f} s, more than `max_seconds` = {max_seconds:g}")


def log_mel(samples: np.ndarray, rate: int, *, features: int, column: str = "audio") -> Tensor:
    """Return log-mel features (frame, feature) of 25 ms windows, normalized over the utterance."""
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
    """The utterances of one split of a device, padded to the longest of a batch."""

    utterances: list[_Utterance]

    def __len__(self) -> int:
        return len(self.utterances)

    def batch_at(self, positions: Tensor) -> dict[str, Any]:
        """Return the utterances at `positions`."""
        selected = [self.utterances[position] for position in positions.tolist()]
        pad = nn.utils.rnn.pad_sequence
        return {
            "features": pad([utterance.features for utterance in selected], batch_first=True),
            "lengths": torch.tensor([len(utterance.features) for utterance in selected]),
            "tokens": pad([utterance.tokens for utterance in selected], batch_first=True),
            "token_lengths": torch.tensor([len(utterance.tokens) for utterance in selected]),
            "texts": [utterance.text for utterance in selected],
        }


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    scores, frames = model(batch["features"], batch["lengths"])
    return nn.functional.ctc_loss(
        scores.transpose(0, 1), batch["tokens"], frames, batch["token_lengths"], blank=_BLANK
    )


def _predict(model: nn.Module, batch: Batch, *, tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    scores, frames = model(batch["features"], batch["lengths"])
    best = scores.argmax(dim=-1).tolist()
    paths = [row[:length] for row, length in zip(best, frames.tolist(), strict=True)]
    return [tokenizer.decode(collapse(path)) for path in paths], batch["texts"]


def collapse(path: Sequence[int]) -> list[int]:
    """Return the tokens of a CTC path, the best token of each frame: merge repetitions, then drop blanks.

    >>> collapse([0, 3, 3, 0, 3, 5, 5, 0])
    [3, 3, 5]
    """
    merged = [token for token, before in zip(path, [None, *path], strict=False) if token != before]
    return [token for token in merged if token != _BLANK]
