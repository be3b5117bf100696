"""The speech task: features, batches, word error rate and bad rows."""

import tracemalloc
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("kaldi_native_fbank", reason="the extra `speech` is not installed")
pytest.importorskip("jiwer", reason="the extra `speech` is not installed")
soundfile = pytest.importorskip("soundfile", reason="the extra `speech` is not installed")

from partita import FedAlt, Undefined, named_partition, run  # noqa: E402
from partita.data.examples import examples_of  # noqa: E402
from partita.data.rows import BadData  # noqa: E402
from partita.errors import ConfigError  # noqa: E402
from partita.tasks.derived import derived_bytes  # noqa: E402
from partita.tasks.speech import _decode, character_error_rate, log_mel, speech, word_error_rate  # noqa: E402
from partita.tasks.tokenizer import train_subwords  # noqa: E402
from tables import write  # noqa: E402

RATE = 8000


def tone(pitch: float, seconds: float = 0.6, *, kind: str = "FLAC", channels: int = 1) -> dict[str, Any]:
    time = np.arange(int(seconds * RATE)) / RATE
    samples = (9000 * np.sin(2 * np.pi * pitch * time * (1 + 3 * time))).astype(np.int16)
    content = BytesIO()
    soundfile.write(content, np.stack([samples] * channels, axis=1), RATE, format=kind, subtype="PCM_16")
    return {"bytes": content.getvalue(), "path": None}


def rows(**changes: Any) -> list[dict[str, Any]]:
    return [
        {
            "device": f"d{device}",
            "split": "test" if number == 0 else "train",
            "audio": tone(200 + 50 * number + device),
            "text": ["one two", "two", "one"][number],
            **changes,
        }
        for device in range(2)
        for number in range(3)
    ]


def test_features_are_normalized_over_the_utterance() -> None:
    rng = np.random.default_rng(0)

    frames = log_mel(rng.standard_normal(RATE).astype(np.float32) * 0.1, RATE, features=40)

    # A second has 98 windows of 25 ms, one every 10 ms.
    assert frames.shape == (98, 40)
    assert torch.allclose(frames.mean(dim=0), torch.zeros(40), atol=1e-4)
    assert torch.allclose(frames.std(dim=0, correction=0), torch.ones(40), atol=1e-3)


