"""The packages that a deployment needs."""

from partita.errors import needed


def need_extra(by: str) -> None:
    """Raise a `ConfigError` if a package of the extra `deploy` is missing.

    Args:
        by: what needs it, for the message.
    """
    for module in ("aiohttp", "cryptography", "prometheus_client"):
        needed(module, by=by, extra="deploy")
