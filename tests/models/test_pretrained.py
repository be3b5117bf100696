"""Pretrained Hugging Face models: their parts, one base for all copies, and methods that train LoRA."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
pytest.importorskip("peft", reason="the extra `hf` is not installed")

import peft
import safetensors.torch
from transformers import AutoModelForCausalLM

import fedalt_in_one_file as plain
import partita
from marks import slow_but
from partita.device.store import DiskStore
from partita.errors import ConfigError
from partita.models import hub
from partita.models.parts import named_partition
from partita.models.pretrained import PADDING, Pretrained
from partita.params import change_in_bytes
from partita.partition import Partition, Personalization
from partita.partition.common import common_names, digest_of_frozen, is_common
from partita.reuse import settling
from partita.reuse.kept_rows import KeptRows
from partita.runs.tensors import tensors_in
from partita.tasks.build import build_model, initial_model
from partita.tasks.model_text import _METRICS, _predict_tokens, _token_loss
from small import same_bits
from tiny_models import write_bert, write_gpt2, write_llama, write_vit

LORA = {"r": 2, "alpha": 4, "targets": ["q_proj", "v_proj"], "layers": [-1]}
WRITERS: dict[str, tuple[Callable[[Path], Path], str, list[str]]] = {
    "llama": (write_llama, "causal-lm", ["q_proj", "v_proj"]),
    "gpt2": (write_gpt2, "causal-lm", ["c_attn"]),
    "bert": (write_bert, "sequence-classification", ["query", "value"]),
    "vit": (write_vit, "image-classification", ["q_proj", "v_proj"]),
}
STEP = 2


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from an architecture to the folder of a tiny model."""
    root = tmp_path_factory.mktemp("models")
    known: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in known:
            known[name] = WRITERS[name][0](root / name)
        return known[name]

    return folder_of


@pytest.fixture
def llama(folder_of: Callable[[str], Path]) -> Callable[..., Pretrained]:
    """Return a function that builds a tiny Llama with LoRA in its last block."""
    return partial(Pretrained, path=str(folder_of("llama")), lora=LORA)


