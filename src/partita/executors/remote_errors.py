"""Exceptions from other processes: as JSON values, and raised again with the same type, message and place."""

import builtins
import inspect
import sys
import traceback
from types import TracebackType
from typing import Any

from partita.errors import file_of, is_fault
from partita.executors.codec import Values


def error_values(error: BaseException) -> dict[str, Any]:
    """Return an exception as JSON values: its type, message, notes, stack, and the exception behind it."""
    kind = type(error)
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    given = error.args
    if isinstance(error, OSError) and is_fault(error):
        error.filename = file_of(error)  # The other process cannot find it.
    if isinstance(error, OSError) and kind.__module__ == "builtins" and error.filename is not None:
        given = (*given[:2], str(error.filename))
        if error.filename2 is not None:  # Of a rename; the argument before it is for Windows.
            given = (*given, None, str(error.filename2))
    arguments = [each for each in given if isinstance(each, str | int | float | bool | None)]
    return {
        "module": kind.__module__,
        "type": kind.__qualname__,
        "bases": [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"],
        "arguments": arguments if len(arguments) == len(given) else None,
        "message": str(error),
        "notes": list(getattr(error, "__notes__", ())),
        "stack": [[p.filename, p.lineno, p.name] for p in traceback.extract_tb(error.__traceback__)],
        "is_cause": error.__cause__ is not None,
        "behind": behind and error_values(behind),
    }


def error_of(values: Values) -> BaseException:
    """Return the exception with these values, ready to be raised: its traceback is that of the process."""
    error = _made(values).with_traceback(_traceback(values["stack"]))
    for note in values["notes"]:
        error.add_note(note)
    behind = values["behind"] and error_of(values["behind"])
    error.__cause__, error.__context__ = behind if values["is_cause"] else None, behind
    return error


def _made(values: Values) -> BaseException:
    """Return an exception of the same class, or of a new one with its name where it cannot be made again."""
    kind = _find(values["module"], values["type"])
    if kind is not None and values["arguments"] is not None:
        try:
            # Only the constructor of a builtin one sets, for example, an exit code.
            is_builtin = kind.__module__ == "builtins"
            error = kind(*values["arguments"]) if is_builtin else kind.__new__(kind, *values["arguments"])
            if str(error) == values["message"]:
                return error
        except Exception:  # It has a constructor of its own.
            pass
    base = next(b for name in values["bases"] if (b := _find("builtins", name)) is not None)
    name = {"__module__": values["module"], "__str__": lambda self: values["message"]}
    new: type[BaseException] = type(values["type"].rpartition(".")[2], (kind or base,), name)
    return new.__new__(new)


def _find(module: str, name: str) -> type[BaseException] | None:
    """Return an exception class of a module that this process has imported."""
    found: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _traceback(stack: list[list[Any]]) -> TracebackType | None:
    """Return a traceback with these places, given as file, line and function, outermost first."""
    trace: TracebackType | None = None
    for file, line, function in reversed(stack):
        code = compile("frame = get_frame()", file, "exec").replace(co_name=function, co_firstlineno=line)
        scope: dict[str, Any] = {"get_frame": inspect.currentframe}
        exec(code, scope)
        trace = TracebackType(trace, scope["frame"], -1, line)
    return trace
