"""Texts in the tokens of a pretrained model: language modeling and classification, from a config."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
pytest.importorskip("peft", reason="the extra `hf` is not installed")

from transformers import AutoModelForCausalLM, AutoTokenizer

import partita
from partita.cli import main
from partita.data.examples import examples_of
from partita.data.rows import Rows
from partita.models.hub import FOLDER
from partita.models.pretrained import PADDING, Pretrained
from partita.reuse import settling
from partita.runs.folder import RunFolder
from partita.tasks.model_text import token_accuracy, token_perplexity
from partita.tasks.text import text
from tables import png, write
from tiny_models import write_bert, write_llama, write_vit

CONFIG = """
workers = 1
[task]
kind = "text"
data = "texts.parquet"
tokenizer = "model"
max_length = 6
metrics = ["perplexity", "accuracy"]
[model]
name = "hf"
path = "llama"
lora = { r = 2, alpha = 4, targets = ["q_proj", "v_proj"], layers = [-1] }
[partition]
personal = "lora_b"
[pretrain]
rounds = 1
devices_per_round = 2
[personalize]
rounds = 2
devices_per_round = 2
personal_lr = 0.1
shared_lr = 0.1
[finetune]
epochs = 1
"""
IMAGES = """
workers = 1
[task]
kind = "image"
data = "images.parquet"
size = 8
channels = 3
mean = "imagenet"
std = "imagenet"
[model]
name = "hf"
path = "vit"
kind = "image-classification"
lora = { r = 2, targets = ["q_proj", "v_proj"] }
[partition]
personal = "head"
[pretrain]
rounds = 1
devices_per_round = 2
[personalize]
rounds = 1
devices_per_round = 2
[finetune]
epochs = 1
"""
WORDS = [
    "the cat sat on a mat",
    "a dog ran far away",
    "the dog sat here",
    "now the cat ran",
    "a mat",
    "the mat here now",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models and a table."""
    folder = tmp_path_factory.mktemp("texts")
    write_llama(folder / "llama")
    write_bert(folder / "bert")
    rows = [
        {"device": f"d{device}", "text": content, "label": row % 3, "split": "test" if row > 3 else "train"}
        for device in range(3)
        for row, content in enumerate(WORDS)
    ]
    write(folder / "texts.parquet", rows)
    (folder / "tokens.toml").write_text(CONFIG)
    (folder / "lora_ranks.py").write_text("def rank(device):\n    return int(device[1:]) % 2 + 1\n")
    return folder


def test_inputs_and_targets_are_the_tokens_of_the_models_tokenizer(folder: Path) -> None:
    task = text(data=str(folder / "texts.parquet"), tokenizer=str(folder / "llama"), max_length=6)

    inputs, targets = examples_of(task.devices["d0"]["train"]).batch_at(torch.tensor([0, 2]))

    own = AutoTokenizer.from_pretrained(folder / "llama")
    long, short = (own(words, add_special_tokens=False)["input_ids"] for words in (WORDS[0], WORDS[2]))
    begin, end, pad = own.bos_token_id, own.eos_token_id, PADDING
    assert inputs.tolist() == [[begin, *long[:5]], [begin, *short, pad]]
    assert targets.tolist() == [long, [*short, end, pad]]
    assert task.weight(targets) == 6 + 5


def test_a_prefix_precedes_every_text_and_does_not_count(folder: Path) -> None:
    source = {"data": str(folder / "texts.parquet"), "tokenizer": str(folder / "llama"), "max_length": 6}
    task = text(**source, prefix="</s>now here")

    inputs, targets = examples_of(task.devices["d0"]["train"]).batch_at(torch.tensor([0, 2]))

    own, pad = AutoTokenizer.from_pretrained(folder / "llama"), PADDING
    long, short = (own(words, add_special_tokens=False)["input_ids"] for words in (WORDS[0], WORDS[2]))
    first = [own.eos_token_id, *own.convert_tokens_to_ids(["now", "here"])]
    assert inputs.tolist() == [[*first, *long[:3]], [*first, *short[:3]]]
    assert targets.tolist() == [[pad, pad, *long[:4]], [pad, pad, *short]]
    assert task.weight(targets) == 4 + 4
    with pytest.raises(ValueError, match="`prefix` must have at most `max_length` = 2 tokens, got 3"):
        text(**{**source, "max_length": 2}, prefix="</s>now here")


