"""The method keeps the laws of Partita's methods, under the name of its entry point."""

from partita.testing import check_method


def test_momentum_keeps_the_laws() -> None:
    """Check them without worker processes, which take longer."""
    check_method("momentum", workers=1)
