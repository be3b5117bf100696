"""LibriSpeech: its folders, and the paper's rules for the chapter that is the test set."""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile

from partita.data.importers.librispeech import LibriSpeech
from partita.data.importers.source import Imported, Survey, import_source
from partita.errors import ConfigError

RATE = 16_000


def write_chapter(subset: Path, speaker: str, chapter: str, *frames: int) -> Path:
    """Write a chapter with one utterance for each number of frames."""
    folder = subset / speaker / chapter
    folder.mkdir(parents=True)
    lines = []
    for number, count in enumerate(frames):
        name = f"{speaker}-{chapter}-{number:04}"
        sound = np.random.default_rng(number).integers(-999, 999, count).astype(np.int16)
        soundfile.write(folder / f"{name}.flac", sound, RATE, subtype="PCM_16")
        lines.append(f"{name} IT'S UTTERANCE {name}\n")
    (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    return folder


def write_speaker(subset: Path, speaker: str, chapters: dict[str, int]) -> None:
    for chapter, frames in chapters.items():
        write_chapter(subset, speaker, chapter, frames)


def imported(subset: Path, out: Path) -> tuple[Imported, list[dict]]:
    result = import_source(LibriSpeech(path=subset), out, progress=lambda done, total: None, about="x")
    return result, pq.read_table(out).to_pylist()


def surveyed(subset: Path) -> Survey:
    return LibriSpeech(path=subset).survey(lambda done, total: None)


def test_a_subset_becomes_rows_by_speaker(tmp_path: Path) -> None:
    subset = tmp_path / "train-other-500"
    test = write_chapter(subset, "103", "1240", 1500, 1000)
    train = write_chapter(subset, "103", "1241", 4000, 3500)

    result, rows = imported(subset, tmp_path / "out.parquet")

    names = ["103-1240-0000", "103-1240-0001", "103-1241-0000", "103-1241-0001"]
    folders = [test, test, train, train]
    assert result.lines() == ["Kept 1 device with 4 rows.", "1 devices: the paper has 902."]
    assert rows == [
        {
            "device": "103",
            "split": "test" if folder == test else "train",
            "audio": {"bytes": (folder / f"{name}.flac").read_bytes(), "path": f"{name}.flac"},
            "text": f"it's utterance {name}",
        }
        for folder, name in zip(folders, names, strict=True)
    ]


@pytest.mark.parametrize(
    ("chapters", "test"),
    [
        # Shares of the audio, in percent, by chapter.
        ({"5": 75, "6": 25}, "6"),  # The only one of 10 to 50 %.
        ({"5": 50, "6": 41, "7": 9}, "6"),  # Closer to 20 % than 50 is; 9 is too little.
        ({"5": 40, "6": 36, "7": 13, "8": 11}, "7"),  # 7 away; 11 and 36 are 9 and 16 away.
        ({"5": 45, "6": 31, "7": 24}, "7"),
        ({"5": 70, "6": 10, "7": 10, "8": 10}, "6"),  # 10 % is enough; of equals the smallest id.
        ({"5": 50, "6": 50}, "5"),  # 50 % is not too much.
        ({"11": 30, "2": 10, "3": 60}, "2"),  # Both 10 away: by number 2 comes before 11.
        ({"2": 30, "11": 10, "3": 60}, "2"),
    ],
)
def test_the_test_chapter_is_the_one_closest_to_a_fifth(
    tmp_path: Path, chapters: dict[str, int], test: str
) -> None:
    write_speaker(tmp_path / "in", "20", {name: 160 * share for name, share in chapters.items()})

    _, rows = imported(tmp_path / "in", tmp_path / "out.parquet")

    split = {row["audio"]["path"].split("-")[1]: row["split"] for row in rows}
    assert split == {name: "test" if name == test else "train" for name in chapters}


def test_lengths_are_summed_over_a_chapter_not_counted_in_utterances(tmp_path: Path) -> None:
    write_chapter(tmp_path / "in", "20", "5", 160, 160, 160, 160, 160)
    write_chapter(tmp_path / "in", "20", "6", 3200)

    _, rows = imported(tmp_path / "in", tmp_path / "out.parquet")

    assert [row["split"] for row in rows] == ["test"] * 5 + ["train"]


def test_speakers_with_one_chapter_or_none_that_fits_are_dropped(tmp_path: Path) -> None:
    write_speaker(tmp_path, "7", {"1": 1000})
    write_speaker(tmp_path, "30", {"1": 9100, "2": 900})
    write_speaker(tmp_path, "31", {"1": 8200, "2": 900, "3": 900})
    write_speaker(tmp_path, "200", {"1": 8000, "2": 2000})
    write_speaker(tmp_path, "40", {"1": 9000, "2": 1000})
    (tmp_path / "notes").mkdir()

    survey = surveyed(tmp_path)

    assert list(survey.devices) == ["200", "40"]
    assert survey.dropped == {"fewer than two chapters": 1, "no chapter with 10 to 50 % of the audio": 2}
    assert survey.paper == 902


def test_rows_need_no_survey(tmp_path: Path) -> None:
    write_speaker(tmp_path, "7", {"1": 8000, "2": 2000})

    rows = list(LibriSpeech(path=tmp_path).rows("7"))

    assert [row["split"] for row in rows] == ["train", "test"]


def test_the_survey_reports_its_progress(tmp_path: Path) -> None:
    for speaker in ("1", "2", "3"):
        write_speaker(tmp_path, speaker, {"1": 80, "2": 20})
    calls = []

    LibriSpeech(path=tmp_path).survey(lambda done, total: calls.append((done, total)))

    assert calls == [(0, 3), (1, 3), (2, 3)]


def test_a_transcript_without_audio_is_refused(tmp_path: Path) -> None:
    write_speaker(tmp_path, "7", {"1": 8000, "2": 2000})
    (tmp_path / "7/2/7-2-0000.flac").unlink()

    with pytest.raises(
        ConfigError, match=r"'7-2-0000' of `.*7-2.trans.txt` has no audio, .* \(device '7'\)\.$"
    ):
        surveyed(tmp_path)


def test_audio_without_a_transcript_is_refused(tmp_path: Path) -> None:
    write_speaker(tmp_path, "7", {"1": 8000, "2": 2000})
    (tmp_path / "7/2/7-2-0001.flac").write_bytes((tmp_path / "7/2/7-2-0000.flac").read_bytes())

    with pytest.raises(
        ConfigError, match=r"7-2-0001.flac` has no transcript in `.*7-2.trans.txt` \(device '7'\)"
    ):
        surveyed(tmp_path)


def test_a_chapter_without_transcripts_is_refused(tmp_path: Path) -> None:
    write_speaker(tmp_path, "7", {"1": 8000, "2": 2000})
    (tmp_path / "7/2/7-2.trans.txt").unlink()

    with pytest.raises(ConfigError, match=r"transcripts `.*7-2.trans.txt`: No such file .* \(device '7'\)"):
        surveyed(tmp_path)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (b"7-2-0000\n", r"'7-2-0000' has no text in row 1 of `.*7-2.trans.txt` \(device '7'\)"),
        (b"7-2-0000 A\n7-2-0000 B\n", r"'7-2-0000' is repeated in row 2 of `.*7-2.trans.txt` \(device '7'\)"),
        (b"7-2-0000 \xff\xff\n", r"7-2.trans.txt` is not UTF-8 text"),
    ],
)
def test_invalid_transcripts_are_refused(tmp_path: Path, text: bytes, wrong: str) -> None:
    write_speaker(tmp_path, "7", {"1": 8000, "2": 2000})
    (tmp_path / "7/2/7-2.trans.txt").write_bytes(text)

    with pytest.raises(ConfigError, match=wrong):
        surveyed(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a FLAC file at all"])
def test_audio_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    write_speaker(tmp_path, "7", {"1": 8000, "2": 2000})
    (tmp_path / "7/2/7-2-0000.flac").write_bytes(content)

    with pytest.raises(ConfigError, match=r"7-2-0000.flac` cannot be read: [^.]* \(device '7'\)\.$"):
        surveyed(tmp_path)


def test_audio_of_unknown_length_is_refused(tmp_path: Path) -> None:
    write_speaker(tmp_path, "7", {"1": 8000, "2": 2000})
    path = tmp_path / "7/2/7-2-0000.flac"
    data = bytearray(path.read_bytes())
    # STREAMINFO begins at byte 8; the number of samples is the 36 bits that end at its byte 18: 0 is unknown.
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    path.write_bytes(data)

    with pytest.raises(ConfigError, match=r"7-2-0000.flac` has no samples, or does not state its length"):
        surveyed(tmp_path)


def test_the_error_for_the_corpus_folder_names_a_subset(tmp_path: Path) -> None:
    write_speaker(tmp_path / "train-other-500", "7", {"1": 8000, "2": 2000})

    with pytest.raises(
        ConfigError, match="give the folder of a subset, such as `LibriSpeech/train-other-500`"
    ):
        surveyed(tmp_path)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no folder `.*nowhere`"):
        surveyed(tmp_path / "nowhere")


def test_a_missing_soundfile_is_an_error_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_speaker(tmp_path, "7", {"1": 8000, "2": 2000})
    monkeypatch.setitem(sys.modules, "soundfile", None)

    with pytest.raises(
        ConfigError, match=r"`partita import librispeech` needs soundfile: pip install 'partita\[import\]'"
    ):
        surveyed(tmp_path)
