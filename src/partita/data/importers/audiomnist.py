"""AudioMNIST: spoken digits by speaker, joined to utterances of several.

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

from partita.data.importers.source import Kind, Row, Survey, Tick
from partita.errors import ConfigError, needed
from partita.protocol import DeviceId

_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_SHORTEST, _LONGEST = 2, 5
"""How many digits an utterance has."""
_SILENCE = 0.1
"""Seconds between two digits."""


@dataclass(frozen=True)
class _Recording:
    path: Path
    digit: int
    repetition: int


@dataclass(frozen=True, kw_only=True)
class AudioMnist:
    """AudioMNIST's recordings, each in one utterance of 2 to 5 digits; the last of a speaker may be shorter.

    Order and lengths are drawn for each speaker. The test set is the share of a speaker's utterances whose
    texts and numbers have the smallest SHA-256 digests: at least one, and never all.
    """

    path: Path
    """The folder with the speakers' folders, `01` to `60`, of `<digit>_<speaker>_<repetition>.wav`."""
    seed: int = 1
    """What the order and the lengths are drawn from, together with the speaker."""
    test_share: float = 0.3
    """How much of each device's utterances is its test set."""

    def __post_init__(self) -> None:
        if not 0 < self.test_share < 1:
            raise ConfigError(f"`test_share` must be between 0 and 1, got {self.test_share}.")

    @property
    def columns(self) -> Mapping[str, Kind]:
        """The utterance and its words."""
        return {"audio": "audio", "text": "text"}

    def survey(self, tick: Tick) -> Survey:
        """Return which speakers have two utterances or more; reads the names of the files only."""
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
        """The speakers' folders by device."""
        if not self.path.is_dir():
            raise ConfigError(f"There is no folder `{self.path}`.")
        inner = (path for path in self.path.iterdir() if path.is_dir())
        speakers = {f"speaker{path.name}": path for path in inner if re.fullmatch("[0-9]{2}", path.name)}
        if not speakers:
            raise ConfigError(
                f"`{self.path}` has no speakers' folders: give the one with `01` to `60` in it."
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
            count = generator.randint(_SHORTEST, _LONGEST)
            plan.append(recordings[:count])
            recordings = recordings[count:]
        return plan


def _choose_tests(texts: Sequence[str], share: float) -> set[int]:
    """Return the numbers of the utterances that are the test set."""
    digests = [hashlib.sha256(f"{text} {number}".encode()).digest() for number, text in enumerate(texts)]
    by_digest = sorted(range(len(texts)), key=digests.__getitem__)
    return set(by_digest[: min(max(round(share * len(texts)), 1), len(texts) - 1)])


def _list_recordings(folder: Path) -> list[_Recording]:
    """Return a speaker's recordings by digit and repetition."""
    found = []
    for path in folder.glob("*.wav"):
        match = re.fullmatch(rf"([0-9])_{folder.name}_([0-9]+)\.wav", path.name)
        if match is None:
            wanted = f"`<digit>_{folder.name}_<repetition>.wav`"
            given = f"got `{path.name}` (device 'speaker{folder.name}')"
            raise ConfigError(f"A recording in `{folder}` must be named {wanted}, {given}.")
        found.append(_Recording(path, int(match[1]), int(match[2])))
    return sorted(found, key=lambda recording: (recording.digit, recording.repetition, recording.path.name))


def _join(recordings: Sequence[_Recording], rate: int | None, device: DeviceId) -> tuple[bytes, int]:
    """Return an utterance as FLAC and its rate, which must be `rate` where that is known."""
    soundfile = needed("soundfile", by="`partita import audiomnist`", extra="import")
    pieces: list[np.ndarray] = []
    for recording in recordings:
        samples, own = _read_wav(recording.path, device)
        if rate is not None and own != rate:
            raise ConfigError(
                f"`{recording.path}` has {own} samples a second, others of device {device!r} {rate}: "
                "all of one speaker must have the same rate."
            )
        rate = own
        pieces += [np.zeros(round(_SILENCE * own), np.int16), samples]
    assert rate is not None, "an utterance has at least one recording"
    buffer = io.BytesIO()
    soundfile.write(buffer, np.concatenate(pieces[1:]), rate, format="FLAC", subtype="PCM_16")
    return buffer.getvalue(), rate


def _read_wav(path: Path, device: DeviceId) -> tuple[np.ndarray, int]:
    """Return the samples of a recording and how many a second has."""
    soundfile = needed("soundfile", by="`partita import audiomnist`", extra="import")
    try:
        with soundfile.SoundFile(str(path)) as file:
            # Samples of other kinds would be scaled or cut on their way to 16 bits.
            if file.subtype != "PCM_16" or file.channels != 1:
                given = f"{file.subtype} with {file.channels} channels"
                raise ConfigError(f"`{path}` must be PCM_16 with 1 channel, got {given} (device {device!r}).")
            samples, rate = file.read(dtype="int16"), file.samplerate
    except soundfile.LibsndfileError as error:
        why = error.error_string.rstrip(".")
        raise ConfigError(f"`{path}` is no audio that can be read: {why} (device {device!r}).") from None
    if not len(samples):
        raise ConfigError(f"`{path}` holds no audio (device {device!r}).")
    return samples, rate
