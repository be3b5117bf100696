"""Texts in the tokens of a pretrained model, on devices: the config and the bits of the simulation."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
pytest.importorskip("peft", reason="the extra `hf` is not installed")

from deployed import PILOT, Deployment, Device, lines_so_far, personal_of, same_results, simulated
from partita.cli import main
from partita.config.reading import read_config
from partita.deploy.building import build_for_device, build_for_server, computes_with, differing, for_server
from partita.deploy.serving import Serving, resumed_server
from tables import write
from tiny_models import write_bert, write_llama

TEXTS = """
seed = 3
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
TOPICS = """
seed = 3
workers = 1
[task]
kind = "text"
data = "texts.parquet"
tokenizer = "model"
label = "topic"
derived = "derived.json"
max_length = 6
[model]
name = "hf"
path = "bert"
lora = { r = 2, alpha = 4, targets = ["query"] }
[partition]
personal = "head"
[pretrain]
rounds = 1
devices_per_round = 2
[personalize]
rounds = 1
devices_per_round = 2
"""
WORDS = ["the cat sat on a mat", "a dog ran far away", "the dog sat here", "now the cat ran", "a mat", "now"]


def rows_of(device: str) -> list[dict[str, object]]:
    begin = PILOT.index(device)
    texts = [*WORDS[begin:], *WORDS[:begin]]
    return [
        {"device": device, "text": text, "topic": row % 3, "split": "test" if row > 3 else "train"}
        for row, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two models, a table of all devices, and a config for each kind of task."""
    folder = tmp_path_factory.mktemp("pretrained")
    write_llama(folder / "llama")
    write_bert(folder / "bert")
    write(folder / "texts.parquet", [row for device in PILOT for row in rows_of(device)])
    (folder / "texts.toml").write_text(TEXTS)
    (folder / "topics.toml").write_text(TOPICS)
    (folder / "derived.json").write_text(json.dumps({"kind": "text", "classes": 3}))
    return folder


def digests_of_server(config: Path) -> dict[str, str]:
    settings = for_server(read_config(config, []))
    return computes_with(settings, build_for_server(settings, config.parent), config.parent)


def digests_of_device(config: Path, device: str, overrides: list[str]) -> dict[str, str]:
    settings = read_config(config, overrides)
    return computes_with(settings, build_for_device(settings, config.parent, device), config.parent)


def test_a_served_language_model_has_the_bits_of_the_simulation(folder: Path, tmp_path: Path) -> None:
    config = folder / "texts.toml"
    simulation = simulated(config, tmp_path / "simulated")
    devices = [Device(config, tmp_path / name, name) for name in PILOT]
    deployment = Deployment(config, tmp_path / "server", devices, first=3)

    deployment.start()
    deployment.finish()

    assert same_results(deployment.run, simulation)
    for device in deployment.devices:
        assert device.personal == personal_of(simulation, device.joined.device)
    # The run's folder names the weights by another path than the config.
    resumed = resumed_server(Serving(home=deployment.home), [])
    assert resumed.hub.computes == deployment.server.hub.computes


@pytest.mark.parametrize("config", ["texts.toml", "topics.toml"])
def test_server_device_and_flower_app_compute_with_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    monkeypatch.setenv("PARTITA_PRETRAINED", str(folder))
    write(tmp_path / "bob.parquet", rows_of("bob"))

    server = digests_of_server(folder / config)
    device = digests_of_device(folder / config, "bob", [f"task.data={tmp_path / 'bob.parquet'}"])
    assert main(["flower", "new", str(tmp_path / "app"), str(folder / config)]) == 0
    app = digests_of_server(tmp_path / "app" / "partita_app" / "config.toml")

    assert device == server
    assert app == server


def test_the_tokens_of_the_model_are_part_of_what_a_device_computes_with(folder: Path) -> None:
    words = folder / "words.toml"
    words.write_text(TEXTS.replace('tokenizer = "model"', 'derived = "words.json"').split("[model]")[0])
    (folder / "words.json").write_text(json.dumps({"kind": "text", "vocabulary": ["the", "cat"]}))

    assert digests_of_server(words)["task"] != digests_of_server(folder / "texts.toml")["task"]


def test_a_classifier_of_texts_still_needs_its_classes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path / "app"), str(folder / "topics.toml"), "task.derived="]

    assert main(["flower", "new", *arguments]) == 2

    assert "set `task.derived`" in capsys.readouterr().err


def test_weights_are_known_by_their_content_and_not_by_their_path(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "llama", tmp_path / "same" / "weights")
    shutil.copytree(folder / "llama", tmp_path / "other" / "llama")
    file = tmp_path / "other" / "llama" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] += 1
    save_file(tensors, file, metadata={"format": "pt"})

    server = digests_of_server(folder / "texts.toml")
    same, other = (
        digests_of_device(folder / "texts.toml", "bob", [f"model.path={tmp_path / path}"])
        for path in ("same/weights", "other/llama")
    )

    assert differing(server, same) == []
    assert differing(server, other) == ["model"]


def test_a_device_that_joins_late_is_onboarded_with_the_weights_of_the_config(
    folder: Path, tmp_path: Path
) -> None:
    config = folder / "texts.toml"
    devices = [Device(config, tmp_path / name, name) for name in PILOT]
    deployment = Deployment(config, tmp_path / "server", devices[:2], first=2)

    deployment.start()
    while not lines_so_far(deployment):
        deployment.step()
    devices[2].connect(deployment.server.hub)
    deployment.devices = devices
    deployment.finish()

    assert set(devices[2].part.home.results) == {"pretrained", "personalized", "finetuned"}