def test_a_long_text_is_continued_after_the_prefix_and_its_last_tokens(folder: Path) -> None:
    task = text(data=str(folder / "texts.parquet"), tokenizer=str(folder / "llama"), max_length=3)
    assert task.predictor is not None
    rows = Rows("d0", "test", [("texts.parquet", 0)], [{"text": "the cat sat on a mat"}])

    inputs, lengths = task.predictor.examples(rows)

    own = AutoTokenizer.from_pretrained(folder / "llama")
    assert inputs.tolist() == [[own.bos_token_id, *own.convert_tokens_to_ids(["a", "mat"])]]
    assert lengths.tolist() == [3]


def test_perplexity_and_accuracy_are_those_of_the_plain_model(folder: Path) -> None:
    task = text(data=str(folder / "texts.parquet"), tokenizer=str(folder / "llama"), max_length=6)
    batch = examples_of(task.devices["d0"]["train"]).batch_at(torch.arange(4))
    model = task.model().eval()

    with torch.no_grad():
        predictions, targets = task.predict(model, batch)
        loss = task.loss(model, batch)
        plain = AutoModelForCausalLM.from_pretrained(folder / "llama").eval()
        losses, correct = [], []
        for row, row_targets in zip(batch[0], targets, strict=True):
            length = int((row_targets != PADDING).sum())
            scores = plain(input_ids=row[None, :length]).logits[0]
            losses.append(nn.functional.cross_entropy(scores, row_targets[:length], reduction="none"))
            correct.append(scores.argmax(dim=1) == row_targets[:length])

    mean = torch.cat(losses).mean().item()
    assert loss.item() == pytest.approx(mean, rel=1e-5)
    assert token_perplexity(predictions, targets) == pytest.approx(math.exp(mean), rel=1e-5)
    assert token_accuracy(predictions, targets) == pytest.approx(torch.cat(correct).double().mean().item())


@pytest.mark.slow
def test_a_config_trains_lora_and_the_run_is_known_by_the_content_of_its_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["run", str(folder / "tokens.toml"), f"out={out}", "--quiet"]) == 0

    values = RunFolder(out).values
    assert values["task"]["tokenizer"] == "model"
    assert values["made_with"]["model.path"].startswith("sha256 ")
    assert (out / values["model"]["path"]).resolve() == folder / "llama"
    summary = json.loads((out / "summary.json").read_text())
    assert summary["metric"] == "perplexity"
    assert summary["direction"] == "down"
    assert sum(path.stat().st_size for path in out.rglob("*.safetensors")) < 60_000

    config = folder / "llama/config.json"
    before = config.read_text()
    config.write_text(before + " ")
    assert main(["run", "--resume", str(out)]) == 2
    assert "has other content than when the run started" in capsys.readouterr().err
    config.write_text(before)
    monkeypatch.setenv(FOLDER, str(folder))
    assert main(["describe", str(folder / "tokens.toml"), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)["partitions"]["lora_b"]
    assert (described["personal"], described["shared"]) == (2 * (8 + 4), 2 * (8 + 8))
    assert described["frozen"] > 900


def test_what_is_sent_and_computed_once_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settling, "MIN_OPERATIONS", 0)
    write_llama(tmp_path / "llama", dim=64)
    rows = [{"device": "d0", "text": content} for content in 2 * WORDS]
    write(tmp_path / "texts.parquet", rows)
    (tmp_path / "tokens.toml").write_text(CONFIG)

    assert main(["describe", str(tmp_path / "tokens.toml"), "personalize.batch_size=8", "--json"]) == 0

    described = json.loads(capsys.readouterr().out)["partitions"]["lora_b"]
    # LoRA of rank 2 beside q_proj and v_proj of one block: each of the two shared A has 2 x 64 values of 4 bytes.
    assert described["up_bytes"] == described["down_bytes"] == 2 * (2 * 64) * 4
    # B alone moves, then A alone, each from the first of its layers on.
    reuse, layer = described["reuse"], "network.model.layers.1.self_attn.q_proj"
    assert reuse["personal"]["begins"] == f"{layer}.lora_B.default"
    assert reuse["shared"]["begins"] == f"{layer}.lora_A.default"
    # Of each of 6 tokens at least its state and the normalized one, with 64 values, and those of q, k and v.
    assert reuse["shared"]["kept_bytes"] >= 6 * (3 * 64 + 2 * 32) * 4
    # Before B, the two values of each A besides.
    assert reuse["personal"]["kept_bytes"] == reuse["shared"]["kept_bytes"] + 6 * (2 * 2) * 4


