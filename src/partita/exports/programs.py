"""A model as a program that needs neither Partita nor the code of the model: torch.export, or ONNX.

A program is traced on a few of the device's own rows. Sizes that differ between them, the batch's before all,
are left open where the model allows it. Then the program must give the outputs of the model for every test
row of the device, or nothing is written.
"""

import inspect
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from partita.errors import CannotDo, needed
from partita.exports.samples import (
    Inputs,
    all_inputs,
    largest_difference,
    output_of,
    sample_inputs,
    varying_sizes,
)
from partita.exports.subject import Subject

_TOLERANCE = 1e-4
"""The largest difference between the outputs of a program and of its model, as a share of the largest output:
the same arithmetic in another order."""
_ENTRY = "partita"
"""The name of the metadata inside a file."""

Program = Callable[..., Any]
Finish = Callable[[ExportedProgram], tuple[Program, bytes]]
"""Returns the program that leaves, and the content of its file, from a traced one."""


def program_bytes(subject: Subject) -> bytes:
    """Return the content of a `.pt2` file, which `torch.export.load` opens."""

    def finish(program: ExportedProgram) -> tuple[Program, bytes]:
        content = io.BytesIO()
        torch.export.save(program, content, extra_files={f"{_ENTRY}.json": _metadata(subject)})
        return program.module(), content.getvalue()

    return _traced(subject, finish)


def onnx_bytes(subject: Subject) -> bytes:
    """Return the content of an `.onnx` file, which ONNX Runtime and others open."""
    for package in ("onnx", "onnxscript"):
        needed(package, by="`--format onnx`", extra="onnx")
    runtime = needed("onnxruntime", by="`--format onnx`, which tries every program,", extra="onnx")

    def finish(program: ExportedProgram) -> tuple[Program, bytes]:
        converted = torch.onnx.export(program, dynamo=True, verbose=False)
        assert converted is not None
        for node in converted.model.graph.all_nodes():
            node.metadata_props.clear()  # They have paths of the code that was traced.
        converted.model.metadata_props[_ENTRY] = _metadata(subject)
        content = converted.model_proto.SerializeToString()
        return _session(runtime, content), content

    return _traced(subject, finish)


def _forget_rows_and_paths(program: ExportedProgram) -> None:
    """Remove the device's own rows from a traced program, in place, and the paths of the code."""
    program.example_inputs = None
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)


def _metadata(subject: Subject) -> str:
    return json.dumps(subject.metadata, allow_nan=False)


def _session(runtime: Any, content: bytes) -> Program:
    """Return a function that runs an ONNX program."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*args: Any, **kwargs: Any) -> list[Tensor]:
        given = [tensor.numpy() for tensor in Inputs(args, kwargs).tensors]
        outputs = session.run(None, dict(zip(names, given, strict=True)))
        return [torch.from_numpy(output) for output in outputs]

    return run


def _traced(subject: Subject, finish: Finish) -> bytes:
    """Return the content of a program's file: with open sizes where that is possible, else for one row.

    Raises:
        CannotDo: there is no such program that predicts as the model does.
    """
    model, task = subject.model, subject.task
    reasons: list[str] = []
    for open_sizes in _attempts(subject.samples):
        is_open = any(any(own) for own in open_sizes)
        sample = subject.samples[-1]
        rows = all_inputs(task, model, subject.examples)
        if not is_open:
            (sample,) = sample_inputs(task, model, subject.device, sizes=(1,))
            rows = all_inputs(task, model, subject.examples, batch_size=1)
        try:
            with _quietly(), torch.no_grad():
                program, content = finish(_trace(model, sample, open_sizes))
            _check(model, program, [sample, *rows])
            return content
        except Exception as error:
            reasons.append(_first_line(error))
    raise CannotDo(reasons[-1])


def _trace(model: nn.Module, sample: Inputs, open_sizes: list[list[bool]]) -> ExportedProgram:
    shapes = _by_argument(model, sample, open_sizes)
    program = torch.export.export(
        model, sample.args, dict(sample.kwargs), dynamic_shapes=shapes, strict=False
    )
    _forget_rows_and_paths(program)
    return program


def _attempts(samples: Sequence[Inputs]) -> Iterator[list[list[bool]]]:
    """Yield which sizes to leave open: all that vary, then that of the batch alone, then none."""
    varying = varying_sizes(samples)
    batch = [[differs and not place for place, differs in enumerate(own)] for own in varying]
    none = [[False for _ in own] for own in varying]
    yield from (
        each for number, each in enumerate([varying, batch, none]) if each not in [varying, batch][:number]
    )


def _by_argument(model: nn.Module, sample: Inputs, open_sizes: list[list[bool]]) -> dict[str, Any] | None:
    """Return the open sizes of each argument of a model's call, in the form that torch.export takes."""
    if not any(any(own) for own in open_sizes):
        return None
    remaining = iter(open_sizes)

    def of_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        kinds = (torch.export.Dim.STATIC, torch.export.Dim.DYNAMIC)
        return {place: kinds[is_open] for place, is_open in enumerate(next(remaining))}

    bound = inspect.signature(model.forward).bind(*sample.args, **sample.kwargs)
    return {name: pytree.tree_map(of_leaf, value) for name, value in bound.arguments.items()}


def _check(model: nn.Module, program: Program, calls: Sequence[Inputs]) -> None:
    """Raise unless a program gives the outputs of a model, up to rounding."""
    for inputs in calls:
        gap = largest_difference(output_of(model, inputs), output_of(program, inputs))
        if not gap <= _TOLERANCE:
            raise CannotDo(
                f"The program predicts otherwise than the model: its outputs differ by {gap:.2g} of the "
                f"largest, more than {_TOLERANCE:g}."
            )


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message that says something, as a sentence."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip(" #=-\t")]
    text = (lines or [type(error).__name__])[0]
    kind = "" if isinstance(error, CannotDo) else f"{type(error).__name__}: "
    return f"{kind}{text.rstrip('.')}."


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide what exporters print in this block: an error says it, and the rest is about code of torch."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
