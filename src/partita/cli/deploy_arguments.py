"""The arguments of the commands of a run on real devices."""

import argparse
from collections.abc import Callable
from pathlib import Path

from partita.cli import deploy

_AddParser = Callable[..., argparse.ArgumentParser]
_DAYS = 365


def add_serve(add_parser: _AddParser, add_outputs: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command `serve`."""
    serve = add_parser(
        "serve",
        help="run a config with devices on other machines, which join over HTTPS",
        description="Run a config with devices on other machines. Only the shared part, rates and metrics "
        "travel; the data and the personal parts stay on the devices, and no code travels at all.",
    )
    serve.add_argument(
        "arguments", nargs="*", metavar="CONFIG.toml | section.key=value", help="a config, then overrides"
    )
    serve.add_argument("--home", metavar="DIR", type=Path, required=True, help="the server's keys and run")
    serve.add_argument(
        "--listen", metavar="HOST:PORT", default="0.0.0.0:8443", help="where to listen (0.0.0.0:8443)"
    )
    serve.add_argument(
        "--devices", metavar="N", type=int, default=1, help="begin when so many devices have joined (1)"
    )
    serve.add_argument(
        "--deadline",
        metavar="SECONDS",
        type=float,
        default=0.0,
        help="a device that has not replied misses its round; by default it is waited for",
    )
    serve.add_argument(
        "--min-devices",
        metavar="N",
        type=int,
        default=1,
        help="a round that has fewer replies at its deadline goes on (1)",
    )
    serve.add_argument(
        "--linger",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="the time that devices have at the end to learn that the run is over (30)",
    )
    serve.add_argument(
        "--status", metavar="PORT", type=int, help="show a live page, and /metrics, at 127.0.0.1:PORT"
    )
    serve.add_argument("--resume", action="store_true", help="resume the run in the home")
    serve.add_argument(
        "--insecure", action="store_true", help="without TLS, on this machine alone (127.0.0.1), for tests"
    )
    add_outputs(serve)
    serve.set_defaults(command=deploy.serve)


def add_join(add_parser: _AddParser, add_outputs: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command `join`."""
    join = add_parser(
        "join",
        help="take part in a run of `partita serve` as one device",
        description="Take part in a run as one device. It asks the server for orders, for ever if need be, "
        "and ends with the run. Its data and its personal part stay in place.",
    )
    join.add_argument(
        "arguments", nargs="*", metavar="section.key=value", help="values that override the config"
    )
    join.add_argument("--server", metavar="URL", required=True, help="the server, https://HOST:PORT")
    join.add_argument(
        "--config",
        metavar="CONFIG.toml",
        type=Path,
        required=True,
        help="the device's own copy of the config",
    )
    join.add_argument("--device", metavar="ID", required=True, help="the device's id, as in its certificate")
    join.add_argument(
        "--data", metavar="TABLE.parquet", type=Path, help="the device's own table, `task.data`"
    )
    join.add_argument(
        "--home", metavar="DIR", type=Path, required=True, help="the device's keys and personal part"
    )
    join.add_argument(
        "--insecure", action="store_true", help="without TLS, on this machine alone (127.0.0.1), for tests"
    )
    join.add_argument(
        "--check",
        action="store_true",
        help="check keys, clock, config, data, policy, disk and memory, and send nothing",
    )
    join.add_argument(
        "--digest", metavar="SHA256", default="", help="with --check: the digest that `serve` has printed"
    )
    join.add_argument(
        "--export", metavar="OUT.safetensors", type=Path, help="write the device's own model at the end"
    )
    add_outputs(join)
    join.set_defaults(command=deploy.join)


def add_keys(add_parser: _AddParser) -> None:
    """Add the command `keys`."""
    keys = add_parser(
        "keys",
        help="make the keys and certificates of a deployment",
        description="Make the keys and certificates of a deployment. Private keys are made where they are "
        "used, and never travel.",
    )
    kinds = keys.add_subparsers(title="kinds", metavar="KIND", dest="keys", required=True)
    ca = kinds.add_parser("ca", help="make a certificate authority")
    ca.add_argument("ca", metavar="CA_DIR", type=Path, help="the authority's folder")
    ca.add_argument("--name", dest="authority", default="Partita", help="the authority's name (Partita)")
    server = kinds.add_parser("server", help="make the server's key and certificate in its home")
    _add_ca(server)
    server.add_argument("--home", metavar="DIR", type=Path, required=True, help="the server's home")
    server.add_argument("hosts", metavar="HOST", nargs="+", help="names and addresses that devices dial")
    request = kinds.add_parser("request", help="make a device's key, and the request for its certificate")
    request.add_argument("--home", metavar="DIR", type=Path, required=True, help="the device's home")
    sign = kinds.add_parser("sign", help="sign the request of a device")
    _add_ca(sign)
    sign.add_argument("request", metavar="DEVICE.csr", type=Path, help="the request")
    sign.add_argument("out", metavar="DEVICE.crt", type=Path, help="the certificate to write")
    revoke = kinds.add_parser("revoke", help="revoke the certificates of a device")
    _add_ca(revoke)
    for parser in (request, sign, revoke):
        parser.add_argument("--device", metavar="ID", required=True, help="the device's id")
    for parser in (server, sign):
        parser.add_argument(
            "--days", type=int, default=_DAYS, help=f"how long the certificate is valid ({_DAYS})"
        )
    keys.set_defaults(command=deploy.keys)


def _add_ca(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ca", metavar="CA_DIR", type=Path, required=True, help="the authority's folder")


def add_outbox(add_parser: _AddParser) -> None:
    """Add the command `outbox`."""
    outbox = add_parser(
        "outbox",
        help="print all that has left a device",
        description="Print every message that has left a device, with its tensors and measures.",
    )
    outbox.add_argument("--home", metavar="DIR", type=Path, required=True, help="the device's home")
    outbox.add_argument("--verify", action="store_true", help="check that no line was changed or left out")
    outbox.add_argument("--json", action="store_true", help="print the lines as JSON")
    outbox.set_defaults(command=deploy.outbox)


def add_flower(add_parser: _AddParser) -> None:
    """Add the command `flower`."""
    flower = add_parser(
        "flower",
        help="write a Flower app that runs a config",
        description="Write a Flower app that runs a config in Flower's simulation, and on SuperLink and "
        "SuperNodes.",
    )
    actions = flower.add_subparsers(title="actions", metavar="ACTION", dest="flower", required=True)
    new = actions.add_parser("new", help="write a new app")
    new.add_argument("folder", metavar="DIR", type=Path, help="the app's folder")
    new.add_argument("config", metavar="CONFIG.toml", type=Path, help="the config, which becomes part of it")
    new.add_argument(
        "arguments", nargs="*", metavar="section.key=value", help="values that override the config"
    )
    new.add_argument(
        "--devices", metavar="N", type=int, default=1, help="begin when so many devices have joined (1)"
    )
    flower.set_defaults(command=deploy.flower)