@pytest.mark.slow
def test_a_classifier_is_trained_by_a_column_of_labels(folder: Path, tmp_path: Path) -> None:
    given = ["task.label=label", "task.metrics=accuracy", "model.path=bert"]
    given += ["model.lora.targets=['query']", "partition.personal=head", f"out={tmp_path / 'run'}", "--quiet"]

    assert main(["run", str(folder / "tokens.toml"), *given]) == 0

    result = partita.open(tmp_path / "run")
    assert {name: tuple(tensor.shape) for name, tensor in result.personal("d0").items()} == {
        "network.classifier.weight": (3, 8),
        "network.classifier.bias": (3,),
    }
    assert json.loads((tmp_path / "run/derived.json").read_text()) == {"kind": "text", "classes": 3}


@pytest.mark.slow
def test_a_classifier_is_described_without_its_table(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FOLDER, str(folder))
    given = ["task.data=missing.parquet", "task.label=topic", "task.classes=5", "task.metrics=accuracy"]
    given += ["model.path=bert", "model.kind=sequence-classification", "model.lora.targets=['query']"]
    given += ["partition.personal=head", "--json"]
    (tmp_path / "tokens.toml").write_text(CONFIG)

    assert main(["describe", str(tmp_path / "tokens.toml"), *given]) == 0

    described = json.loads(capsys.readouterr().out)
    assert described["notes"] == ["`missing.parquet` is missing: a placeholder is used."]
    assert described["partitions"]["head"]["personal"] == 5 * (8 + 1)


@pytest.mark.slow
def test_images_in_color_are_classified(folder: Path, tmp_path: Path) -> None:
    rows = [
        {
            "device": f"d{d}",
            "image": png(40 * n, mode="RGB"),
            "label": n % 2,
            "split": "test" if n > 3 else "train",
        }
        for d in range(3)
        for n in range(6)
    ]
    write(tmp_path / "images.parquet", rows)
    write_vit(tmp_path / "vit")
    (tmp_path / "images.toml").write_text(IMAGES)

    assert main(["run", str(tmp_path / "images.toml"), f"out={tmp_path / 'run'}", "--quiet"]) == 0

    personal = partita.open(tmp_path / "run").personal("d1")
    assert {tuple(tensor.shape) for tensor in personal.values()} == {(2, 8), (2,)}


