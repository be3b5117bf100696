"""Our messages as Flower's records: JSON in a config record, bytes in arrays.

Flower cuts arrays into pieces and sends equal ones once, so the shared part of a round goes to a SuperLink
once for all devices. It never reads their content: that is in the safetensors format, and a reply's is as
`executors.replies` defines it.
"""

# pyright: reportMissingImports=false
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

_VALUES, _ARRAYS, _JSON = "values", "arrays", "json"
_FORMAT = "partita"
"""The name of the way in which the bytes of an array are made: not one that Flower would read."""
_MAX_JSON = 2**24
"""The longest JSON text that is read, in characters."""

REPLY = "reply"
"""The name of the array with a device's reply to an order."""


def array_of(content: bytes) -> Array:
    """Return bytes as an array of Flower's."""
    return Array("uint8", (len(content),), _FORMAT, content)


def records_of(values: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> RecordDict:
    """Return the content of a message with JSON values and arrays."""
    records = RecordDict({_VALUES: ConfigRecord({_JSON: json.dumps(values)})})
    if arrays:
        records[_ARRAYS] = ArrayRecord(OrderedDict(arrays))
    return records


def values_in(message: Message) -> dict[str, Any]:
    """Return the JSON values of a message; none where it has no such record."""
    record = message.content.get(_VALUES)
    text = record.get(_JSON) if isinstance(record, ConfigRecord) else None
    try:
        values = json.loads(text) if isinstance(text, str) and len(text) <= _MAX_JSON else {}
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def bytes_in(message: Message) -> dict[str, bytes]:
    """Return the bytes of a message by name; none where it has no arrays."""
    record = message.content.get(_ARRAYS)
    if not isinstance(record, ArrayRecord):
        return {}
    return {name: array.data for name, array in record.items()}
