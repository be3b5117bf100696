"""The peers' environments: virtual environments with pinned packages, made when they are first needed."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".bench"


def python_of(peer: str) -> Path:
    """Return the Python of a peer's environment, with all of `requirements-PEER.txt`."""
    requirements = HERE / f"requirements-{peer}.txt"
    folder = ENVIRONMENTS / peer
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"Installing {requirements.name} in {folder} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        # Make's constraints are those of Partita's own environment.
        own = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", requirements], check=True, env=own)
        stamp.write_text(wanted)
    return python
