"""A device's end of Flower: it answers a message of the server, and its turn is that of `partita join`.

Flower starts a process for each message, so nothing is kept in memory: the personal part, the last reply and
the record of what left are in the device's home. The text of an exception, which may quote data, stays on the
device; Flower would send it to the server.
"""

# pyright: reportMissingImports=false
import hashlib
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message, RecordDict

from partita.config.overrides import TABLE
from partita.deploy.attempts import Rejected
from partita.deploy.building import device_ids
from partita.deploy.exporting import export_own
from partita.deploy.flower.records import REPLY, array_of, bytes_in, records_of, values_in
from partita.deploy.home import owned, result_lines
from partita.deploy.joining import Joined, Participant, introduced, joined_device
from partita.deploy.messages import BadMessage, message_of
from partita.deploy.outbox import Outbox
from partita.errors import ConfigError
from partita.protocol import DeviceId, key_of
from partita.shown import shown_lines

_PARTITION, _PARTITIONS = "partition-id", "num-partitions"
"""The keys by which Flower's simulation numbers its nodes."""
_PROBLEM = "problem"
"""The key and the purpose of an answer that says that an exception was raised."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A device on the machine of its node."""

    device: DeviceId
    home: Path
    data: str = ""
    """The device's own table, `task.data`; empty: the config names it, or the task needs none."""
    export: str = ""
    """The file for the device's own model when the run is over; empty: none is written."""


def place_of(context: Context, config: Path) -> Place:
    """Return the device that a node is: by its own settings, or by its number in Flower's simulation.

    Raises:
        ConfigError: the settings of the node are not complete.
    """
    own, run = context.node_config, context.run_config
    if "device" not in own and _PARTITION in own:
        data = str(run.get("data", ""))
        ids = _device_ids(config, data)
        number, count = int(own[_PARTITION]), int(own[_PARTITIONS])
        if count > len(ids):
            raise ConfigError(f"The simulation has {count} nodes, and the data only {len(ids)} devices.")
        home = Path(str(run["home"])).expanduser() / "devices" / key_of(ids[number])
        return Place(device=ids[number], home=home, data=data)
    for key in ("device", "home"):
        if not own.get(key):
            raise ConfigError(f'`--node-config` must have `{key}`, as in \'device="ann" home="/srv/ann"\'.')
    return Place(
        device=str(own["device"]),
        home=Path(str(own["home"])).expanduser(),
        data=str(own.get("data", "")),
        export=str(own.get("export", "")),
    )


@lru_cache(maxsize=1)  # Flower's simulation keeps its processes.
def _device_ids(config: Path, data: str) -> tuple[DeviceId, ...]:
    return tuple(device_ids(config, _overrides(data)))


def _overrides(data: str) -> list[str]:
    return [f"{TABLE}={data}"] if data else []


class Delivered:
    """An order with its tensors, as one message has brought them; its reply is kept here.

    Args:
        arrays: the bytes of the message, by name.
    """

    def __init__(self, arrays: Mapping[str, bytes]) -> None:
        self.content: bytes | None = None
        """The reply to the order."""
        self._tensors = {hashlib.sha256(content).hexdigest(): content for content in arrays.values()}

    def tensors(self, digest: str, size: int) -> bytes:
        """Return the tensors with a digest."""
        if digest not in self._tensors:
            raise Rejected("the message lacks tensors that it names")
        return self._tensors[digest]

    def reply(self, nonce: str, content: bytes) -> bool:
        """Keep the reply, which goes back when the message is answered."""
        self.content = content
        return True


def answer(message: Message, context: Context, config: Path) -> RecordDict:
    """Return the answer to a message of the server; of an exception, it has the type alone.

    Args:
        message: the message.
        context: the settings of the node and of the run.
        config: the config.
    """
    try:
        place = place_of(context, config)
        with owned(place.home):
            outbox = Outbox(place.home)
            try:
                return _answer(message, place, config, outbox)
            except Exception as error:
                outbox.write({"purpose": _PROBLEM, "reason": type(error).__name__})
                return _problem(error)
    except Exception as error:  # There is no home, or its record cannot be written.
        return _problem(error)


def _problem(error: Exception) -> RecordDict:
    traceback.print_exception(error)
    return records_of({_PROBLEM: type(error).__name__})


def _answer(message: Message, place: Place, config: Path, outbox: Outbox) -> RecordDict:
    joined = joined_device(config, _overrides(place.data), device=place.device, home=place.home)
    values = values_in(message)
    if values.get("kind") == "join":
        return records_of(introduced(joined, outbox))
    given, delivered = message_of(values, place.device), Delivered(bytes_in(message))
    part = Participant(joined, given.run, delivered, outbox)
    part.take(given)
    if given.kind == "done":
        _conclude(joined, part, place.export)
        outbox.write({"run": part.run, "purpose": given.kind})
        return records_of({"kind": given.kind})
    if delivered.content is None:
        raise BadMessage("The server's message has no order, or not all of its tensors.")
    return records_of({"kind": REPLY}, {REPLY: array_of(delivered.content)})


def _conclude(joined: Joined, part: Participant, export: str) -> None:
    """Print the device's own results, and write its own model if that is wanted and not done yet."""
    for line in result_lines(part.home.results):
        sys.stdout.write(f"{shown_lines(line)}\n")
    if export and not Path(export).exists():
        export_own(joined, part.home, Path(export))