def sentences(seed: int, texts: int = 6) -> tuple[Tensor, Tensor]:
    """Return random input tokens and next tokens, the shorter texts padded."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, 16, (texts, 6), generator=generator)
    tokens[::2, 4:] = PADDING
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def sentence_task(model: Callable[[], nn.Module], devices: int = 4) -> partita.Task:
    data = {f"d{number}": sentences(number, texts=5 + number) for number in range(devices)}
    return partita.Task(
        model=model,
        loss=_token_loss,
        metrics={"perplexity": _METRICS["perplexity"].metric},
        devices={device: {"train": own, "test": own} for device, own in data.items()},
        predict=_predict_tokens,
    )


def trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name", WRITERS)
def test_lora_and_head_are_trained_and_the_base_is_frozen(
    folder_of: Callable[[str], Path], name: str
) -> None:
    _, kind, targets = WRITERS[name]
    model = Pretrained(
        path=str(folder_of(name)), kind=kind, lora={"r": 2, "targets": targets, "layers": [1]}, classes=3
    )

    partition = named_partition(model, "lora_b").partition

    head = set() if kind == "causal-lm" else {"network.classifier.weight", "network.classifier.bias"}
    factors = {name for name in trained(model) if ".lora_" in name}
    assert trained(model) == factors | head
    assert len(factors) == 2 * len(targets)
    assert all(".1." in name for name in factors)
    assert set(partition.names("personal")) == {name for name in factors if ".lora_B.default." in name}
    assert set(partition.names("shared")) == trained(model) - set(partition.names("personal"))
    assert set(partition.names("frozen")) <= common_names(model)
    if head:
        assert model.network.classifier.out_features == 3
        assert set(named_partition(model, "head").partition.names("personal")) == head


def test_ffa_freezes_a(llama: Callable[..., Pretrained]) -> None:
    partition = named_partition(llama(ffa=True), "none").partition

    assert len(partition.names("shared")) == 2
    assert all(".lora_B.default." in name for name in partition.names("shared"))
    assert sum(".lora_A.default." in name for name in partition.names("frozen")) == 2
    assert named_partition(llama(ffa=True), "lora").partition.names("shared") == ()


def test_full_finetuning_has_tensors_of_its_own(folder_of: Callable[[str], Path]) -> None:
    path = str(folder_of("llama"))
    model = Pretrained(path=path, freeze=False)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()

    assert not common_names(model)
    assert trained(model) == {name for name, _ in model.named_parameters()}
    assert all(parameter.any() for parameter in Pretrained(path=path).parameters())


def test_copies_have_the_base_in_common_and_what_is_trained_for_themselves(
    llama: Callable[..., Pretrained],
) -> None:
    model = llama()
    copied = copy.deepcopy(model)

    pairs = zip(model.named_parameters(), copied.parameters(), strict=True)
    assert {name for (name, own), other in pairs if own is not other} == trained(model)
    assert digest_of_frozen(dict(model.named_parameters())) == digest_of_frozen(
        dict(copied.named_parameters())
    )


def test_a_process_reads_a_model_once(
    llama: Callable[..., Pretrained], monkeypatch: pytest.MonkeyPatch
) -> None:
    llama()
    monkeypatch.setattr(hub, "_read", lambda _: pytest.fail("read again"))

    llama(ffa=True)


def test_what_a_partition_selects_of_the_base_is_a_copy(llama: Callable[..., Pretrained]) -> None:
    task = sentence_task(llama)
    name = "network.model.layers.1.mlp.up_proj.weight"
    own = Personalization(Partition(initial_model(task, seed=1), personal=name))

    model = build_model(task, own, seed=1)
    with torch.no_grad():
        own.partition.of(model).personal[name].zero_()

    assert not is_common(own.partition.of(model).personal[name])
    assert llama().get_parameter(name).any()
    state = {**own.partition.of(model).shared, **own.partition.of(model).personal}
    assert not build_model(task, own, seed=1, state=state).get_parameter(name).any()
    assert llama().get_parameter(name).any()


def test_a_change_of_the_base_is_noticed(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(folder_of("llama"), tmp_path / "other")
    model = Pretrained(path=str(tmp_path / "other"))
    state = dict(model.named_parameters())
    before = digest_of_frozen(state)

    with torch.no_grad():
        state["network.model.norm.weight"].add_(1)

    assert before == digest_of_frozen(dict(Pretrained(path=str(folder_of("llama"))).named_parameters()))
    with pytest.raises(ValueError, match="something has changed it"):
        digest_of_frozen(state)


def test_a_tied_head_needs_its_own_copy(llama: Callable[..., Pretrained]) -> None:
    model = llama()
    with pytest.raises(ValueError, match="untie=true"):
        named_partition(model, "head")

    own = named_partition(model, "head", untie=True)
    prepared = own.prepare(copy.deepcopy(model))

    assert own.partition.names("personal") == ("network.lm_head.weight",)
    assert not is_common(prepared.network.lm_head.weight)
    assert is_common(prepared.network.model.embed_tokens.weight)


@pytest.mark.slow
def test_a_rank_for_each_device(llama: Callable[..., Pretrained]) -> None:
    ranks = {"d0": 1, "d1": 3, "d2": 3, "d3": 2}
    task = sentence_task(llama)
    own = named_partition(initial_model(task, seed=1), "lora", width=ranks.__getitem__)

    result = partita.run(
        task, own, partita.FedAlt(personal_lr=0.1, shared_lr=0.1), rounds=2, devices_per_round=4
    )

    for device, rank in ranks.items():
        shapes = {name: tensor.shape for name, tensor in result.personal(device).items()}
        assert {shape[0] for name, shape in shapes.items() if ".lora_A." in name} == {rank}
        assert all(tensor.any() for tensor in result.personal(device).values())


def test_the_loss_of_each_token_is_that_of_its_score(llama: Callable[..., Pretrained]) -> None:
    model = llama()
    inputs, targets = sentences(0, texts=40)

    with torch.no_grad():
        scores = model(inputs)
        found = {training: model.train(training)(inputs, targets) for training in (True, False)}

    losses = nn.functional.cross_entropy(scores.transpose(1, 2), targets, reduction="none")
    counted = targets != PADDING
    for both in found.values():
        torch.testing.assert_close(both[..., 0], losses)
        assert torch.equal(both[..., 1][counted], scores.argmax(dim=-1)[counted].float())
        assert not both[~counted].any()


def test_padding_does_not_change_the_class_of_a_text(folder_of: Callable[[str], Path]) -> None:
    model = Pretrained(path=str(folder_of("bert")), kind="sequence-classification").eval()
    text = torch.tensor([[2, 5, 6, 3]])
    padded = torch.cat([text, torch.full((1, 3), PADDING)], dim=1)

    with torch.no_grad():
        torch.testing.assert_close(model(padded), model(text))


@dataclass(frozen=True)
class Case:
    """A kind of training with LoRA, for the library and for plain loops."""

    ffa: bool = False
    """FFA-LoRA: A stays, B is of all. Otherwise FedSA-LoRA: A is of all, a device has its B."""
    simultaneous: bool = False
    """Whether A and B move in the same steps, as in the paper of FedSA-LoRA; else B for an epoch, then A."""
    optimizer: Any = torch.optim.SGD
    lr: float = STEP

    @property
    def method(self) -> Any:
        """The method of the library."""
        rates = {"personal_lr": self.lr, "shared_lr": self.lr, "batch_size": 4, "optimizer": self.optimizer}
        if self.simultaneous:
            return partita.FedSim(**rates)
        return partita.FedAlt(**rates, **({"personal_epochs": 0} if self.ffa else {}))


CASES = {
    "FedSA-LoRA": Case(simultaneous=True),
    "FedSA-LoRA-alternating": Case(),
    "FedSA-LoRA-AdamW": Case(simultaneous=True, optimizer=torch.optim.AdamW, lr=0.02),
    "FFA-LoRA": Case(ffa=True),
}


def peft_loop(path: str, names: dict[str, str], start: dict[str, Tensor], case: Case) -> Any:
    """Return A and every B_i after training with plain loops on peft's own model."""
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], layers_to_transform=[1])
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(path), config).train()
    now = dict(model.named_parameters())
    plain.copy({names[name]: tensor for name, tensor in start.items()}, into=now)
    a = {name: now[name].detach().clone() for name in names.values() if ".lora_A." in name}
    b = {name: now[name].detach().clone() for name in names.values() if ".lora_B." in name}
    u, v = (b, {}) if case.ffa else (a, {f"d{i}": b for i in range(4)})

    for t in range(3):
        total = {name: torch.zeros(u[name].shape, dtype=torch.int64) for name in u}
        weight = 0
        for i in [f"d{i}" for i in range(4)]:
            data = sentences(int(i[1]), texts=5 + int(i[1]))
            plain.copy({**u, **v.get(i, {})}, into=now)
            generator = torch.Generator().manual_seed(plain.seed_of(1, "personalized", t, i))
            batches = plain.epochs(data, 4, generator)
            b_of_i = [*v.get(i, {})]
            phases = [[*b_of_i, *u]] if case.simultaneous else [b_of_i, [*u]]
            for moving in filter(None, phases):
                optimizer = case.optimizer([now[name] for name in moving], lr=case.lr)
                for inputs, targets in next(batches):
                    tokens = inputs.masked_fill(inputs == PADDING, 0)
                    scores = model(input_ids=tokens).logits
                    loss = nn.functional.cross_entropy(
                        scores[targets != PADDING], targets[targets != PADDING]
                    )
                    gradients = torch.autograd.grad(loss, [now[name] for name in moving])
                    for name, gradient in zip(moving, gradients, strict=True):
                        now[name].grad = gradient
                    optimizer.step()
            if v:
                v[i] = {name: now[name].detach().clone() for name in v[i]}
            for name in u:
                total[name] += len(data[0]) * plain.quantize(now[name].detach() - u[name])
            weight += len(data[0])
        u = {name: u[name] + plain.mean(total[name], weight) for name in u}
    return u, v


