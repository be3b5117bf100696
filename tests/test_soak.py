"""A sample of the soak test; `make soak` runs all of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SAMPLES = {
    "kills": ["kills", "--kills", "6", "--only", "run", "onboard"],
    "full disks": ["full", "--full", "6", "--only", "run", "tune", "import sort"],
    "faults": ["faults", "--faults", "20", "--only", "run", "onboard", "import stackoverflow"],
    "a report": ["kills", "faults", "--kills", "3", "--faults", "6", "--only", "report"],
    "two at once": ["two", "--only", "run", "tune"],
    "a long run": ["long", "--rounds", "80"],
}


def can_soak() -> bool:
    """Return whether this machine has a C compiler, and lets us have a disk of our own."""
    if sys.platform != "linux" or not all(map(shutil.which, ("cc", "unshare"))):
        return False
    own = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "soak", "/mnt"]
    return subprocess.run(own, check=False, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not can_soak(), reason="needs Linux, a C compiler and a mount namespace")
@pytest.mark.parametrize("sample", SAMPLES)
def test_what_is_disturbed_ends_with_the_same_bits(sample: str) -> None:
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Processes that are killed, or whose calls fail, do not measure coverage.
    own = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-m", "soak", *SAMPLES[sample]]

    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, env=own | {"PYTHONPATH": path}
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "| all |" in ended.stdout
