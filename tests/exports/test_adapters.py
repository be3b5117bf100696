"""Adapter folders and merged models of pretrained models, as docs/how-to/pretrained.md has them, without Partita."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
pytest.importorskip("peft", reason="the extra `hf` is not installed")

import safetensors.torch

import partita
from opened import OPENINGS, logits_elsewhere, own_logits
from partita.cli import main
from tables import png, write
from tiny_models import write_bert, write_distilbert, write_llama, write_roberta, write_vit

CONFIG = """
workers = 1
[task]
kind = "text"
data = "texts.parquet"
tokenizer = "model"
max_length = 6
[model]
name = "hf"
path = "llama"
lora = { r = 2, alpha = 4, targets = ["q_proj", "v_proj"], layers = [1] }
[partition]
personal = "lora_b"
[pretrain]
rounds = 0
[personalize]
rounds = 2
devices_per_round = 2
personal_lr = 1.0
shared_lr = 1.0
[finetune]
epochs = 0
"""
CLASSES = [
    "task.label=label",
    "model.path=bert",
    "model.kind=sequence-classification",
    "model.lora.targets=['query']",
    "partition.personal=head",
]
IMAGES = """
workers = 1
[task]
kind = "image"
data = "images.parquet"
size = 8
channels = 3
[model]
name = "hf"
path = "vit"
kind = "image-classification"
lora = { r = 2, targets = ["q_proj", "v_proj"] }
[partition]
personal = "lora"
[pretrain]
rounds = 0
[personalize]
rounds = 2
devices_per_round = 2
personal_lr = 0.1
shared_lr = 0.1
[finetune]
epochs = 0
"""
TOKENS = torch.tensor([[2, 4, 5, 6], [2, 7, 8, 9]])
INPUTS = {
    "lm": {"input_ids": TOKENS},
    "classes": {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)},
    "images": {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)},
}
BASES = {"lm": "llama", "classes": "bert", "images": "vit"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of language modeling and one of classification."""
    folder = tmp_path_factory.mktemp("adapters")
    write_llama(folder / "llama")
    write_bert(folder / "bert")
    words = ["the cat sat", "a dog ran far away", "the mat", "now the cat ran", "here a mat"]
    rows = [
        {"device": f"d{device}", "text": text, "label": row % 3, "split": "test" if row > 3 else "train"}
        for device in range(2)
        for row, text in enumerate(words)
    ]
    write(folder / "texts.parquet", rows)
    (folder / "run.toml").write_text(CONFIG)
    for name, changes in {"lm": [], "classes": CLASSES}.items():
        assert main(["run", str(folder / "run.toml"), *changes, f"out={folder / name}", "--quiet"]) == 0
    return folder


@pytest.fixture(scope="module")
def images(runs: Path) -> Path:
    """The same folder, with a run of image classification."""
    write_vit(runs / "vit")
    rows = [
        {"device": f"d{device}", "image": png(40 * row, mode="RGB"), "label": row % 3, "split": split}
        for device in range(2)
        for row, split in enumerate(("train", "train", "train", "train", "test"))
    ]
    write(runs / "images.parquet", rows)
    (runs / "images.toml").write_text(IMAGES)
    assert main(["run", str(runs / "images.toml"), f"out={runs / 'images'}", "--quiet"]) == 0
    return runs


def logits_of_run(run: Path, device: str, kind: str) -> torch.Tensor:
    """Return what the model of a device in a run computes."""
    return own_logits(run, device, next(iter(INPUTS[kind].values())))


@pytest.mark.slow
def test_the_folder_has_lora_under_peft_names_and_nothing_of_the_base(runs: Path, tmp_path: Path) -> None:
    assert main(["export", str(runs / "lm"), "d0", str(tmp_path / "adapter"), "--json"]) == 0

    saved = safetensors.torch.load_file(tmp_path / "adapter/adapter_model.safetensors")
    layer = "base_model.model.model.layers.1.self_attn"
    assert saved.keys() == {f"{layer}.{p}_proj.lora_{f}.weight" for p in "qv" for f in "AB"}
    own = partita.open(runs / "lm").personal("d0")
    name = "network.model.layers.1.self_attn.q_proj.lora_B.default.weight"
    assert torch.equal(saved[f"{layer}.q_proj.lora_B.weight"], own[name])
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["layers_to_transform"]) == (2, 4, [1])
    assert config["task_type"] == "CAUSAL_LM"
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


