"""Exported models are the run's own, bit for bit, and nothing is written that is not."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import partita
from exported import KINDS, finished
from marks import slow_but
from partita.cli import main
from partita.data.examples import examples_of
from partita.errors import ConfigError
from partita.exports.export import INDEX, export_all, export_device, open_run
from partita.exports.samples import all_inputs, largest_difference, output_of
from partita.protocol import key_of
from partita.runs.folder import RunFolder
from small import affine_task


def same_on_every_test_row(run: Path, device: str, other: nn.Module) -> bool:
    result = partita.open(run)
    model, task = result.model(device, "served"), result._models.origin.task
    calls = list(all_inputs(task, model, examples_of(task.devices[device]["test"])))
    return all(largest_difference(output_of(model, c), output_of(other, c)) == 0.0 for c in calls)


@pytest.mark.parametrize("kind", slow_but(KINDS, "text"))
def test_a_loaded_model_is_the_served_one_bit_for_bit(
    kind: str, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = run_of(kind)
    device = RunFolder(run).measurements["device"].to_pylist()[-1]

    assert main(["export", str(run), device, str(tmp_path / "model.safetensors")]) == 0
    loaded = partita.load(tmp_path / "model.safetensors")

    assert not loaded.training
    assert same_on_every_test_row(run, device, loaded)


def test_a_file_says_all_that_is_needed_to_use_its_model(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run, out = run_of("image"), tmp_path / "model.safetensors"
    main(["export", str(run), "d1", str(out)])

    about = partita.model_metadata(out)

    rows = [row for row in RunFolder(run).measurements.to_pylist() if row["device"] == "d1"]
    (own,) = [row for row in rows if (row["stage"], row["split"]) == ("finetuned", "test")]
    assert (about["device"], about["model"], about["stage"]) == ("d1", "personal", "finetuned")
    assert about["inputs"] == [{"shape": [None, 1, 8, 8], "dtype": "float32"}]
    assert about["task"]["derived"] == {"kind": "image", "classes": 3}
    assert about["task"]["preprocessing"]["mean"] == [pytest.approx(0.4)]
    assert about["task"]["preprocessing"]["std"] == [pytest.approx(0.3)]
    assert about["metric"] == {
        "name": "accuracy",
        "direction": "up",
        "split": "test",
        **{name: own[name] for name in ("examples", "weight", "loss", "metric")},
    }
    assert about["build"]["function"] == "partita.models.resnet:ResNet"
    assert about["run"]["made_with"]["torch"] == torch.__version__
    assert str(tmp_path) not in out.read_bytes().decode(errors="replace")


def test_a_file_is_for_its_owner_alone(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    main(["export", str(run_of("synthetic")), "device-0001", str(tmp_path / "model.safetensors")])

    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_nothing_that_others_have_put_beside_a_file_is_written_to(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    out, mine = tmp_path / "model.safetensors", tmp_path / "mine"
    mine.write_text("mine")
    for name in (f"{out.name}.tmp", f"{out.name}.123.tmp"):
        (tmp_path / name).symlink_to(mine)

    main(["export", str(run_of("synthetic")), "device-0001", str(out)])

    assert mine.read_text() == "mine"
    assert not out.is_symlink()
    assert out.stat().st_mode & 0o777 == 0o600


def test_no_file_behind_a_link_is_deleted(
    run_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/best.safetensors").write_text("mine")
    (tmp_path / "models.partita-export").symlink_to(tmp_path / "mine")

    assert main(["export", str(run_of("synthetic")), "--all", str(tmp_path / "models")]) == 2

    assert "is in the way, a link: remove it." in capsys.readouterr().err
    assert (tmp_path / "mine/best.safetensors").read_text() == "mine"


def test_all_devices_have_a_file_each_and_an_index(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    run, out = run_of("tabular"), tmp_path / "models"

    assert main(["export", str(run), "--all", str(out), "--quiet"]) == 0

    index = json.loads((out / INDEX).read_text())
    assert sorted(index["devices"]) == ["d0", "d1", "d2", "d3"]
    assert index["kind"] == "safetensors"
    for device, entry in index["devices"].items():
        assert entry == {"file": f"{key_of(device)}.safetensors", "model": "personal", "stage": "finetuned"}
        assert same_on_every_test_row(run, device, partita.load(out / entry["file"]))
    assert len(list(out.iterdir())) == 5
    assert out.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_what_a_killed_export_left_is_written_again(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    left = tmp_path / "models.partita-export"
    (left / "whole").mkdir(parents=True)
    (left / "export.partita").write_text("Files of `partita export`.")
    (left / "whole/d0-x.safetensors").write_bytes(b"half")

    export_all(open_run(run_of("synthetic")), tmp_path / "models", "safetensors")

    assert not left.exists()
    assert not (tmp_path / "models/d0-x.safetensors").exists()
    assert (tmp_path / "models").stat().st_mode & 0o777 == 0o700


def test_an_export_that_is_killed_while_it_clears_up_can_be_repeated(
    run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, left = open_run(run_of("synthetic")), tmp_path / "models.partita-export"

    def fail(*_: object) -> None:
        raise ValueError("No file is written.")

    def unlink_one(path: Path, **_: object) -> None:
        for file in sorted(file for file in path.rglob("*") if file.is_file()):
            file.unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(
            "partita.exports.export.sync_folder", lambda folder: folder.name == "whole" and fail()
        )
        patched.setattr("partita.exports.export.shutil.rmtree", unlink_one)
        with pytest.raises(KeyboardInterrupt):
            export_all(run, tmp_path / "models", "safetensors")
    assert any((left / "whole").iterdir())

    export_all(run, tmp_path / "models", "safetensors")

    assert not left.exists()


def test_a_folder_of_someone_else_stays(
    run_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "models.partita-export" / "thesis.doc"
    other.parent.mkdir()
    other.write_text("mine")

    assert main(["export", str(run_of("synthetic")), "--all", str(tmp_path / "models"), "--quiet"]) == 2

    assert "thesis.doc` in it: remove it." in capsys.readouterr().err
    assert other.read_text() == "mine"


def test_a_device_that_chose_the_global_model_gets_it(tmp_path: Path) -> None:
    run = finished(tmp_path, "tabular", **{"evaluate.choose": "validation", "task.validation": 0.4})
    served = {
        row["device"]: row["model"]
        for row in RunFolder(run).measurements.to_pylist()
        if row["stage"] == "served"
    }

    counts = export_all(open_run(run), tmp_path / "models", "safetensors")

    found = json.loads((tmp_path / "models" / INDEX).read_text())["devices"]
    assert {device: own["model"] for device, own in found.items()} == served
    assert counts == Counter(served.values())
    assert "global" in served.values()
    device = next(device for device, model in served.items() if model == "global")
    assert found[device]["stage"] == "pretrained"
    assert same_on_every_test_row(run, device, partita.load(tmp_path / "models" / found[device]["file"]))


@pytest.mark.parametrize(
    "personal", slow_but(["head", "full", "none", "adapter", "blocks.0.*"], "blocks.0.*")
)
def test_every_partition_of_a_model_can_leave(personal: str, tmp_path: Path) -> None:
    untied = {"partition.untie": True} if personal == "head" else {}
    widths = {"partition.adapter_width": 3} if personal == "adapter" else {}
    run = finished(tmp_path, "text", **{"partition.personal": personal, **untied, **widths})

    export_device(open_run(run), "d2", tmp_path / "m.safetensors", "safetensors")

    assert same_on_every_test_row(run, "d2", partita.load(tmp_path / "m.safetensors"))


def test_a_run_that_began_from_a_file_with_frozen_tensors_can_leave(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    start = RunFolder(run_of("tabular")).shared_file("pretrained")
    frozen = {"model.start": start, "partition.frozen": "hidden.*", "pretrain.rounds": 0}
    run = finished(tmp_path, "tabular", **frozen)

    export_device(open_run(run), "d0", tmp_path / "m.safetensors", "safetensors")

    assert same_on_every_test_row(run, "d0", partita.load(tmp_path / "m.safetensors"))


def test_a_model_of_ones_own_is_named_and_built_where_the_caller_allows_it(tmp_path: Path) -> None:
    run = finished(tmp_path, "tabular", **{"model.name": "exported:make_halves", "model.scale": 3.0})
    export_device(open_run(run), "d3", tmp_path / "m.safetensors", "safetensors")

    with pytest.raises(ConfigError, match="built by `exported:make_halves`, which is not"):
        partita.load(tmp_path / "m.safetensors")
    loaded = partita.load(tmp_path / "m.safetensors", user_code=True)

    assert same_on_every_test_row(run, "d3", loaded)
    assert partita.model_metadata(tmp_path / "m.safetensors")["build"]["options"]["scale"] == 3.0


def test_a_moved_run_is_exported_with_the_new_place_of_its_data(tmp_path: Path) -> None:
    run = finished(tmp_path, "tabular")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tabular.parquet").rename(tmp_path / "elsewhere/rows.parquet")
    run = run.rename(tmp_path / "elsewhere/run")
    before = contents(run)

    assert main(["export", str(run), "d0", str(tmp_path / "m.safetensors")]) == 2
    data = f"task.data={tmp_path}/elsewhere/rows.parquet"
    assert main(["export", str(run), "d0", str(tmp_path / "m.safetensors"), data]) == 0

    assert contents(run) == before


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "d02", "OUT"], "There is no device 'd02'. Near ids: d2, d0."),
        (["RUN", "d1"], "needs a run's folder, a device and the file to write, or --all DIR"),
        (["RUN", "d1", "TAKEN"], "exists already: give another name, or remove it."),
        (["RUN", "d1", "no/where"], "There is no folder `no` to write `where` in."),
        (["RUN", "d1", "OUT", "seed=4"], "got 3 arguments after the folder"),
        (["RUN", "d1", "OUT", "task.kind=text"], "leave out `task.kind=text`. Only the paths of files"),
        (["RUN", "--all", "TAKEN"], "exists already"),
        (["RUN", "d1", "--all", "OUT"], "With --all every device is exported: leave out 'd1'."),
        (["nothing", "d1", "OUT"], "`nothing` holds no run: it has no `config.toml`."),
    ],
)
def test_a_wrong_request_is_one_line(
    arguments: list[str],
    message: str,
    run_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("TAKEN").write_text("mine")
    run = str(run_of("tabular"))

    assert main(["export", *(run if text == "RUN" else text for text in arguments)]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["TAKEN"]
    assert Path("TAKEN").read_text() == "mine"


def test_a_run_from_python_is_exported_in_python(tmp_path: Path) -> None:
    task = affine_task()
    partition = partita.Partition(task.model(), personal="offset")
    result = partita.run(task, partition, partita.FedAlt(), rounds=1, out=tmp_path / "run")

    file = partita.open(tmp_path / "run", task=task).export("d3", tmp_path / "m.safetensors")

    assert main(["export", str(tmp_path / "run"), "d3", str(tmp_path / "n.safetensors")]) == 2
    loaded = partita.load(file, user_code=True)
    inputs, _ = task.devices["d3"]["test"]
    assert torch.equal(loaded(inputs), result.model("d3", "served")(inputs))
    with pytest.raises(ValueError, match="`format` must be one of safetensors, torch-export, onnx, got 'h5'"):
        result.export("d3", tmp_path / "m.h5", format="h5")
    in_memory = partita.run(task, partition, partita.FedAlt(), rounds=1)
    with pytest.raises(ConfigError, match="The run is in memory"):
        in_memory.export("d3", tmp_path / "o.safetensors")


def test_a_comparison_is_not_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "comparison.json").write_text("{}")

    assert main(["export", str(tmp_path), "d0", str(tmp_path / "m")]) == 2

    assert f"give the folder of one of its runs, in `{tmp_path}/cells`." in capsys.readouterr().err


def test_an_unfinished_run_is_refused(
    run_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text((run_of("tabular") / "config.toml").read_text())

    assert main(["export", str(tmp_path / "run"), "d0", str(tmp_path / "m")]) == 2

    assert "is not finished: resume it with `partita run --resume" in capsys.readouterr().err


@pytest.mark.slow
def test_a_loaded_model_needs_neither_run_nor_data(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    run = run_of("image")
    main(["export", str(run), "d2", str(tmp_path / "m.safetensors")])
    script = (
        "import partita, torch\n"
        "model = partita.load('m.safetensors')\n"
        "torch.manual_seed(5)\n"
        "print(model(torch.randn(3, 1, 8, 8)).tolist())\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )

    torch.manual_seed(5)
    expected = partita.open(run).model("d2", "served")(torch.randn(3, 1, 8, 8))
    assert done.returncode == 0, done.stderr
    assert torch.allclose(torch.tensor(json.loads(done.stdout)), expected, atol=1e-6)
