"""AudioMNIST: its folders, and recordings joined into utterances."""

import hashlib
import io
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile

from partita.data.importers.audiomnist import AudioMnist
from partita.data.importers.source import Imported, import_source
from partita.errors import ConfigError

RATE = 8_000
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def samples_of(digit: int, repetition: int) -> np.ndarray:
    """Return samples that identify a recording by their value and number; none is 0."""
    value = 1 + 100 * digit + repetition
    return np.full(20 + value % 50, value, np.int16)


def write_wav(path: Path, samples: np.ndarray, rate: int = RATE, subtype: str = "PCM_16") -> None:
    soundfile.write(path, samples, rate, format="WAV", subtype=subtype)


def write_speaker(folder: Path, speaker: str, *, repetitions: int = 5, digits: int = 10) -> None:
    (folder / speaker).mkdir(parents=True)
    for digit in range(digits):
        for repetition in range(repetitions):
            path = folder / speaker / f"{digit}_{speaker}_{repetition}.wav"
            write_wav(path, samples_of(digit, repetition))


def imported(source: AudioMnist, out: Path) -> tuple[Imported, list[dict]]:
    result = import_source(source, out, progress=lambda done, total: None, about="x")
    return result, pq.read_table(out).to_pylist()


def recordings_of(row: dict) -> list[np.ndarray]:
    """Return the recordings of an utterance, after a check of the 0.1 s of silence between each two."""
    buffer = io.BytesIO(row["audio"]["bytes"])
    about = soundfile.info(buffer)
    assert (about.format, about.subtype, about.channels, about.samplerate) == ("FLAC", "PCM_16", 1, RATE)
    buffer.seek(0)
    samples, _ = soundfile.read(buffer, dtype="int16")
    edges = np.flatnonzero(np.diff(samples != 0)) + 1
    runs = np.split(samples, edges)
    assert all(len(run) == RATE // 10 and not run.any() for run in runs[1::2])
    return runs[::2]


def test_every_recording_is_in_one_utterance_with_its_words(tmp_path: Path) -> None:
    write_speaker(tmp_path / "in", "01")

    _, rows = imported(AudioMnist(path=tmp_path / "in"), tmp_path / "out.parquet")

    used = Counter()
    for row in rows:
        audio = recordings_of(row)
        recordings = [divmod(int(samples[0]) - 1, 100) for samples in audio]
        used.update(recordings)
        assert row["text"].split() == [WORDS[digit] for digit, _ in recordings]
        for samples, recording in zip(audio, recordings, strict=True):
            np.testing.assert_array_equal(samples, samples_of(*recording))
    assert used == Counter({(digit, repetition): 1 for digit in range(10) for repetition in range(5)})


def test_utterances_have_two_to_five_digits_and_only_the_last_may_have_one(tmp_path: Path) -> None:
    for speaker in range(1, 11):
        write_speaker(tmp_path, f"{speaker:02}", repetitions=3)

    source = AudioMnist(path=tmp_path)
    texts = [[row["text"].split() for row in source.rows(f"speaker{n:02}")] for n in range(1, 11)]

    inner = {len(words) for own in texts for words in own[:-1]}
    last = {len(own[-1]) for own in texts}
    assert inner == {2, 3, 4, 5}
    assert last <= {1, 2, 3, 4, 5}
    assert len({tuple(map(tuple, own)) for own in texts}) == 10, "each speaker has another order"


def test_devices_are_speakers_and_paths_number_the_utterances(tmp_path: Path) -> None:
    write_speaker(tmp_path / "in", "07")
    write_speaker(tmp_path / "in", "60")
    (tmp_path / "in" / "notes").mkdir()
    (tmp_path / "in" / "audioMNIST_meta.txt").write_text("{}")

    result, rows = imported(AudioMnist(path=tmp_path / "in"), tmp_path / "out.parquet")

    assert list(result.survey.devices) == ["speaker07", "speaker60"]
    assert result.lines() == [f"Kept 2 devices with {len(rows)} rows."]
    for device in result.survey.devices:
        paths = [row["audio"]["path"] for row in rows if row["device"] == device]
        assert paths == [f"{device}-{number:03}.flac" for number in range(len(paths))]


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_the_test_set_is_the_share_with_the_smallest_digests(tmp_path: Path, share: float) -> None:
    write_speaker(tmp_path, "01")

    rows = list(AudioMnist(path=tmp_path, test_share=share).rows("speaker01"))

    keys = [f"{row['text']} {number}" for number, row in enumerate(rows)]
    first = sorted(keys, key=lambda key: hashlib.sha256(key.encode()).hexdigest())[: round(share * len(rows))]
    assert len(first) >= 3
    assert [key for key, row in zip(keys, rows, strict=True) if row["split"] == "test"] == [
        key for key in keys if key in first
    ]


@pytest.mark.parametrize(("share", "alone"), [(1e-6, "test"), (1 - 1e-6, "train")])
def test_every_device_has_a_test_and_a_training_row(tmp_path: Path, share: float, alone: str) -> None:
    write_speaker(tmp_path, "01")

    rows = list(AudioMnist(path=tmp_path, test_share=share).rows("speaker01"))

    assert [row["split"] for row in rows].count(alone) == 1
    assert len(rows) > 2


def test_the_same_seed_gives_the_same_utterances_and_another_gives_others(tmp_path: Path) -> None:
    write_speaker(tmp_path, "01")

    one = list(AudioMnist(path=tmp_path, seed=1).rows("speaker01"))
    again = list(AudioMnist(path=tmp_path, seed=1).rows("speaker01"))
    other = list(AudioMnist(path=tmp_path, seed=2).rows("speaker01"))

    assert one == again
    assert [row["text"] for row in one] != [row["text"] for row in other]


def test_speakers_with_one_utterance_are_dropped(tmp_path: Path) -> None:
    write_speaker(tmp_path, "01")
    write_speaker(tmp_path, "02", repetitions=1, digits=2)
    (tmp_path / "03").mkdir()

    survey = AudioMnist(path=tmp_path).survey(lambda done, total: None)

    assert list(survey.devices) == ["speaker01"]
    assert survey.dropped == {"fewer than two utterances": 2}


def test_recordings_of_different_rates_are_refused(tmp_path: Path) -> None:
    write_speaker(tmp_path / "in", "01")
    write_wav(tmp_path / "in/01/4_01_2.wav", samples_of(4, 2), rate=16_000)

    with pytest.raises(
        ConfigError, match=r"others of device 'speaker01' (8000|16000) Hz: .* must have the same"
    ):
        imported(AudioMnist(path=tmp_path / "in"), tmp_path / "out.parquet")


@pytest.mark.parametrize("content", [b"", b"RIFF and nothing else"])
def test_a_recording_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    write_speaker(tmp_path / "in", "01")
    (tmp_path / "in/01/4_01_2.wav").write_bytes(content)

    with pytest.raises(
        ConfigError, match=r"The audio file `.*4_01_2.wav` cannot be read: .* \(device 'speaker01'\)\.$"
    ):
        imported(AudioMnist(path=tmp_path / "in"), tmp_path / "out.parquet")


@pytest.mark.parametrize(
    ("samples", "subtype", "wrong"),
    [
        (np.ones((30, 2), np.int16), "PCM_16", "must be PCM_16 with 1 channel, got PCM_16 with 2 channels"),
        (np.full(30, 0.5), "FLOAT", "must be PCM_16 with 1 channel, got FLOAT with 1 channels"),
        (np.ones(0, np.int16), "PCM_16", "has no samples"),
        (np.zeros(60 * RATE + 1, np.int16), "PCM_16", "has more than 60 s, too long for one digit"),
    ],
)
def test_a_recording_in_another_format_is_refused(
    tmp_path: Path, samples: np.ndarray, subtype: str, wrong: str
) -> None:
    write_speaker(tmp_path / "in", "01")
    write_wav(tmp_path / "in/01/4_01_2.wav", samples, subtype=subtype)

    with pytest.raises(ConfigError, match=rf"4_01_2.wav` {wrong} \(device 'speaker01'\)\.$"):
        imported(AudioMnist(path=tmp_path / "in"), tmp_path / "out.parquet")


@pytest.mark.parametrize("name", ["4_02_2.wav", "44_01_2.wav", "four.wav"])
def test_a_recording_with_another_name_is_refused(tmp_path: Path, name: str) -> None:
    write_speaker(tmp_path, "01")
    write_wav(tmp_path / "01" / name, samples_of(4, 2))

    with pytest.raises(ConfigError, match=f"must be named `<digit>_01_<repetition>.wav`, got `{name}`"):
        AudioMnist(path=tmp_path).survey(lambda done, total: None)


def test_a_folder_without_speakers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="has no folders of speakers: give the folder that has `01` to `60` in it"
    ):
        AudioMnist(path=tmp_path).survey(lambda done, total: None)
    with pytest.raises(ConfigError, match="There is no folder `.*nowhere`"):
        AudioMnist(path=tmp_path / "nowhere").survey(lambda done, total: None)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_that_leaves_a_split_empty_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="`test_share` must be between 0 and 1"):
        AudioMnist(path=Path(), test_share=share)


def test_a_missing_soundfile_is_an_error_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_speaker(tmp_path, "01")
    monkeypatch.setitem(sys.modules, "soundfile", None)

    with pytest.raises(
        ConfigError, match=r"`partita import audiomnist` needs soundfile: pip install 'partita\[import\]'"
    ):
        next(AudioMnist(path=tmp_path).rows("speaker01"))
