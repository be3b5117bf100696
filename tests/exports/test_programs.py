"""Programs predict as the model does without Partita, or are not written."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import partita
from exported import finished
from partita.cli import main
from partita.errors import RunFailed
from partita.exports.export import export_device, open_run
from partita.exports.samples import all_inputs, output_of, rows_for_checks
from partita.runs.folder import RunFolder

BLOCK = "import sys\nsys.modules['partita'] = None\n"
"""Makes Partita impossible to import."""
TORCH = (
    BLOCK + "import safetensors.torch, torch\n"
    "torch.set_num_threads(1)\n"
    "program = torch.export.load('model.pt2').module()\n"
    "for name in sys.argv[1:]:\n"
    "    saved = safetensors.torch.load_file(name + '.inputs')\n"
    "    inputs = [saved[key] for key in sorted(saved)]\n"
    "    with torch.no_grad():\n"
    "        output = program(*inputs)\n"
    "    output = output if isinstance(output, torch.Tensor) else output[0]\n"
    "    safetensors.torch.save_file({'y': output.contiguous()}, name + '.outputs')\n"
)
ONNX = (
    BLOCK + "sys.modules['torch'] = None\n"
    "import numpy, onnxruntime, safetensors.numpy\n"
    "session = onnxruntime.InferenceSession('model.onnx', providers=['CPUExecutionProvider'])\n"
    "for name in sys.argv[1:]:\n"
    "    saved = safetensors.numpy.load_file(name + '.inputs')\n"
    "    inputs = [saved[key] for key in sorted(saved)]\n"
    "    names = [each.name for each in session.get_inputs()]\n"
    "    output = session.run(None, dict(zip(names, inputs)))[0]\n"
    "    safetensors.numpy.save_file({'y': output}, name + '.outputs')\n"
)


def needs_onnx() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra `onnx` is not installed")


def elsewhere(script: str, run: Path, device: str, folder: Path) -> list[tuple[Tensor, Tensor]]:
    """Return the outputs of the model and of a program in another process, for every test row and for one."""
    result = partita.open(run)
    model, task = result.model(device, "served"), result._models.origin.task
    examples = rows_for_checks(task, device)
    calls = [*all_inputs(task, model, examples), *all_inputs(task, model, examples, batch_size=1)]
    for number, call in enumerate(calls):
        tensors = {f"{place}": tensor.contiguous() for place, tensor in enumerate(call.tensors)}
        safetensors.torch.save_file(tensors, folder / f"{number}.inputs")
    command = [sys.executable, "-c", script, *map(str, range(len(calls)))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    found = [safetensors.torch.load_file(folder / f"{number}.outputs")["y"] for number in range(len(calls))]
    return list(zip([output_of(model, call)[0] for call in calls], found, strict=True))


def device_of(run: Path) -> str:
    return RunFolder(run).measurements["device"].to_pylist()[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["image", "text", "speech", "tabular", "synthetic"])
def test_a_program_predicts_every_test_row_without_partita(
    kind: str, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = run_of(kind)
    device = device_of(run)

    command = ["export", str(run), device, str(tmp_path / "model.pt2"), "--format", "torch-export"]
    assert main(command) == 0

    for expected, found in elsewhere(TORCH, run, device, tmp_path):
        assert torch.allclose(expected, found, atol=1e-5)
        if kind in ("image", "text", "tabular"):
            assert torch.equal(expected, found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["image", "text", "speech", "tabular", "synthetic"])
def test_onnx_runtime_predicts_every_test_row_without_torch(
    kind: str, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    needs_onnx()
    run = run_of(kind)
    device = device_of(run)

    assert main(["export", str(run), device, str(tmp_path / "model.onnx"), "--format", "onnx"]) == 0

    for expected, found in elsewhere(ONNX, run, device, tmp_path):
        assert torch.allclose(expected, found, atol=1e-5)


def test_a_program_has_no_row_of_the_device_and_no_path(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = run_of("tabular")

    export_device(open_run(run), "d0", tmp_path / "model.pt2", "torch-export")

    program = torch.export.load(tmp_path / "model.pt2")
    content = (tmp_path / "model.pt2").read_bytes()
    assert not program.example_inputs
    assert b".py" not in content.replace(b".python", b"")
    assert b'"use_pickle": true' not in content
    assert b'"device": "d0"' in content


class Forks(nn.Module):
    """Goes one way or another by the values of its input, which no traced program can."""

    parts = {"output": ("head.bias",)}  # noqa: RUF012

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs) if inputs.sum() > 0 else -self.head(inputs)


class ForOne(nn.Module):
    """Depends on the size of the batch."""

    parts = {"output": ("head.bias",)}  # noqa: RUF012

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = [self.head(inputs[number]) for number in range(len(inputs))]
        return torch.stack(rows)


@pytest.fixture
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "program_models", sys.modules[__name__])


@pytest.mark.usefixtures("_importable")
@pytest.mark.parametrize("format", ["torch-export", "onnx"])
def test_a_model_that_cannot_be_traced_is_one_line_and_no_file(
    format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if format == "onnx":
        needs_onnx()
    run = finished(tmp_path, "tabular", **{"model.name": "program_models:Forks"})
    before = sorted(path.name for path in tmp_path.iterdir())
    capsys.readouterr()

    assert main(["export", str(run), "d0", str(tmp_path / "m"), "--format", format]) == 1

    error = capsys.readouterr().err
    assert error.startswith(f"partita: The model of device 'd0' cannot be exported as {format}: ")
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.usefixtures("_importable")
def test_a_model_that_depends_on_the_batch_size_is_exported_for_one_row(tmp_path: Path) -> None:
    run = finished(tmp_path, "tabular", **{"model.name": "program_models:ForOne"})

    export_device(open_run(run), "d0", tmp_path / "m.pt2", "torch-export")

    program = torch.export.load(tmp_path / "m.pt2").module()
    row = torch.tensor([[0.5, 1.0]])
    assert torch.equal(program(row), partita.open(run).model("d0", "served")(row))


def test_a_program_that_predicts_otherwise_is_not_written(
    run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.export.export

    def other(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        program = real(model, *args, **kwargs)
        program.state_dict["head.bias"] = nn.Parameter(program.state_dict["head.bias"] + 0.01)
        return program

    monkeypatch.setattr(torch.export, "export", other)

    with pytest.raises(RunFailed, match="predicts otherwise than the model"):
        export_device(open_run(run_of("tabular")), "d0", tmp_path / "m.pt2", "torch-export")

    assert not list(tmp_path.iterdir())


def test_without_the_extra_the_command_names_it(
    run_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "onnx", None)

    assert main(["export", str(run_of("tabular")), "d0", str(tmp_path / "m"), "--format", "onnx"]) == 2

    assert "`--format onnx` needs onnx: pip install 'partita[onnx]'." in capsys.readouterr().err
