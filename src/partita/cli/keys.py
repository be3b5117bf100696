"""The command `keys`: keys and certificates of a deployment."""

import argparse
from pathlib import Path

from partita.cli.options import AddParser
from partita.deploy.extra import need_extra
from partita.shown import shown_lines

_DAYS = 365


def add(add_parser: AddParser) -> None:
    """Add the command `keys`."""
    parser = add_parser(
        "keys",
        help="make the keys and certificates of a deployment",
        description="Make the keys and certificates of a deployment. Private keys are made where they are "
        "used, and never travel.",
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", dest="keys", required=True)
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
    for each in (request, sign, revoke):
        each.add_argument("--device", metavar="ID", required=True, help="the device's id")
    for each in (server, sign):
        each.add_argument(
            "--days", type=int, default=_DAYS, help=f"how long the certificate is valid ({_DAYS})"
        )
    parser.set_defaults(command=keys)


def _add_ca(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ca", metavar="CA_DIR", type=Path, required=True, help="the authority's folder")


def keys(options: argparse.Namespace) -> int:
    """Make keys and certificates."""
    need_extra("`partita keys`")
    from partita.deploy import keys
    from partita.durable import replace_file

    match options.keys:
        case "ca":
            keys.make_ca(options.ca, options.authority)
            print(shown_lines(f"The authority is in {options.ca}: keep its `{keys.CA_KEY}` off the network"))
        case "server":
            keys.make_server(options.ca, options.home, options.hosts, days=options.days)
            print(shown_lines(f"The server's keys are in {options.home}"))
        case "request":
            request = keys.make_request(options.home, options.device)
            print(shown_lines(f"The request is {request}: have it signed with `partita keys sign`"))
        case "sign":
            replace_file(
                options.out, keys.sign_request(options.ca, options.request, options.device, days=options.days)
            )
            print(shown_lines(f"The certificate of device {options.device!r} is {options.out}"))
        case _:
            number = keys.revoke(options.ca, options.device)
            file = options.ca / keys.REVOKED
            print(shown_lines(f"{number} certificates are revoked: copy {file} to the server's home"))
    return 0
