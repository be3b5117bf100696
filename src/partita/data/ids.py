"""Device ids in a column: what can be one, and which rows have none."""

import pyarrow as pa
import pyarrow.compute as pc

from partita.data.rows import WrongRow
from partita.errors import ConfigError


def check_id(kind: pa.DataType, column: str, where: str) -> None:
    """Raise a `ConfigError` unless values of this type, written as texts, can say whose a row is."""
    if not has_text(kind):
        raise ConfigError(f"`{column}` of {where} must hold texts or numbers, it holds {kind}.")


def has_text(kind: pa.DataType) -> bool:
    """Whether values of this type can be written as texts.

    >>> has_text(pa.date32()), has_text(pa.list_(pa.string()))
    (True, False)
    """
    try:
        pa.array([], kind).cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True


def ids_of(values: pa.ChunkedArray, column: str) -> pa.Array:
    """Return whose some rows are, as texts.

    Raises:
        WrongRow: a row has no id, or one that is not UTF-8.
    """
    whole = values.combine_chunks()
    _refuse(whole.is_null(nan_is_null=True), f"`{column}` is empty")
    if not _is_text(whole):
        row = next(place for place in range(len(whole)) if not _is_text(whole.slice(place, 1)))
        raise WrongRow(row, f"`{column}` is not UTF-8")
    texts = whole.cast(pa.string())
    _refuse(pc.call_function("equal", [texts, pa.scalar("")]), f"`{column}` is empty")
    return texts


def _is_text(values: pa.Array) -> bool:
    try:
        values.cast(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _refuse(wrong: pa.Array, message: str) -> None:
    row = pc.index(wrong, True).as_py()
    if row >= 0:
        raise WrongRow(row, message)
