"""Files beside a config or in a copied run are not executed for having the name of a package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from partita.cli import main
from partita.report.comparison.page import comparison_page
from partita.report.run.page import run_page
from partita.runs.folder import RunFolder
from partita.studies.comparison import reopen

PACKAGES = ("sklearn", "altair", "jinja2", "vl_convert", "pyarrow", "numpy", "rich", "optuna", "tomli_w")
SHORT = ["pretrain.rounds=1", "personalize.rounds=1", "finetune.epochs=1", "model.width=2"]
CONFIG = """
[task]
kind = "{kind}"
[model]
name = "convnet"
[partition]
personal = "output"
"""
TASK = """
def make():
    from helper import digits  # Imported late: its folder is still on the path.
    return digits()
"""


def plant(folder: Path, proof: Path) -> None:
    """Write modules that leave a proof of their execution, under the names of installed packages."""
    for name in PACKAGES:
        code = f"open({str(proof)!r}, 'a').write({name!r})\nraise SystemExit\n"
        (folder / f"{name}.py").write_text(code)


def run(folder: Path, *arguments: str) -> None:
    """Run a command as its console script does, without the current folder on the search path."""
    code = "import sys; from partita.cli import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["digits", "own_task:make"])
def test_no_command_executes_a_planted_module(kind: str, tmp_path: Path) -> None:
    current, beside, copy = (tmp_path / name for name in ("current", "beside", "current/copy"))
    current.mkdir()
    beside.mkdir()
    (beside / "mine.toml").write_text(CONFIG.format(kind=kind))
    (beside / "own_task.py").write_text(TASK)
    (beside / "helper.py").write_text("from partita.tasks.digits import digits\n")
    plant(current, tmp_path / "proof")
    plant(beside, tmp_path / "proof")

    for command in (
        ["describe", "../beside/mine.toml"],
        ["run", "../beside/mine.toml", *SHORT, "out=a"],
        ["report", "a"],
        ["compare", "../beside/mine.toml", *SHORT, "methods=fedalt", "seeds=1", "out=b"],
        ["report", "b"],
        ["tune", "../beside/mine.toml", *SHORT, "finetune.personal_lr=0.1,0.2", "out=c"],
    ):
        run(current, *command)
    shutil.copytree(current / "a", copy)
    plant(copy, tmp_path / "proof")
    for command in (["report", "."], ["run", "--resume", "."], ["describe", "config.toml"]):
        run(copy, *command)

    assert not (tmp_path / "proof").exists()


@pytest.mark.slow
def test_a_report_imports_no_code_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, method = tmp_path / "planted_method.py", "planted_method:own_update"
    code.write_text("from partita.methods.fedalt import LocalAlt as own_update\n")
    assert main(["run", *SHORT, "finetune.baseline=false", f"personalize.method={method}", "out=a"]) == 0
    compared = [f"methods={method}", "partitions=output", "seeds=1", "out=b"]
    assert main(["compare", *SHORT, *compared]) == 0
    # The module can still be found, and would now end the process.
    monkeypatch.delitem(sys.modules, "planted_method")
    code.write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert run_page(RunFolder("a")).tables
    assert comparison_page(reopen(Path("b"))).tables

    assert "planted_method" not in sys.modules
