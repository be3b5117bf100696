"""Doctests of modules that need a package which `make test` does not install."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["partita/deploy/flower/*.py"]
