"""The public names, and what importing them costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import partita


def test_every_public_name_is_there() -> None:
    assert set(partita.__all__) == set(partita._HOME_OF)
    for name in partita.__all__:
        assert getattr(partita, name) is not None
        assert name in dir(partita)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'FedNone'"):
        _ = partita.FedNone  # pyright: ignore[reportAttributeAccessIssue]


def test_the_package_imports_nothing_until_a_name_is_used() -> None:
    # Ctrl-C ends a command in one line as soon as `partita.__main__` is read, which is after the package.
    statements = ast.parse(Path(partita.__file__).read_text()).body

    assert not [each for each in statements if isinstance(each, ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize("arguments", ["['--help']", "['run', '--help']", "['config']"])
def test_help_imports_nothing_heavy(arguments: str) -> None:
    script = (
        "import sys\nfrom partita.cli import main\n"
        f"try:\n    main({arguments})\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'sklearn', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_run_imports_nothing_for_its_report_before_it_trains() -> None:
    script = (
        "import sys\nimport partita.progress.display, partita.studies.run\n"
        "from partita.tasks.digits import digits\ndigits()\n"
        "later = {'altair', 'jinja2', 'vl_convert', 'sklearn', 'tensorboard', 'PIL'} & set(sys.modules)\n"
        "assert not later, later\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
