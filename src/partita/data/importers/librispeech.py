"""LibriSpeech: read audiobooks by speaker, in the corpus's own folders.

Librispeech: an ASR corpus based on public domain audio books
    V. Panayotov, G. Chen, D. Povey, S. Khudanpur. ICASSP 2015.
    https://www.openslr.org/12

A speaker's test chapter is chosen as in
    Federated Learning with Partial Model Personalization
    K. Pillutla, K. Malik, A. Mohamed, M. Rabbat, M. Sanjabi, L. Xiao. ICML 2022.
    https://arxiv.org/abs/2204.03809
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from partita.data.importers.source import Row, Survey
from partita.data.writing import ColumnKind, ProgressFn
from partita.errors import ConfigError, needed
from partita.protocol import DeviceId

_PAPER = 902
"""The number of devices that the paper keeps of `train-other-500`."""
_MIN_SHARE, _MAX_SHARE, _TARGET_SHARE = Fraction(10, 100), Fraction(50, 100), Fraction(20, 100)
"""Minimum, maximum and target share of a test chapter in a speaker's audio."""
_UNKNOWN = 2**62
"""libsndfile reports more frames than this for a FLAC file that does not state its length."""
_SINGLE = "fewer than two chapters"
_UNFIT = "no chapter with 10 to 50 % of the audio"


@dataclass(frozen=True, kw_only=True)
class LibriSpeech:
    """A subset of LibriSpeech with a device per speaker; one chapter of each speaker is the test set.

    The test chapter has 10 to 50 % of the speaker's audio by length: the one closest to 20 %, and among
    equally close ones the one with the smallest id. Texts are the transcripts in lower case.
    """

    path: Path
    """The subset's folder, such as `train-other-500`, which has the folders `<speaker>/<chapter>/`."""
    _tests: dict[DeviceId, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The test chapters of the kept speakers, filled by `survey`."""

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """The columns of content: the utterance and its transcript."""
        return {"audio": "audio", "text": "text"}

    def survey(self, progress: ProgressFn) -> Survey:
        """Return the speakers with a test chapter, which is noted; reads transcripts and audio headers."""
        if not self.path.is_dir():
            raise ConfigError(f"There is no folder `{self.path}`.")
        speakers = sorted(_numbered(self.path), key=lambda folder: folder.name)
        if not speakers:
            subset = "give the folder of a subset, such as `LibriSpeech/train-other-500`"
            raise ConfigError(f"`{self.path}` has no folders `<speaker>/<chapter>`: {subset}.")
        kept: list[DeviceId] = []
        dropped = {_SINGLE: 0, _UNFIT: 0}
        for done, speaker in enumerate(speakers):
            progress(done, len(speakers))
            chapters = _numbered(speaker)
            test = choose_test(_lengths(chapters)) if len(chapters) > 1 else None
            if test is None:
                dropped[_SINGLE if len(chapters) < 2 else _UNFIT] += 1
            else:
                self._tests[speaker.name] = test
                kept.append(speaker.name)
        return Survey(kept, dropped, _PAPER)

    def rows(self, device: DeviceId) -> Iterator[Row]:
        """Yield the utterances of one speaker, chapter by chapter."""
        chapters = _numbered(self.path / device)
        test = self._tests.get(device) or choose_test(_lengths(chapters))
        for chapter in chapters:
            for name, text in _read_texts(chapter).items():
                path = chapter / f"{name}.flac"
                yield {
                    "split": "test" if chapter.name == test else "train",
                    "audio": {"bytes": _read_bytes(path), "path": path.name},
                    "text": text.lower(),
                }


def choose_test(lengths: Mapping[str, Fraction]) -> str | None:
    """Return a speaker's test chapter, given the length of each chapter; None if none qualifies.

    >>> choose_test({"7": Fraction(70), "8": Fraction(18), "9": Fraction(12)})
    '8'
    >>> choose_test({"7": Fraction(91), "8": Fraction(9)}) is None
    True
    """
    whole = sum(lengths.values(), Fraction())
    fit = [name for name, own in lengths.items() if whole * _MIN_SHARE <= own <= whole * _MAX_SHARE]
    return min(fit, key=lambda name: (abs(lengths[name] - whole * _TARGET_SHARE), int(name)), default=None)


def _numbered(folder: Path) -> list[Path]:
    """Return the folders in `folder` whose names are numbers, smallest first."""
    inner = (path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir())
    return sorted(inner, key=lambda path: (int(path.name), path.name))


def _lengths(chapters: list[Path]) -> dict[str, Fraction]:
    """Return the seconds of audio in each chapter."""
    return {
        chapter.name: sum((_seconds(chapter / f"{name}.flac") for name in _read_texts(chapter)), Fraction())
        for chapter in chapters
    }


def _seconds(path: Path) -> Fraction:
    """Return the exact length of an audio file, from its header."""
    soundfile = needed("soundfile", by="`partita import librispeech`", extra="import")
    try:
        about = soundfile.info(str(path))
    except soundfile.LibsndfileError as error:
        why = error.error_string.rstrip(".")
        raise ConfigError(f"The audio file `{path}` cannot be read: {why} {_device_of(path)}.") from None
    if not 0 < about.frames < _UNKNOWN:
        raise ConfigError(f"`{path}` has no samples, or does not state its length {_device_of(path)}.")
    return Fraction(about.frames, about.samplerate)


def _read_texts(chapter: Path) -> dict[str, str]:
    """Return the transcripts of a chapter by utterance, one for each of its FLAC files."""
    path = chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"Cannot read the transcripts `{path}`: {error.strerror} {_device_of(path)}."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` is not UTF-8 text: {error} {_device_of(path)}.") from None
    texts = _texts_of(lines, path)
    _check_pairs(chapter, texts, path)
    return texts


def _texts_of(lines: list[str], path: Path) -> dict[str, str]:
    """Return the texts of lines such as `103-1240-0000 CHAPTER ONE`, by utterance."""
    texts: dict[str, str] = {}
    for row, line in enumerate(lines, 1):
        name, _, text = line.strip().partition(" ")
        if not name:
            continue
        if not text:
            raise ConfigError(f"{name!r} has no text in row {row} of `{path}` {_device_of(path)}.")
        if name in texts:
            raise ConfigError(f"{name!r} is repeated in row {row} of `{path}` {_device_of(path)}.")
        texts[name] = text.strip()
    return texts


def _check_pairs(chapter: Path, texts: Mapping[str, str], path: Path) -> None:
    """Raise a `ConfigError` for a transcript without audio or audio without a transcript."""
    audio = {file.stem for file in chapter.glob("*.flac")}
    for name in sorted(texts.keys() - audio):
        raise ConfigError(f"{name!r} of `{path}` has no audio, `{chapter / name}.flac` {_device_of(path)}.")
    for name in sorted(audio - texts.keys()):
        raise ConfigError(f"`{chapter / name}.flac` has no transcript in `{path}` {_device_of(path)}.")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read `{path}`: {error.strerror} {_device_of(path)}.") from None


def _device_of(path: Path) -> str:
    """Return the device of a file, for an error message."""
    return f"(device {path.parent.parent.name!r})"
