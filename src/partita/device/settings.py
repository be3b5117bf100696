"""How a visit computes: where its tensors are, their precision, and what it computes only once."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

Precision = Literal["float32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How visits compute."""

    accelerator: str = "auto"
    """Where models are trained: auto (cuda where there is a GPU for it, otherwise cpu), cpu, cuda (all GPUs,
    a worker on each), cuda:N or mps."""
    precision: Precision = "float32"
    """Precision of the forward and backward pass; parameters are float32 in either case."""
    reuse: bool | Literal["disk"] = True
    """Whether visits compute only once what precedes the first parameter that moves, and a run what precedes
    the first that is not frozen; with `disk` the latter is kept in the run's folder until it is finished."""
    on_error: Literal["stop", "skip"] = "stop"
    """Effect of an exception in the code or the data of the task, or in a method of one's own: `stop` ends
    the run; `skip` counts it as a failure of the device, with its line in the reason."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?|mps", str(self.accelerator)):
            raise ValueError(
                "`accelerator` must be 'auto', 'cpu', 'cuda', 'cuda:N', such as 'cuda:0', or 'mps', got "
                f"{self.accelerator!r}."
            )
        if not (isinstance(self.reuse, bool) or self.reuse == "disk"):
            raise ValueError(f"`reuse` must be true, false or 'disk', got {self.reuse!r}.")
        if self.on_error not in ("stop", "skip"):
            raise ValueError(f"`on_error` must be 'stop' or 'skip', got {self.on_error!r}.")
        if self.precision not in get_args(Precision):
            raise ValueError(f"`precision` must be 'float32' or 'bf16', got {self.precision!r}.")