def test_a_higher_tone_is_in_a_higher_band() -> None:
    def loudest(pitch: float) -> int:
        silence, tone = np.zeros(RATE // 2), np.sin(2 * np.pi * pitch * np.arange(RATE // 2) / RATE)
        frames = log_mel(np.concatenate([silence, 0.3 * tone]).astype(np.float32), RATE, features=20)
        return int((frames[60:].mean(dim=0)).argmax())

    assert log_mel(np.ones(RATE, np.float32) * 0.1, RATE, features=20).shape[1] == 20
    assert loudest(300) <= loudest(3000)


def test_a_run_trains_on_a_table_and_lower_is_better(tmp_path: Path) -> None:
    task = speech(data=str(write(tmp_path / "t.parquet", rows())))

    result = run(task, named_partition(task.model(), "input"), FedAlt(shared_lr=0.01), rounds=1)

    assert result.summary["direction"] == "down"
    table = {(row["device"], row["split"]): row for row in result.devices.to_pylist()}
    # "one two": two words.
    assert table["d0", "test"]["weight"] == 2
    assert task.model_options == {"features": 40, "outputs": len("enotw") + 1}


def test_audio_may_be_wav_with_two_channels(tmp_path: Path) -> None:
    flac = speech(data=str(write(tmp_path / "a.parquet", rows(audio=tone(300)))))
    wav = speech(data=str(write(tmp_path / "b.parquet", rows(audio=tone(300, kind="WAV", channels=2)))))

    one, other = (
        examples_of(task.devices["d0"]["train"]).batch_at(torch.tensor([0, 1])) for task in (flac, wav)
    )

    assert torch.allclose(one["features"], other["features"], atol=1e-4)
    assert one["lengths"].tolist() == [58, 58]
    assert one["texts"] == ["two", "one"]
    assert one["tokens"].shape == (2, 3)


def test_utterances_of_a_batch_are_padded(tmp_path: Path) -> None:
    given = rows()
    given[1]["audio"] = tone(300, 0.9)

    task = speech(data=str(write(tmp_path / "t.parquet", given)))
    batch = examples_of(task.devices["d0"]["train"]).batch_at(torch.tensor([0, 1]))

    assert batch["lengths"].tolist() == [88, 58]
    assert batch["features"].shape == (2, 88, 40)
    assert not batch["features"][1, 58:].any()


def test_a_tokenizer_can_be_loaded_from_a_file(tmp_path: Path) -> None:
    trained = train_subwords(["one two three", "three two", "one one two"] * 20, 20)
    (tmp_path / "tokens.model").write_bytes(trained.processor.serialized_model_proto())
    path = str(write(tmp_path / "t.parquet", rows()))

    task = speech(data=path, tokenizer=str(tmp_path / "tokens.model"))

    assert task.model_options["outputs"] == 21
    (tmp_path / "no.model").write_text("no")
    for name in ("no.model", "none.model"):
        with pytest.raises(ConfigError, match="Cannot read the sentencepiece model"):
            speech(data=path, tokenizer=str(tmp_path / name))


def test_word_error_rate_by_hand() -> None:
    # Of three words one is substituted, and one is inserted: 2 / 3.
    assert word_error_rate(["a x", "c e"], ["a b", "c"]) == pytest.approx(2 / 3)
    assert word_error_rate(["a b", ""], ["a b", "c d"]) == 0.5
    for metric in (word_error_rate, character_error_rate):
        with pytest.raises(Undefined, match="no words"):
            metric(["a"], [""])


def test_character_error_rate_by_hand() -> None:
    # "one two" to "one to": one of 7 characters is deleted; "three" to "thxree": one of 5 is inserted.
    assert character_error_rate(["one to", "thxree"], ["one two", "three"]) == pytest.approx(2 / 12)
    # A missing space is one character of three, and one word substituted and one deleted of two.
    assert character_error_rate(["ab"], ["a b"]) == pytest.approx(1 / 3)
    assert word_error_rate(["ab"], ["a b"]) == 1.0


def test_an_utterance_that_is_too_long_is_refused_by_its_header(tmp_path: Path) -> None:
    # 40 minutes of silence: 19,200,000 samples, of 4 bytes each, in a file of some kilobytes.
    content = BytesIO()
    soundfile.write(content, np.zeros(2400 * RATE, np.int16), RATE, format="FLAC", subtype="PCM_16")
    given = rows()
    given[4]["audio"] = {"bytes": content.getvalue(), "path": None}
    task = speech(data=str(write(tmp_path / "t.parquet", given)))
    tracemalloc.start()

    with pytest.raises(BadData, match="`audio` has 2400.0 s, more than `max_seconds` = 35"):
        task.devices["d1"]["train"]

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize("channels", [1, 2, 3, 9, 200])
def test_channels_are_averaged_as_if_they_were_read_at_once(channels: int) -> None:
    content, rng = BytesIO(), np.random.default_rng(0)
    samples = rng.integers(-(2**15), 2**15, (3 * 65_536 // channels + 1, channels)).astype(np.int16)
    soundfile.write(content, samples, RATE, format="WAV", subtype="PCM_16")
    content.seek(0)
    whole, _ = soundfile.read(content, dtype="float32", always_2d=True)

    found, rate = _decode({"audio": {"bytes": content.getvalue()}}, "audio", 35.0)

    assert rate == RATE
    assert np.array_equal(found, whole.mean(axis=1))


def test_a_sampling_rate_that_makes_seconds_huge_is_refused(tmp_path: Path) -> None:
    content = BytesIO()
    soundfile.write(content, np.zeros(4000, np.int16), 1_000_000, format="WAV", subtype="PCM_16")
    path = write(tmp_path / "t.parquet", rows(audio={"bytes": content.getvalue(), "path": None}))

    with pytest.raises(BadData, match="a sampling rate of 4000 to 192000 Hz, got 1000000"):
        speech(data=str(path)).devices["d1"]["train"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"audio": {"bytes": b"not audio", "path": None}}, "`audio` cannot be decoded as audio"),
        ({"audio": tone(300, 0.01)}, "`audio` is shorter than a window of 25 ms"),
        (
            {"audio": tone(300, 0.05)},
            "`audio` has 3 frames of 10 ms, too few for a transcript of 3 tokens, which needs 9",
        ),
        ({"audio": tone(300, 9.0)}, "`audio` has 9.0 s, more than `max_seconds` = 5"),
        ({"text": ""}, "`text` has no character that the tokenizer knows"),
        ({"text": None}, "`text` is empty"),
    ],
)
def test_a_bad_row_is_an_error_or_skipped(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    given = rows()
    given[4] |= change
    path = write(tmp_path / "t.parquet", given)
    lax = speech(data=str(path), max_seconds=5.0, skip_bad=True)

    with pytest.raises(BadData) as caught:
        examples_of(speech(data=str(path), max_seconds=5.0).devices["d1"]["train"])

    assert f"`t.parquet`, row 4, device 'd1': {reason}" in str(caught.value)
    assert len(examples_of(lax.devices["d1"]["train"])) == 1


def test_the_columns_can_have_other_names(tmp_path: Path) -> None:
    given = [{**row, "recording": row["audio"], "transcript": row["text"]} for row in rows()]
    given = [{k: v for k, v in row.items() if k not in ("audio", "text")} for row in given]
    given[1]["recording"] = None

    task = speech(
        data=str(write(tmp_path / "t.parquet", given)), audio="recording", text="transcript", skip_bad=True
    )

    assert [one.text for one in examples_of(task.devices["d0"]["train"]).utterances] == ["one"]
    assert task.skipped[0].reason == "`recording` is empty"


@pytest.mark.parametrize("tokens", [0, 8])
def test_the_tokenizer_of_another_run_can_be_used(tmp_path: Path, tokens: int) -> None:
    given = speech(data=str(write(tmp_path / "t.parquet", rows())), tokens=tokens)
    (tmp_path / "derived.json").write_bytes(derived_bytes(given.derived))
    other = str(write(tmp_path / "other.parquet", rows(text="tone")))

    task = speech(data=other, tokens=tokens, derived=str(tmp_path / "derived.json"))

    assert task.derived == given.derived
    assert task.model_options == given.model_options != speech(data=other).model_options
    first, again = (examples_of(t.devices["d0"]["test"]).batch_at(torch.arange(1)) for t in (given, task))
    assert first["texts"] == ["one two"]
    assert again["texts"] == ["tone"]
    with pytest.raises(ValueError, match="`tokens` must be"):
        speech(data=other, tokens=100, derived=str(tmp_path / "derived.json"))
    with pytest.raises(ValueError, match="`derived` and `tokenizer` exclude each other"):
        speech(data=other, tokenizer="x", derived=str(tmp_path / "derived.json"))


def test_the_tokenizer_does_not_depend_on_unseen_devices(tmp_path: Path) -> None:
    # By the hash of its id, d1 is unseen.
    own = [row | ({"text": "jazz quiz"} if row["device"] == "d1" else {}) for row in rows()]
    whole = str(write(tmp_path / "whole.parquet", own))
    seen = str(write(tmp_path / "seen.parquet", [row for row in own if row["device"] == "d0"]))

    task = speech(data=whole, unseen=0.3)

    assert task.derived == speech(data=seen).derived
    assert task.derived != speech(data=whole).derived
    assert list(task.devices) == ["d0", "d1"]
