"""LibriSpeech: read books by the speaker who reads them, in the corpus's own folders.

Librispeech: an ASR corpus based on public domain audio books
    V. Panayotov, G. Chen, D. Povey, S. Khudanpur. ICASSP 2015.
    https://www.openslr.org/12

Which chapter is a speaker's test set follows
    Federated Learning with Partial Model Personalization
    K. Pillutla, K. Malik, A. Mohamed, M. Rabbat, M. Sanjabi, L. Xiao. ICML 2022.
    https://arxiv.org/abs/2204.03809
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from partita.data.importers.source import Kind, Row, Survey, Tick
from partita.errors import ConfigError, needed
from partita.protocol import DeviceId

_PAPER = 902
"""The devices the paper keeps of `train-other-500`."""
_LEAST, _MOST, _BEST = Fraction(10, 100), Fraction(50, 100), Fraction(20, 100)
"""The shares of a speaker's audio that a test chapter may hold, both included, and the one to come near."""
_UNKNOWN = 2**62
"""A FLAC file that does not give its length has more frames than this, to libsndfile."""
_SINGLE = "fewer than two chapters"
_UNFIT = "no chapter with 10 to 50 % of the audio"


@dataclass(frozen=True, kw_only=True)
class LibriSpeech:
    """A subset of LibriSpeech; one chapter of each speaker is the test set.

    It is a chapter that holds 10 to 50 % of the speaker's audio by length; of several, the one closest to
    20 %; of several as close, the one with the smallest id. Texts are those of the transcripts in lower case.
    """

    path: Path
    """The subset's folder, such as `train-other-500`, with `<speaker>/<chapter>/` in it."""
    _tests: dict[DeviceId, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The test chapters of the speakers that a survey kept."""

    @property
    def columns(self) -> Mapping[str, Kind]:
        """The utterance and its transcript."""
        return {"audio": "audio", "text": "text"}

    def survey(self, tick: Tick) -> Survey:
        """Return which speakers have a test chapter; reads transcripts and the headers of the audio."""
        if not self.path.is_dir():
            raise ConfigError(f"There is no folder `{self.path}`.")
        speakers = sorted(_numbered(self.path), key=lambda folder: folder.name)
        if not speakers:
            subset = "give a subset's own, such as `LibriSpeech/train-other-500`"
            raise ConfigError(f"`{self.path}` has no folders `<speaker>/<chapter>`: {subset}.")
        kept: list[DeviceId] = []
        dropped = {_SINGLE: 0, _UNFIT: 0}
        for done, speaker in enumerate(speakers):
            tick(done, len(speakers))
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
    """Return the chapter that is a speaker's test set, or None where none will do.

    >>> choose_test({"7": Fraction(70), "8": Fraction(18), "9": Fraction(12)})
    '8'
    >>> choose_test({"7": Fraction(91), "8": Fraction(9)}) is None
    True
    """
    whole = sum(lengths.values(), Fraction())
    fit = [name for name, own in lengths.items() if whole * _LEAST <= own <= whole * _MOST]
    return min(fit, key=lambda name: (abs(lengths[name] - whole * _BEST), int(name)), default=None)


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
    """Return how long the audio of a file is, exactly, as its header has it."""
    soundfile = needed("soundfile", by="`partita import librispeech`", extra="import")
    try:
        about = soundfile.info(str(path))
    except soundfile.LibsndfileError as error:
        why = error.error_string.rstrip(".")
        raise ConfigError(f"`{path}` is no audio that can be read: {why} {_of(path)}.") from None
    if not 0 < about.frames < _UNKNOWN:
        raise ConfigError(f"`{path}` holds no audio, or does not say how much {_of(path)}.")
    return Fraction(about.frames, about.samplerate)


def _read_texts(chapter: Path) -> dict[str, str]:
    """Return the transcripts of a chapter by utterance: as many as it has FLAC files."""
    path = chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"Cannot read the transcripts `{path}`: {error.strerror} {_of(path)}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` is not a text in UTF-8: {error} {_of(path)}.") from None
    texts = _texts_of(lines, path)
    _check_pairs(chapter, texts, path)
    return texts


def _texts_of(lines: list[str], path: Path) -> dict[str, str]:
    """Return the texts of lines such as `103-1240-0000 CHAPTER ONE`, by what they begin with."""
    texts: dict[str, str] = {}
    for row, line in enumerate(lines, 1):
        name, _, text = line.strip().partition(" ")
        if not name:
            continue
        if not text:
            raise ConfigError(f"{name!r} has no text in row {row} of `{path}` {_of(path)}.")
        if name in texts:
            raise ConfigError(f"{name!r} comes again in row {row} of `{path}` {_of(path)}.")
        texts[name] = text.strip()
    return texts


def _check_pairs(chapter: Path, texts: Mapping[str, str], path: Path) -> None:
    """Refuse transcripts without audio, and audio without a transcript."""
    audio = {file.stem for file in chapter.glob("*.flac")}
    for name in sorted(texts.keys() - audio):
        raise ConfigError(f"{name!r} of `{path}` has no audio, `{chapter / name}.flac` {_of(path)}.")
    for name in sorted(audio - texts.keys()):
        raise ConfigError(f"`{chapter / name}.flac` has no transcript in `{path}` {_of(path)}.")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read `{path}`: {error.strerror} {_of(path)}.") from None


def _of(path: Path) -> str:
    """Return whose file this is, for an error."""
    return f"(device {path.parent.parent.name!r})"
