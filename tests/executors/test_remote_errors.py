"""Errors of the system from other processes: their number and their file are not lost."""

import errno
import json
from pathlib import Path

import pytest

from partita.errors import fault_text, is_fault
from partita.executors.remote_errors import error_of, error_values


def raised(path: Path, error: OSError) -> OSError:
    """Return an error that was raised where a function reads a file."""
    try:
        raise error
    except OSError as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EIO, "Input/output error", "named"), "Input/output error: `named`."),
        (OSError(errno.EIO, "Input/output error", "x.tmp", None, "x"), "Input/output error: `x.tmp`, `x`."),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device: `personal/x`."),
        (OSError(errno.EIO, "Error reading bytes. Detail: [errno 5]"), "Input/output error: `personal/x`."),
    ],
)
def test_a_fault_in_another_process_is_one_here(error: OSError, text: str) -> None:
    values = json.loads(json.dumps(error_values(raised(Path("personal/x"), error))))

    again = error_of(values)

    assert isinstance(again, OSError)
    assert is_fault(again)
    assert fault_text(again) == text


def test_a_missing_file_stays_one() -> None:
    error = raised(Path("x"), FileNotFoundError(errno.ENOENT, "No such file or directory", "x/y"))

    again = error_of(json.loads(json.dumps(error_values(error))))

    assert isinstance(again, FileNotFoundError)
    assert (again.errno, again.filename) == (errno.ENOENT, "x/y")
