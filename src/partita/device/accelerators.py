"""The accelerators of this machine, and the one on which a worker computes.

Nothing here but `accelerator_of` initializes CUDA: a process that has done so cannot fork workers for it.
"""

import os

import torch

from partita.device.settings import Computing
from partita.errors import ConfigError

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
# Then `torch.cuda.is_available`, which the optimizers of torch call, does not initialize CUDA either.

_CPU_BF16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
"""Names of the instructions for bfloat16 in `torch.cpu.get_capabilities`: two of x86, then two of ARM."""


def accelerators_named(name: str) -> tuple[torch.device, ...]:
    """Return the accelerators that the setting `accelerator` means, of which each worker uses one.

    Raises:
        ValueError: this machine has no such accelerator.
    """
    if name == "cpu":
        return (torch.device("cpu"),)
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise ValueError("`accelerator` = 'mps': this machine has no MPS device; use 'cpu' or 'auto'.")
        return (torch.device("mps"),)
    every = tuple(torch.device("cuda", number) for number in range(_cuda_devices()))
    if name == "auto":
        return every or (torch.device("cpu"),)
    found = every if name == "cuda" else tuple(one for one in every if str(one) == name)
    if not found:
        build = (
            "" if torch.backends.cuda.is_built() else f" (torch {torch.__version__} is built without CUDA)"
        )
        raise ValueError(
            f"`accelerator` = {name!r}: this machine has {len(every)} CUDA devices{build}; use "
            f"{', '.join(repr(str(one)) for one in (*every, 'cpu'))} or 'auto'."
        )
    return found


def check_available(computing: Computing) -> None:
    """Raise where this machine cannot compute in this way, as far as that is known before it begins.

    Raises:
        ValueError: there is no such accelerator, or bf16 would be slow.
    """
    accelerator = accelerators_named(computing.accelerator)[0]
    if computing.precision != "bf16":
        return
    if accelerator.type == "cpu" and not _cpu_has_bf16():
        raise ValueError(
            "`precision` = 'bf16': this CPU has no instructions for bfloat16 (AVX512-BF16, AMX, ARM's BF16); "
            "without them it is 20 to 34 times slower than 'float32'; use 'float32'."
        )
    if accelerator.type == "mps" and not torch.backends.mps.is_macos_or_newer(14, 0):
        raise ValueError("`precision` = 'bf16' on 'mps' needs macOS 14 or later; use 'float32'.")


def accelerator_of(computing: Computing, worker: int = 0) -> torch.device:
    """Return the accelerator on which a worker computes, to be called in the worker's own process.

    Args:
        computing: the settings.
        worker: the worker's number among those of this machine, from 0 on.

    Raises:
        ConfigError: the accelerator cannot be used here.
    """
    try:
        check_available(computing)
        found = accelerators_named(computing.accelerator)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    accelerator = found[worker % len(found)]
    if accelerator.type == "cuda":
        _check_cuda(computing, accelerator)
    return accelerator


def _cuda_devices() -> int:
    """Return the number of GPUs that CUDA may use."""
    # torch asks NVML, which does not initialize CUDA.
    return torch.cuda.device_count() if torch.backends.cuda.is_built() else 0


def _cpu_has_bf16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in _CPU_BF16)


def _check_cuda(computing: Computing, accelerator: torch.device) -> None:
    """Initialize CUDA, and raise where that or the precision is impossible."""
    try:
        with torch.cuda.device(accelerator):
            is_native = torch.cuda.is_bf16_supported(including_emulation=False)
    except RuntimeError as error:
        raise ConfigError(
            f"`accelerator` = {computing.accelerator!r}: CUDA cannot be used in this process: {error} With "
            "workers, no code of your own may use CUDA before they start; or use 'cpu', or `workers` = 1."
        ) from error
    if computing.precision == "bf16" and not is_native:
        name = torch.cuda.get_device_name(accelerator)
        raise ConfigError(
            f"`precision` = 'bf16': {name} ({accelerator}) has no instructions for bfloat16; use 'float32'."
        )
