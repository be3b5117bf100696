"""Machines of a deployment as network namespaces of this one: each device has a cable to the server, or to a
machine with a proxy."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

SERVER = "10.77.0.1"
"""The server's address."""
PROXY = "10.77.9.1"
"""The address of the machine with a proxy, on the side of the device behind it."""


def ip(*arguments: str) -> None:
    """Call `ip`."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextmanager
def network(devices: list[str]) -> Iterator[dict[str, list[str]]]:
    """Yield, by machine, the words that start a command on it: the server `fl`, devices, and a `proxy`.

    The last device has no route to the server, and a cable to the machine with the proxy alone.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    names = {name: f"partita-{os.getpid()}-{name}" for name in ("fl", "proxy", *devices)}
    with ExitStack() as stack:
        try:
            for name in names.values():
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            for number, device in enumerate([*devices[:-1], "proxy"], start=1):
                cable(names["fl"], names[device], f"10.77.{number}")
                ip("-n", names[device], "route", "add", SERVER, "via", f"10.77.{number}.1")
            cable(names["proxy"], names[devices[-1]], "10.77.9")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not allowed here: {error.stderr}")
        ip("-n", names["fl"], "addr", "add", f"{SERVER}/32", "dev", "lo")
        for name in names.values():
            ip("-n", name, "link", "set", "lo", "up")
        yield {name: ["ip", "netns", "exec", own] for name, own in names.items()}


def cable(one: str, other: str, subnet: str) -> None:
    """Connect two namespaces, which get the addresses 1 and 2 of a subnet."""
    inner = f"veth-{subnet.rpartition('.')[2]}"
    ip("link", "add", inner, "netns", one, "type", "veth", "peer", "name", inner, "netns", other)
    for number, name in enumerate((one, other), start=1):
        ip("-n", name, "addr", "add", f"{subnet}.{number}/24", "dev", inner)
        ip("-n", name, "link", "set", inner, "up")
