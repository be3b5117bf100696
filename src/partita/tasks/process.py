"""A process that carries out visits: what the libraries under torch keep from one visit to the next.

By default the C library returns the memory of a large tensor to the system when the tensor is freed, and gets
new pages for the next one. The system fills these with zeros, which can take as long as the computation that
writes to them. And oneDNN compiles a convolution for each batch size, of which devices have many.
"""

import ctypes
import os
import platform

_SETTINGS = {"M_TRIM_THRESHOLD": (-1, 512 << 20), "M_MMAP_THRESHOLD": (-3, 32 << 20)}
"""Parameters of glibc's `mallopt`: their numbers and values in bytes.

A process keeps freed memory up to the first, and all blocks up to the second are taken from it: 32 MB is the
largest value that glibc accepts.
"""
_ALLOCATOR_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables by which a user sets the same."""
_KERNEL_VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")
"""Environment variables for the number of compiled operations that oneDNN keeps, 1024 by default. The second
is an older name, which counts where the first is not set."""
_KERNELS = "4096"


def prepare_process() -> None:
    """Let libraries keep memory and compiled kernels between visits, in this process and its children.

    Settings that a user has made in the environment are left alone. The number of kernels is set only if this
    comes before the first of them: oneDNN reads the variable once.
    """
    if not _is_any_set(_KERNEL_VARIABLES):
        os.environ[_KERNEL_VARIABLES[0]] = _KERNELS
    # Not by the names of `os.confstr`: musl has those of glibc, and no `mallopt`.
    if platform.libc_ver()[0] == "glibc" and not _is_any_set(_ALLOCATOR_VARIABLES):
        library = ctypes.CDLL(None)
        for number, value in _SETTINGS.values():
            library.mallopt(number, value)


def _is_any_set(variables: tuple[str, ...]) -> bool:
    """Return whether one of these environment variables is set."""
    return any(name in os.environ for name in variables)
