"""AudioMNIST: spoken digits by speaker, joined into utterances of several digits.

AudioMNIST: Exploring Explainable Artificial Intelligence for audio analysis on a simple benchmark
    S. Becker, J. Vielhaben, M. Ackermann, K.-R. Müller, S. Lapuschkin, W. Samek. 2024.
    https://arxiv.org/abs/1807.03418
"""

import hashlib
import io
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from partita.data.importers.source import Row, Survey
from partita.data.writing import ColumnKind, ProgressFn
from partita.errors import ConfigError, needed
from partita.protocol import DeviceId

_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_MIN_DIGITS, _MAX_DIGITS = 2, 5
"""The minimum and the maximum number of digits in an utterance."""
_SILENCE = 0.1
"""Seconds between two digits."""
_MAX_SECONDS = 60
"""The maximum length of a recording of one digit."""


@dataclass(frozen=True)
class _Recording:
    path: Path
    digit: int
    repetition: int


@dataclass(frozen=True, kw_only=True)
class AudioMnist:
    """AudioMNIST with a device per speaker, whose recordings are joined into utterances of 2 to 5 digits.

    The order of the recordings and the lengths are drawn for each speaker; the last utterance may be shorter.
    Test utterances are those with the smallest SHA-256 digests of text and number: at least one, never all.
    """

    path: Path
    """The folder of the speakers' folders, `01` to `60`, with `<digit>_<speaker>_<repetition>.wav`."""
    seed: int = 1
    """The seed for order and lengths, combined with the speaker."""
    test_share: float = 0.3
    """The share of test utterances of each device."""

    def __post_init__(self) -> None:
        if not 0 < self.test_share < 1:
            raise ConfigError(f"`test_share` must be between 0 and 1, got {self.test_share}.")

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """The columns of content: the utterance and its words."""
        return {"audio": "audio", "text": "text"}

    def survey(self, progress: ProgressFn) -> Survey:
        """Return the speakers with at least two utterances; reads only the names of the files."""
        kept = [device for device in self._speakers if len(self._plan(device)) > 1]
        return Survey(sorted(kept), {"fewer than two utterances": len(self._speakers) - len(kept)})

    def rows(self, device: DeviceId) -> Iterator[Row]:
        """Yield the utterances of one speaker."""
        plan = self._plan(device)
        texts = [" ".join(_WORDS[recording.digit] for recording in utterance) for utterance in plan]
        tests = _choose_tests(texts, self.test_share)
        rate = None
        for number, (utterance, text) in enumerate(zip(plan, texts, strict=True)):
            audio, rate = _join(utterance, rate, device)
            yield {
                "split": "test" if number in tests else "train",
                "audio": {"bytes": audio, "path": f"{device}-{number:03}.flac"},
                "text": text,
            }

    @cached_property
    def _speakers(self) -> dict[DeviceId, Path]:
        """The speakers' folders, by device."""
        if not self.path.is_dir():
            raise ConfigError(f"There is no folder `{self.path}`.")
        inner = (path for path in self.path.iterdir() if path.is_dir())
        speakers = {f"speaker{path.name}": path for path in inner if re.fullmatch("[0-9]{2}", path.name)}
        if not speakers:
            raise ConfigError(
                f"`{self.path}` has no folders of speakers: give the folder that has `01` to `60` in it."
            )
        return speakers

    def _plan(self, device: DeviceId) -> list[list[_Recording]]:
        """Return the recordings of each utterance of one speaker."""
        recordings = _list_recordings(self._speakers[device])
        digest = hashlib.sha256(f"{self.seed} {device.removeprefix('speaker')}".encode()).digest()
        generator = random.Random(int.from_bytes(digest, "big"))
        generator.shuffle(recordings)
        plan: list[list[_Recording]] = []
        while recordings:
            count = generator.randint(_MIN_DIGITS, _MAX_DIGITS)
            plan.append(recordings[:count])
            recordings = recordings[count:]
        return plan


def _choose_tests(texts: Sequence[str], share: float) -> set[int]:
    """Return the numbers of the test utterances."""
    digests = [hashlib.sha256(f"{text} {number}".encode()).digest() for number, text in enumerate(texts)]
    by_digest = sorted(range(len(texts)), key=digests.__getitem__)
    return set(by_digest[: min(max(round(share * len(texts)), 1), len(texts) - 1)])


def _list_recordings(folder: Path) -> list[_Recording]:
    """Return a speaker's recordings, sorted by digit and repetition."""
    found = []
    for path in folder.glob("*.wav"):
        match = re.fullmatch(rf"([0-9])_{folder.name}_([0-9]+)\.wav", path.name)
        if match is None:
            expected = f"`<digit>_{folder.name}_<repetition>.wav`"
            given = f"got `{path.name}` (device 'speaker{folder.name}')"
            raise ConfigError(f"A recording in `{folder}` must be named {expected}, {given}.")
        found.append(_Recording(path, int(match[1]), int(match[2])))
    return sorted(found, key=lambda recording: (recording.digit, recording.repetition, recording.path.name))


def _join(recordings: Sequence[_Recording], rate: int | None, device: DeviceId) -> tuple[bytes, int]:
    """Return an utterance as FLAC, and its sampling rate, which must be `rate` unless that is None."""
    soundfile = needed("soundfile", by="`partita import audiomnist`", extra="import")
    parts: list[np.ndarray] = []
    for recording in recordings:
        samples, own = _read_wav(recording.path, device)
        if rate is not None and own != rate:
            raise ConfigError(
                f"`{recording.path}` has a sampling rate of {own} Hz, others of device {device!r} {rate} Hz: "
                "all recordings of a speaker must have the same."
            )
        rate = own
        parts += [np.zeros(round(_SILENCE * own), np.int16), samples]
    assert rate is not None, "an utterance has at least one recording"
    buffer = io.BytesIO()
    soundfile.write(buffer, np.concatenate(parts[1:]), rate, format="FLAC", subtype="PCM_16")
    return buffer.getvalue(), rate


def _read_wav(path: Path, device: DeviceId) -> tuple[np.ndarray, int]:
    """Return the samples of a recording and its sampling rate."""
    soundfile = needed("soundfile", by="`partita import audiomnist`", extra="import")
    try:
        with soundfile.SoundFile(str(path)) as file:
            # Other formats would be scaled or clipped in the conversion to 16 bits.
            if file.subtype != "PCM_16" or file.channels != 1:
                given = f"{file.subtype} with {file.channels} channels"
                raise ConfigError(f"`{path}` must be PCM_16 with 1 channel, got {given} (device {device!r}).")
            if file.frames > _MAX_SECONDS * file.samplerate:
                raise ConfigError(
                    f"`{path}` has more than {_MAX_SECONDS} s, too long for one digit (device {device!r})."
                )
            samples, rate = file.read(dtype="int16"), file.samplerate
    except soundfile.LibsndfileError as error:
        why = error.error_string.rstrip(".")
        raise ConfigError(f"The audio file `{path}` cannot be read: {why} (device {device!r}).") from None
    if not len(samples):
        raise ConfigError(f"`{path}` has no samples (device {device!r}).")
    return samples, rate
