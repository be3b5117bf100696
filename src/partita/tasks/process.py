"""A process that carries out visits: what the libraries under torch keep from one visit to the next.

By default the C library returns the memory of a large tensor to the system when the tensor is freed, and gets
new pages for the next one. The system fills these with zeros, which can take as long as the computation that
writes to them. And oneDNN compiles a convolution for each batch size, of which devices have many.
"""

import ctypes
import os

_SETTINGS = {"M_TRIM_THRESHOLD": (-1, 512 << 20), "M_MMAP_THRESHOLD": (-3, 32 << 20)}
"""Parameters of glibc's `mallopt`: their numbers and values in bytes.

A process keeps freed memory up to the first, and all blocks up to the second are taken from it: 32 MB is the
largest value that glibc accepts.
"""
_ALLOCATOR_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables by which a user sets the same."""
_KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096"
"""The environment variable for the number of compiled operations that oneDNN keeps; its default is 1024."""


def prepare_process() -> None:
    """Let libraries keep memory and compiled kernels between visits, in this process and its children.

    Settings that a user has made in the environment are left alone. The number of kernels is set only if this
    comes before the first of them: oneDNN reads the variable once.
    """
    os.environ.setdefault(*_KERNELS)
    is_glibc = "CS_GNU_LIBC_VERSION" in os.confstr_names
    if is_glibc and not any(name in os.environ for name in _ALLOCATOR_VARIABLES):
        library = ctypes.CDLL(None)
        for number, value in _SETTINGS.values():
            library.mallopt(number, value)