@pytest.mark.slow
def test_all_devices_are_exported_as_a_folder_each(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "adapters"

    assert main(["export", str(runs / "lm"), "--all", str(out), "--quiet"]) == 0

    index = json.loads((out / "index.json").read_text())
    assert index["kind"] == "adapter"
    assert index["devices"].keys() == {"d0", "d1"}
    for device, entry in index["devices"].items():
        alone = tmp_path / device
        assert main(["export", str(runs / "lm"), device, str(alone)]) == 0
        assert files_in(out / entry["file"]) == files_in(alone)
    assert len({entry["file"] for entry in index["devices"].values()}) == 2


KILL = """
import os, signal, sys
from partita.cli import main
from partita.exports import adapters

def killed(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)

adapters._check = killed
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("given", [["d0"], ["d0", "--merged"], ["--all"]], ids=" ".join)
def test_an_export_that_was_killed_can_be_repeated_and_is_private(
    runs: Path, tmp_path: Path, given: list[str]
) -> None:
    out = tmp_path / "out"
    command = ["export", str(runs / "lm"), *given[:1], str(out), *given[1:], "--quiet"]
    killed = subprocess.run([sys.executable, "-c", KILL, *command], check=False, capture_output=True)
    left = tmp_path / "out.partita-export"
    written = [path.name for path in left.rglob("*") if path.is_file()]

    assert killed.returncode == -signal.SIGKILL
    assert any(name.endswith(("config.json", ".safetensors")) for name in written)
    assert not out.exists()
    assert main(command) == 0

    assert not left.exists()
    files = [path for path in out.rglob("*") if path.is_file()]
    folders = [out, *(path for path in out.rglob("*") if path.is_dir())]
    assert any(path.name.endswith("model.safetensors") for path in files)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert "export.partita" not in {path.name for path in files}


@pytest.mark.slow
def test_the_files_of_an_adapter_are_on_disk_before_the_folder_gets_its_name(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, synced = tmp_path / "out", set[str]()
    sync, rename = os.fsync, Path.rename

    def noted(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        if target == out:
            assert {"adapter_config.json", "adapter_model.safetensors", path.name} <= synced
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "rename", renamed)

    assert main(["export", str(runs / "lm"), "d0", str(out)]) == 0

    assert out.is_dir()


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_peft_alone_opens_it_with_the_same_bits(images: Path, tmp_path: Path, name: str) -> None:
    run = images / name
    assert main(["export", str(run), "d1", str(tmp_path / "adapter")]) == 0
    (tmp_path / "base").symlink_to(images / BASES[name])

    found = logits_elsewhere(OPENINGS[name], INPUTS[name], tmp_path)

    assert torch.equal(found, logits_of_run(run, "d1", name))
    alone = OPENINGS[name].replace('PeftModel.from_pretrained(base, "adapter")', "base")
    assert not torch.equal(found, logits_elsewhere(alone, INPUTS[name], tmp_path))
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["task_type"] == {"lm": "CAUSAL_LM", "classes": "SEQ_CLS", "images": None}[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_transformers_alone_opens_a_merged_model(images: Path, tmp_path: Path, name: str) -> None:
    assert main(["export", str(images / name), "d1", str(tmp_path / "whole"), "--merged"]) == 0

    kind = {"lm": "CausalLM", "classes": "SequenceClassification", "images": "ImageClassification"}[name]
    found = logits_elsewhere(OPENINGS["whole"].replace("CausalLM", kind), INPUTS[name], tmp_path)

    torch.testing.assert_close(found, logits_of_run(images / name, "d1", name))


@pytest.mark.slow
def test_a_base_in_bfloat16_is_opened_as_float32(runs: Path, tmp_path: Path) -> None:
    write_llama(tmp_path / "base", dtype=torch.bfloat16)
    run = tmp_path / "run"
    given = [f"model.path={tmp_path / 'base'}", f"out={run}", "--quiet"]
    assert main(["run", str(runs / "run.toml"), *given]) == 0
    assert main(["export", str(run), "d1", str(tmp_path / "adapter")]) == 0
    assert main(["export", str(run), "d1", str(tmp_path / "whole"), "--merged"]) == 0

    found = logits_elsewhere(OPENINGS["lm"], INPUTS["lm"], tmp_path)

    assert torch.equal(found, logits_of_run(run, "d1", "lm"))
    as_in_the_file = OPENINGS["lm"].replace(", dtype=torch.float32", "")
    assert logits_elsewhere(as_in_the_file, INPUTS["lm"], tmp_path).dtype == torch.bfloat16
    whole = logits_elsewhere(OPENINGS["whole"], INPUTS["lm"], tmp_path)
    torch.testing.assert_close(whole, found)


@pytest.mark.slow
def test_the_a_of_ffa_lora_is_exported_though_it_is_not_trained(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = ["model.ffa=true", "partition.personal=none", f"out={run}", "--quiet"]
    assert main(["run", str(runs / "run.toml"), *given]) == 0
    (tmp_path / "base").symlink_to(runs / "llama")

    assert main(["export", str(run), "d1", str(tmp_path / "adapter")]) == 0

    saved = safetensors.torch.load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert len(saved) == 4
    assert all(tensor.any() for tensor in saved.values())
    assert all(".lora_B." in name for name in partita.open(run).shared)
    found = logits_elsewhere(OPENINGS["lm"], INPUTS["lm"], tmp_path)
    assert torch.equal(found, logits_of_run(run, "d1", "lm"))
    assert main(["export", str(run), "d1", str(tmp_path / "whole"), "--merged"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("writes", [write_roberta, write_distilbert])
def test_a_head_of_two_layers_is_exported_whole(runs: Path, tmp_path: Path, writes: Any) -> None:
    targets = {"write_roberta": "query", "write_distilbert": "q_lin"}[writes.__name__]
    given = [f"model.path={writes(tmp_path / 'base')}", f"model.lora.targets=['{targets}']"]
    changes = [*CLASSES, *given, "partition.personal=lora", f"out={tmp_path / 'run'}", "--quiet"]
    assert main(["run", str(runs / "run.toml"), *changes]) == 0

    # The folder is opened by peft, and must predict the same bits, before it gets its name.
    assert main(["export", str(tmp_path / "run"), "d0", str(tmp_path / "adapter")]) == 0

    saved = safetensors.torch.load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert len([name for name in saved if "classifier" in name]) == 4


@pytest.mark.slow
def test_a_trained_head_with_lora_is_only_exported_as_a_whole_model(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    given = [*CLASSES, "model.lora.targets=['query', 'classifier']", f"out={run}", "--quiet"]
    assert main(["run", str(runs / "run.toml"), *given]) == 0

    assert main(["export", str(run), "d0", str(tmp_path / "adapter")]) == 1
    assert "`network.classifier` is trained and has LoRA too" in capsys.readouterr().err
    assert not (tmp_path / "adapter").exists()
    assert main(["export", str(run), "d0", str(tmp_path / "whole"), "--merged"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("changes", [[], CLASSES], ids=["lm", "classes"])
def test_a_second_head_is_added_to_the_first_in_a_merged_model(
    runs: Path, tmp_path: Path, changes: list[str]
) -> None:
    run = tmp_path / "run"
    given = [*changes, "personalize.method=fedrod", "partition.untie=true", f"out={run}", "--quiet"]
    assert main(["run", str(runs / "run.toml"), *given]) == 0

    assert main(["export", str(run), "d0", str(tmp_path / "whole"), "--merged"]) == 0

    base = safetensors.torch.load_file(runs / ("bert" if changes else "llama") / "model.safetensors")
    saved = safetensors.torch.load_file(tmp_path / "whole/model.safetensors")
    added = partita.open(run).personal("d0")
    (name,) = [name for name in added if name.endswith("weight")]
    assert added[name].any()
    assert not any("second" in name for name in saved)
    head = "classifier.weight" if changes else "lm_head.weight"
    if not changes:  # The first head is the embedding, and frozen.
        torch.testing.assert_close(saved[head], base["model.embed_tokens.weight"] + added[name])


def test_a_merged_model_has_no_lora_and_leaves_the_base_as_it_was(runs: Path, tmp_path: Path) -> None:
    before = logits_of_run(runs / "lm", "d0", "lm")

    assert main(["export", str(runs / "lm"), "d0", str(tmp_path / "whole"), "--merged"]) == 0

    saved = safetensors.torch.load_file(tmp_path / "whole/model.safetensors")
    base = safetensors.torch.load_file(runs / "llama/model.safetensors")
    assert saved.keys() == base.keys()
    changed = {name for name, tensor in saved.items() if not torch.equal(tensor, base[name])}
    assert changed == {f"model.layers.1.self_attn.{p}_proj.weight" for p in "qv"}
    assert torch.equal(logits_of_run(runs / "lm", "d0", "lm"), before)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["d0", "OUT", "--format", "safetensors"], "is exported as an adapter, or with `--merged`"),
        (["d0", "OUT", "--merged", "--format", "onnx"], "--merged and --format onnx exclude each other"),
    ],
    ids=str,
)
def test_what_cannot_be_exported_is_said(
    runs: Path, tmp_path: Path, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["export", str(runs / "lm"), *(str(out) if text == "OUT" else text for text in given)]) == 2

    assert message in capsys.readouterr().err
    assert not out.exists()
