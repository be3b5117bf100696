"""The text task: the vocabulary, the examples, and which words count."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from partita import FedSim, Partition, Undefined, run
from partita.data.examples import examples_of
from partita.data.rows import BadData
from partita.errors import ConfigError
from partita.tasks.derived import derived_bytes
from partita.tasks.measure import measure
from partita.tasks.text import BOS, EOS, OOV, PAD, perplexity, text, word_accuracy
from tables import write

ROWS = [
    {"device": "a", "split": "train", "text": "the cat and the dog"},
    {"device": "a", "split": "test", "text": "The bird"},
    {"device": "b", "split": "train", "text": "and the"},
    {"device": "b", "split": "test", "text": "zebra zebra zebra"},
]


def make_task(tmp_path: Path, **settings: Any) -> Any:
    return text(data=str(write(tmp_path / "t.parquet", ROWS)), **settings)


def test_the_vocabulary_is_the_most_frequent_words_of_training_texts(tmp_path: Path) -> None:
    # the 3, and 2, cat 1, dog 1: cat comes before dog in the alphabet.
    task = make_task(tmp_path, vocabulary_size=3, max_length=6)

    inputs, targets = task.devices["a"]["train"]

    the, and_, cat = 4, 5, 6
    assert inputs.tolist() == [[BOS, the, cat, and_, the, OOV]]
    assert targets.tolist() == [[the, cat, and_, the, OOV, EOS]]
    assert task.model_options == {"vocabulary_size": 7, "max_length": 6}


def test_long_texts_are_truncated_and_short_ones_padded(tmp_path: Path) -> None:
    short = make_task(tmp_path, vocabulary_size=3, max_length=3)
    long = make_task(tmp_path, vocabulary_size=3, max_length=8)

    assert short.devices["a"]["train"][0].tolist() == [[BOS, 4, 6]]
    assert short.devices["a"]["train"][1].tolist() == [[4, 6, 5]]
    assert long.devices["b"]["train"][0].tolist() == [[BOS, 5, 4, EOS, PAD, PAD, PAD, PAD]]
    assert long.devices["b"]["train"][1].tolist() == [[5, 4, EOS, PAD, PAD, PAD, PAD, PAD]]


def test_texts_are_lowercase_by_default(tmp_path: Path) -> None:
    assert make_task(tmp_path).devices["a"]["test"][1][0, 0].item() == 4
    assert make_task(tmp_path, lowercase=False).devices["a"]["test"][1][0, 0].item() == OOV


def test_a_vocabulary_can_be_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "counts").write_text("dog 90\nZebra 7\nDog 3\n\n")

    task = make_task(tmp_path, vocabulary=str(tmp_path / "counts"))

    assert task.model_options["vocabulary_size"] == 6
    assert task.devices["b"]["test"][1][0, :4].tolist() == [5, 5, 5, EOS]
    with pytest.raises(ConfigError, match="Cannot read the vocabulary"):
        make_task(tmp_path, vocabulary=str(tmp_path / "none"))


def test_padding_does_not_count_in_the_loss(tmp_path: Path) -> None:
    task = make_task(tmp_path, max_length=8)

    class Fixed(torch.nn.Module):
        def forward(self, words: torch.Tensor) -> torch.Tensor:
            scores = torch.zeros(*words.shape, 8)
            scores[..., PAD] = 100.0
            return scores

    # At every position but padding a wrong token has the score 100: a loss of 100 each.
    assert task.loss(Fixed(), task.devices["b"]["train"]).item() == pytest.approx(100.0)


def test_only_words_in_the_vocabulary_count_in_accuracy_and_in_weight() -> None:
    predicted = torch.tensor([[4, 5, EOS, PAD], [9, OOV, 7, EOS]])
    targets = torch.tensor([[4, 6, EOS, PAD], [9, OOV, 8, EOS]])

    # Of 4, 6, 9 and 8 two are right; OOV, EOS and PAD do not count.
    predictions = torch.stack([predicted, torch.zeros(2, 4)], dim=-1)
    assert word_accuracy(predictions, targets) == 0.5
    for metric in (word_accuracy, perplexity):
        with pytest.raises(Undefined, match="no word of the device is in the vocabulary"):
            metric(predictions[:, 3:], targets[:, 3:])


def test_perplexity_is_over_all_tokens_but_padding(tmp_path: Path) -> None:
    class Biased(torch.nn.Module):
        """Gives every token but padding the same score, and the end of a text one more by log 3."""

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            scores = torch.zeros(*words.shape, 7)
            scores[..., PAD] = -1e9
            scores[..., EOS] = torch.tensor(3.0).log()
            return scores

    # "and the dog": two words of the vocabulary, OOV, EOS and padding. Six tokens share 5 + 3 parts.
    rows = [
        {"device": "a", "split": s, "text": t}
        for s, t in (("train", "the and cat the and the"), ("test", "and the dog"))
    ]
    task = text(
        data=str(write(tmp_path / "t.parquet", rows)),
        vocabulary_size=3,
        max_length=9,
        metrics=["perplexity", "accuracy"],
    )

    measures = measure(task, Biased(), examples_of(task.devices["a"]["test"]))

    assert measures["perplexity"] == pytest.approx((8**3 * 8 / 3) ** (1 / 4))
    assert (measures["accuracy"], measures["weight"]) == (0.0, 2)
    assert measures["loss"] == pytest.approx(math.log(measures["perplexity"]))
    assert task.metrics["perplexity"].direction == "down"


def test_the_weight_of_a_device_is_its_number_of_known_words(tmp_path: Path) -> None:
    task = make_task(tmp_path, max_length=6)

    result = run(task, Partition(task.model()), FedSim(shared_lr=0.1), rounds=1)

    rows = {(row["device"], row["split"]): row for row in result.devices.to_pylist()}
    # "The bird" has one known word, "the cat and the dog" five, zebras are unknown.
    assert rows["a", "test"]["weight"] == 1
    assert rows["a", "train"]["weight"] == 5
    assert rows["a", "train"]["examples"] == 1
    assert rows["b", "test"]["weight"] == 0
    assert rows["b", "test"]["metric"] is None
    assert "no word of the device is in the vocabulary" in rows["b", "test"]["reason"]


def test_without_any_known_word_no_device_has_a_metric(tmp_path: Path) -> None:
    (tmp_path / "counts").write_text("nothing\n")
    task = make_task(tmp_path, vocabulary=str(tmp_path / "counts"), max_length=6)

    result = run(task, Partition(task.model()), FedSim(shared_lr=0.1), rounds=1)

    assert all(row["metric"] is None for row in result.devices.to_pylist())


def test_a_missing_text_is_an_error_or_skipped(tmp_path: Path) -> None:
    rows = [*ROWS[:2], {"device": "b", "split": "train", "text": None}, ROWS[3]]

    with pytest.raises(BadData, match="`t.parquet`, row 2, device 'b': `text` is empty"):
        text(data=str(write(tmp_path / "t.parquet", rows)))
    lax = text(data=str(write(tmp_path / "t.parquet", rows)), skip_bad=True)
    assert list(map(str, lax.skipped)) == ["`t.parquet`, row 2, device 'b': `text` is empty"]


def test_the_column_of_texts_can_have_another_name(tmp_path: Path) -> None:
    given = [{"body" if name == "text" else name: value for name, value in row.items()} for row in ROWS]

    renamed = text(data=str(write(tmp_path / "a.parquet", given)), text="body")
    usual = text(data=str(write(tmp_path / "b.parquet", ROWS)))

    assert all(
        torch.equal(a, b)
        for a, b in zip(renamed.devices["a"]["train"], usual.devices["a"]["train"], strict=True)
    )


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(
        ValueError, match="`vocabulary_size` and `max_length` must be at least 1, got 0 and 20."
    ):
        text(data="t.parquet", vocabulary_size=0)


def test_the_vocabulary_of_another_run_can_be_used(tmp_path: Path) -> None:
    given = make_task(tmp_path, vocabulary_size=3).derived
    (tmp_path / "derived.json").write_bytes(derived_bytes(given))
    rows = [{"device": "c", "split": split, "text": "dog dog the"} for split in ("train", "test")]
    path = str(write(tmp_path / "c.parquet", rows))

    task = text(data=path, derived=str(tmp_path / "derived.json"), max_length=4)

    # the 3, and 2, cat 1, as in the first table.
    assert given == {"kind": "text", "vocabulary": ["the", "and", "cat"]} == task.derived
    assert task.devices["c"]["train"][1].tolist() == [[OOV, OOV, 4, EOS]]
    with pytest.raises(ValueError, match="`derived` and `vocabulary` exclude each other"):
        text(data=path, derived=str(tmp_path / "derived.json"), vocabulary="words")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"kind": "image"}', "must have the derived values of a task of kind 'text', got 'image'"),
        ("[1]", "must have the derived values of a task of kind 'text', got"),
        ("", "Cannot read the derived values"),
    ],
)
def test_derived_values_of_another_task_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "derived.json").write_text(content)

    with pytest.raises(ConfigError, match=message):
        make_task(tmp_path, derived=str(tmp_path / "derived.json"))
