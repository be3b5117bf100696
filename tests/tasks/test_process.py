"""A process that carries out visits: memory and kernels that libraries keep."""

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from partita.tasks.process import prepare_process

FAULTS = """
import resource, torch
from partita.tasks.process import prepare_process

prepare_process()

def use():
    torch.zeros(64, 64, 1024)  # 16 MB, or 4,096 pages, that are written to and freed

for _ in range(30):  # The C library finds room for tensors only after a few of them.
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

is_glibc = platform.libc_ver()[0] == "glibc"


def faults(**variables: str) -> int:
    """Return how many new pages ten large tensors need, one after the other, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FAULTS]
    return int(subprocess.check_output(command, env=environment | variables))


@pytest.mark.slow
@pytest.mark.skipif(not is_glibc, reason="The C library is not glibc.")
def test_the_memory_of_large_tensors_is_kept() -> None:
    assert faults() < 4096


@pytest.mark.slow
@pytest.mark.skipif(not is_glibc, reason="The C library is not glibc.")
def test_settings_of_the_user_are_left_alone() -> None:
    assert faults(MALLOC_MMAP_THRESHOLD_="65536") >= 10 * 4096


@pytest.mark.parametrize(("given", "expected"), [(None, "4096"), ("16", "16")])
def test_more_kernels_are_kept_unless_the_user_says_how_many(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, given or "")
    if given is None:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")  # So that this process is left as it is.

    prepare_process()

    assert os.environ[name] == expected


def test_the_older_variable_for_kernels_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    monkeypatch.setenv("DNNL_PRIMITIVE_CACHE_CAPACITY", "16")
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")  # So that this process is left as it is.

    prepare_process()

    assert "ONEDNN_PRIMITIVE_CACHE_CAPACITY" not in os.environ


@pytest.mark.parametrize("library", ["musl", ""], ids=["musl", "another system"])
def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    # musl has the names of glibc in `os.confstr_names`, but no `mallopt`.
    monkeypatch.setattr(platform, "libc_ver", lambda: (library, ""))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")

    prepare_process()