_FULL = ["partition.personal=full", "partition.proximal=0.0"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.name="], "set `model.name` to 'hf', and `model.path`"),
        (["task.vocabulary=words.txt"], "`task.vocabulary`"),
        (["task.tokenizer=", "task.label=label"], "`label` and `classes` need `tokenizer`"),
        (["task.prefix=now", "task.label=label"], "`prefix` and `label` exclude each other"),
        (["task.max_length=64"], "A text must have at most 32 tokens, got 64."),
        (["model.lora=3"], "`lora` must be a table with the keys r, alpha, targets, layers, got 3."),
        (["model.file=5"], "`model.file` must be a string, got 5."),
        (["model.file=none.gguf"], "`model.file` must be a GGUF file in"),
        (["model.kind=sequence-classification"], "`model.kind` must be 'causal-lm' for this task"),
        (
            ["task.label=label", "task.metrics=accuracy", "model.kind=causal-lm"],
            "`model.kind` must be 'sequence-classification' for this task, got 'causal-lm'.",
        ),
        (
            ["personalize.method=knn_per", "partition.personal=none"],
            "kNN-Per needs a task whose targets are classes",
        ),
        (
            ["personalize.method=apfl", *_FULL, "personalize.alpha=2"],
            "[personalize] `method` = 'apfl': `alpha` must be from 0 to 1, got 2.0.",
        ),
        (["partition.adapter_width=lora_ranks:rank"], "it must declare `fills`"),
        (
            ["partition.personal=output"],
            "names no part 'output'. Known: none, lora, lora_b, head, full, norm",
        ),
    ],
    ids=str,
)
def test_a_bad_setting_is_one_clear_line(
    folder: Path, changes: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(folder / "tokens.toml"), *changes, "--quiet"]) == 2

    error: Any = capsys.readouterr().err
    assert message.lower() in error.lower()
    assert error.count("\n") == 1


@pytest.mark.slow
def test_ranks_of_shared_lora_from_a_config(folder: Path, tmp_path: Path) -> None:
    given = ["task.label=label", "task.metrics=accuracy", "model.path=bert", "model.lora.targets=['query']"]
    given += [
        "personalize.method=hetlora",
        "partition.shared=rest",
        "partition.adapter_width=lora_ranks:rank",
    ]

    assert main(["run", str(folder / "tokens.toml"), *given, f"out={tmp_path / 'run'}", "--quiet"]) == 0

    result = partita.open(tmp_path / "run")
    for device, rank in {"d0": 1, "d1": 2, "d2": 1}.items():
        shapes = {name: tuple(t.shape) for name, t in result.model(device).named_parameters()}
        layer = "network.bert.encoder.layer.1.attention.self.query"
        assert shapes[f"{layer}.lora_A.default.weight"] == (rank, 8)
    assert main(["export", str(tmp_path / "run"), "d0", str(tmp_path / "adapter")]) == 0
    saved = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    # The scale is 4 / 2, as for the largest rank.
    assert (saved["r"], saved["lora_alpha"]) == (1, 2)


@pytest.mark.slow
def test_the_next_tokens_are_predicted_without_the_scores_of_all_positions(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["run", str(folder / "tokens.toml"), f"out={tmp_path / 'run'}", "--quiet"]) == 0
    asked = [{"device": f"d{n % 3}", "text": content} for n, content in enumerate(WORDS)]
    write(tmp_path / "asked.parquet", asked)
    out, scores_of, scored = tmp_path / "predictions.parquet", Pretrained._scores, list[bool]()

    def record(self: Pretrained, tokens: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        scored.append(at is None)
        return scores_of(self, tokens, at)

    with monkeypatch.context() as patch:
        patch.setattr(Pretrained, "_scores", record)
        assert main(["predict", str(tmp_path / "run"), str(tmp_path / "asked.parquet"), str(out)]) == 0

    assert scored
    assert not any(scored)
    own = AutoTokenizer.from_pretrained(folder / "llama")
    result = partita.open(tmp_path / "run")
    for row, given in zip(pq.read_table(out).to_pylist(), asked, strict=True):
        tokens = [own.bos_token_id, *own(given["text"], add_special_tokens=False)["input_ids"][-5:]]
        with torch.no_grad():
            scores = result.model(given["device"])(torch.tensor([tokens]))[0, -1].double().softmax(dim=0)
        assert row["prediction"] == own.decode([int(scores.argmax())])
        assert row["probability"] == pytest.approx(scores.max().item(), rel=1e-4)