@pytest.mark.parametrize("name", CASES)
def test_training_is_the_plain_loop_with_peft(llama: Callable[..., Pretrained], name: str) -> None:
    case = CASES[name]
    task = sentence_task(partial(llama, ffa=case.ffa))
    first = initial_model(task, seed=1)
    own = named_partition(first, "none" if case.ffa else "lora_b")

    result = partita.run(task, own, case.method, rounds=3, devices_per_round=4)

    names = {name: name.replace("network.", "base_model.model.", 1) for name in trained(llama())}
    start = {name: first.get_parameter(name).detach() for name in names}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    u, v = peft_loop(first.path, names, start, case)
    torch.set_num_threads(threads)
    assert {names[name] for name in result.shared} == u.keys()
    for name, tensor in result.shared.items():
        assert not torch.equal(tensor, start[name])
        torch.testing.assert_close(tensor, u[names[name]], rtol=1e-5, atol=1e-6)
    for device, values in v.items():
        for name, tensor in result.personal(device).items():
            assert tensor.any()
            torch.testing.assert_close(tensor, values[names[name]], rtol=1e-5, atol=1e-6)


def rounds_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_a_run_sends_and_writes_the_shared_tensors_alone(
    llama: Callable[..., Pretrained], tmp_path: Path
) -> None:
    task = sentence_task(llama)
    own = named_partition(initial_model(task, seed=1), "lora_b")
    method = partita.FedAlt(personal_lr=0.1, shared_lr=0.1)

    result = partita.run(task, own, method, rounds=2, devices_per_round=3, out=tmp_path / "run")

    sent = change_in_bytes(result.shared)
    assert sent == sum(4 * tensor.numel() for tensor in result.shared.values()) == 4 * (2 * 8 + 2 * 8)
    updates = [line for line in rounds_in(tmp_path / "run") if line["work"] == "update"]
    assert [line["bytes"] for line in updates] == [{"down": 3 * sent, "up": 3 * sent}] * 2
    written = list((tmp_path / "run").rglob("*.safetensors"))
    names = {name for path in written for name in tensors_in(path)}
    assert names == trained(llama())
    stored = DiskStore(tmp_path / "run/personal").load("d0") or {}
    assert stored.keys() == set(own.partition.names("personal"))


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_same_bits(llama: Callable[..., Pretrained], tmp_path: Path) -> None:
    task = sentence_task(llama)
    own = named_partition(initial_model(task, seed=1), "lora_b")
    method = partita.FedAlt(personal_lr=0.1, shared_lr=0.1)
    run = partial(partita.run, task, own, method, rounds=4, devices_per_round=3)
    whole = run()

    class Stopped(Exception):
        pass

    def stop(line: Any, done: int, _: int) -> None:
        if done == 2:
            raise Stopped

    with pytest.raises(Stopped):
        run(out=tmp_path / "run", watch=stop)
    resumed = run(out=tmp_path / "run", resume=True)

    assert same_bits(whole.shared, resumed.shared)
    assert all(same_bits(whole.personal(device), resumed.personal(device)) for device in task.devices.ids)


@pytest.mark.slow
@pytest.mark.parametrize("reuse", [True, "disk"])
def test_what_precedes_lora_is_computed_once_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reuse: bool | str
) -> None:
    monkeypatch.setattr(settling, "MIN_OPERATIONS", 0)
    if reuse == "disk":  # No row is kept in memory between visits.
        monkeypatch.setattr(KeptRows.__init__, "__defaults__", (None, 0))
    task = sentence_task(partial(Pretrained, path=str(write_llama(tmp_path / "llama", dim=64)), lora=LORA))
    own = named_partition(initial_model(task, seed=1), "lora_b")
    method = partita.FedAlt(personal_lr=0.1, shared_lr=0.1, batch_size=8)
    run = partial(partita.run, task, own, method, devices_per_round=4)
    first = initial_model(task, seed=1).network.model.layers[0].mlp
    real, rows = type(first).forward, 0

    def forward(self: nn.Module, features: Tensor) -> Tensor:
        nonlocal rows
        rows += len(features) if self.training and self.up_proj.weight is first.up_proj.weight else 0
        return real(self, features)

    monkeypatch.setattr(type(first), "forward", forward)
    plainly = run(rounds=3, reuse=False)
    every = rows
    reused = run(rounds=3, reuse=reuse, out=tmp_path / "three")
    three, rows = rows - every, 0
    run(rounds=1, reuse=reuse, out=tmp_path / "one")

    assert every > 3 * 2 * sum(len(task.devices[device]["train"][0]) for device in task.devices.ids)
    assert rows == three
    assert same_bits(plainly.shared, reused.shared)
    assert all(same_bits(plainly.personal(device), reused.personal(device)) for device in task.devices.ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "speech"}, "`kind` must be one of causal-lm"),
        ({"ffa": True, "lora": None}, "`ffa` needs `lora`"),
        ({"lora": {"rank": 2}}, "There is no key `lora.rank`. The keys: r, alpha, targets, layers."),
        ({"lora": {"r": 0}}, "`lora.r` must be a whole number, at least 1, got 0."),
        ({"lora": {"alpha": float("nan")}}, "`lora.alpha` must be a finite number above 0"),
        ({"lora": {"targets": "q_proj"}}, "`lora.targets` must be a list of names"),
        ({"lora": {"layers": [2]}}, "`lora.layers` must be from -2 to 1, got 2."),
        ({"lora": {"targets": ["nothing"]}}, "cannot be used: Target modules"),
        ({"file": "model.bin"}, "`model.file` must be a GGUF file"),
        ({"path": "no such folder"}, "There is no folder `no such folder`"),
        ({"path": "nobody/nothing"}, "the Hugging Face hub does not give it"),
    ],
    ids=str,
)
def test_a_bad_setting_is_one_clear_line(
    llama: Callable[..., Pretrained], options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, ConfigError)) as error:
        llama(**options)

    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_neither_pickles_nor_remote_code_are_read(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    pickled = shutil.copytree(folder_of("llama"), tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"has no weights as \*.safetensors. Pickles"):
        Pretrained(path=str(pickled))

    remote = shutil.copytree(folder_of("llama"), tmp_path / "remote")
    config = json.loads((remote / "config.json").read_text())
    config |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "code.Mine", "AutoModelForCausalLM": "code.Mine"},
    }
    (remote / "config.json").write_text(json.dumps(config))
    (remote / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with pytest.raises(ConfigError, match="cannot be read as causal-lm") as error:
        Pretrained(path=str(remote))

    assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()


def test_weights_of_another_model_are_refused(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    mixed = shutil.copytree(folder_of("llama"), tmp_path / "mixed")
    shutil.copy(folder_of("gpt2") / "model.safetensors", mixed / "model.safetensors")

    with pytest.raises(ConfigError, match="are not those of a LlamaForCausalLM"):
        Pretrained(path=str(mixed))


def test_a_model_is_found_in_its_folder(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hub.FOLDER, str(folder_of("llama").parent))

    assert hub.find_model("llama") == folder_of("llama")


def test_a_small_rank_padded_with_zeros_is_the_same_model(llama: Callable[..., Pretrained]) -> None:
    wide = llama(lora=LORA | {"r": 4, "alpha": 12}).eval()
    small = named_partition(wide, "none", width=1).prepare(copy.deepcopy(wide)).eval()
    tokens, _ = sentences(0)

    with torch.no_grad():
        for name in trained(wide):
            own = small.get_parameter(name)
            own.normal_(generator=torch.Generator().manual_seed(1))
            padded = wide.get_parameter(name).zero_()
            padded[tuple(map(slice, own.shape))] = own
        expected = wide(tokens)
        assert not torch.equal(expected, Pretrained(path=wide.path).eval()(tokens))
        torch.testing.assert_close(small(tokens), expected)


RANKS = {"d0": 1, "d1": 2, "d2": 1, "d3": 2}


def hetlora_loop(path: str, names: dict[str, str], u: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return A and B after HetLoRA with plain loops: each device has a model of peft with its own rank."""
    lora = {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]}
    for t in range(2):
        replies, norms = [], []
        for i, rank in RANKS.items():
            config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, **lora)
            model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(path), config).train()
            now = {name: model.get_parameter(other) for name, other in names.items()}
            cut = {name: tuple(map(slice, tensor.shape)) for name, tensor in now.items()}
            plain.copy({name: u[name][cut[name]] for name in u}, into=now)
            data = sentences(int(i[1]), texts=5 + int(i[1]))
            generator = torch.Generator().manual_seed(plain.seed_of(1, "personalized", t, i))
            for inputs, targets in next(plain.epochs(data, 4, generator)):
                scores = model(input_ids=inputs.masked_fill(inputs == PADDING, 0)).logits
                counted = targets != PADDING
                loss = nn.functional.cross_entropy(scores[counted], targets[counted])
                for tensor, gradient in zip(
                    now.values(), torch.autograd.grad(loss, list(now.values())), strict=True
                ):
                    tensor.data.add_(gradient, alpha=-STEP)
            replies.append({name: torch.zeros_like(tensor) for name, tensor in u.items()})
            for name, tensor in now.items():
                replies[-1][name][cut[name]] = tensor.detach()
            pairs = [(now[name.replace("_B", "_A")], now[name]) for name in now if ".lora_B." in name]
            norms.append(sum((b @ a).detach().double().square().sum().item() for a, b in pairs) ** 0.5)
        shares = [norm / sum(norms) for norm in norms]
        weighted = [{name: s * r[name] for name in u} for s, r in zip(shares, replies, strict=True)]
        u = {name: torch.stack([each[name] for each in weighted]).sum(dim=0) for name in u}
    return u


@pytest.mark.slow
def test_hetlora_on_lora_is_the_plain_loop_with_peft(llama: Callable[..., Pretrained]) -> None:
    task = sentence_task(llama)
    first = initial_model(task, seed=1)
    own = named_partition(first, "none", width=RANKS.__getitem__)
    method = partita.Method(local=partita.LocalHetLoRA, shared_lr=STEP, batch_size=4, personal_epochs=0)

    result = partita.run(task, own, method, rounds=2, devices_per_round=4)

    names = {name: name.replace("network.", "base_model.model.", 1) for name in trained(first)}
    start = {name: first.get_parameter(name).detach() for name in names}
    for name, tensor in hetlora_loop(first.path, names, start).items():
        assert not torch.equal(tensor, start[name])
        torch.testing.assert_close(result.shared[name], tensor, rtol=1e-4, atol=1e-5)
    for device, rank in RANKS.items():
        shapes = [t.shape for n, t in result.model(device).named_parameters() if ".lora_A." in n]
        assert shapes == [(rank, 8)] * 2


@pytest.mark.slow
def test_ranks_of_shared_lora_need_a_method_that_fills(llama: Callable[..., Pretrained]) -> None:
    task = sentence_task(llama)
    for part in ("none", "lora_b"):
        own = named_partition(initial_model(task, seed=1), part, width=RANKS.__getitem__)
        with pytest.raises(ConfigError, match="must declare `fills`"):
            partita.run(task, own, partita.FedAlt(shared_lr=0.1), rounds=1, devices_per_round=4)
    wider = named_partition(initial_model(task, seed=1), "none", width=lambda device: 3)
    with pytest.raises(ValueError, match="shared tensors may be smaller in one dimension"):
        wider.on("d0")


SENT = {
    # Part, options, and the numbers of A (2 x 8 in each of two layers), of B of q (8 x 2) and of v (4 x 2).
    "A and B": ("none", {}, 2 * 16 + 16 + 8),
    "A": ("lora_b", {}, 2 * 16),
    "B": ("none", {"ffa": True}, 16 + 8),
    "nothing of rank 2 but A and B of rank 2": ("none", {"width": RANKS.__getitem__}, 2 * 16 + 16 + 8),
}


@pytest.mark.parametrize("name", slow_but(SENT, "A"))
def test_bytes_are_those_of_the_shared_tensors(
    llama: Callable[..., Pretrained], tmp_path: Path, name: str
) -> None:
    part, options, numbers = SENT[name]
    width = options.get("width", 0)
    task = sentence_task(partial(llama, ffa=options.get("ffa", False)))
    own = named_partition(initial_model(task, seed=1), part, width=width)
    method = partita.Method(
        local=partita.LocalHetLoRA if width else partita.LocalAlt, shared_lr=0.1, personal_epochs=0
    )

    partita.run(task, own, method, rounds=1, devices_per_round=3, out=tmp_path / "run")

    (line,) = [line for line in rounds_in(tmp_path / "run") if line["work"] == "update"]
    assert line["bytes"] == {"down": 3 * 4 * numbers, "up": 3 * 4 * numbers}
    shared = tensors_in(tmp_path / "run/shared/personalized.safetensors")
    assert sum(tensor.numel() for tensor in shared.values()) == numbers


def damaged(folder: Path, to: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    """Copy a model's folder with other weights."""
    shutil.copytree(folder, to)
    safetensors.torch.save_file(
        change(safetensors.torch.load_file(folder / "model.safetensors")),
        to / "model.safetensors",
        metadata={"format": "pt"},
    )
    return to


def test_a_classifier_may_lack_its_head_and_a_pooler_and_nothing_else(
    folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    build = partial(Pretrained, kind="sequence-classification", classes=3)

    def without(*words: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
        return lambda state: {n: t for n, t in state.items() if not any(word in n for word in words)}

    def narrower(state: dict[str, Tensor]) -> dict[str, Tensor]:
        name = "bert.encoder.layer.0.output.dense.weight"
        return {**state, name: state[name][:, :4].contiguous()}

    bert = folder_of("bert")
    headless = damaged(bert, tmp_path / "headless", without("classifier", "pooler"))
    model = build(path=str(headless))

    assert {name.removeprefix("network.") for name in model.head} == {
        f"{module}.{name}" for module in ("classifier", "bert.pooler.dense") for name in ("weight", "bias")
    }
    for number, change in enumerate((without("layer.1.output"), narrower)):
        folder = damaged(bert, tmp_path / f"damaged{number}", change)
        with pytest.raises(ConfigError, match=r"are not those of a BertForSequenceClassification: `bert.enc"):
            build(path=str(folder))


def test_a_folder_with_an_adapter_is_no_model(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folder_of("llama"), tmp_path / "adapter")
    (folder / "adapter_config.json").write_text("{}")

    with pytest.raises(ConfigError, match=r"is an adapter, with `adapter_config.json`"):
        Pretrained(path=str(folder))


def test_a_model_with_several_last_tokens_is_padded_with_the_first(
    folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    several = shutil.copytree(folder_of("llama"), tmp_path / "several")
    config = json.loads((several / "config.json").read_text())
    (several / "config.json").write_text(json.dumps(config | {"pad_token_id": None, "eos_token_id": [3, 2]}))
    tokens, targets = sentences(0)

    with torch.no_grad():
        found = Pretrained(path=str(several)).eval()(tokens, targets)
        expected = Pretrained(path=str(folder_of("llama"))).eval()(tokens, targets)

    torch.testing.assert_close(found, expected)


def test_scores_at_some_positions_are_those_of_all(llama: Callable[..., Pretrained]) -> None:
    model = llama().eval()
    tokens, targets = sentences(0)

    with torch.no_grad():
        torch.testing.assert_close(model(tokens, at=targets != PADDING), model(tokens)[targets != PADDING])


@pytest.mark.parametrize("kind", ["causal-lm", "image-classification"])
def test_inputs_of_another_kind_are_refused(folder_of: Callable[[str], Path], kind: str) -> None:
    name, inputs = (
        ("llama", torch.ones(2, 3, 8, 8)) if kind == "causal-lm" else ("vit", torch.ones(2, 4).long())
    )

    with pytest.raises(ValueError, match=f"A model of kind '{kind}' takes"):
        Pretrained(path=str(folder_of(name)), kind=kind)(inputs)
