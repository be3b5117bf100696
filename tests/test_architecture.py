"""The pages that describe the source tree agree with the tree."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/partita"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
ARCHITECTURE = ROOT / "docs/explanation/architecture.md"


def section_of(page: Path, heading: str) -> str:
    """Return the text below a heading, up to the next heading."""
    _, _, rest = page.read_text().partition(f"\n## {heading}\n")
    return rest.partition("\n## ")[0]


def listed_modules() -> list[str]:
    """Return the packages and modules in CONTRIBUTING's map, in order."""
    table = section_of(CONTRIBUTING, "Where things are").split("\n\n")[1]
    cells = [line.split("|")[1] for line in table.splitlines()]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def import_layers() -> list[set[str]]:
    """Return the import layers of pyproject.toml, the lowest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    return [set(re.split(r" [|:] ", layer)) for layer in reversed(layers)]


def module_paths(page: Path) -> set[str]:
    """Return the module paths on a page, such as `data/table.py` or `device/`."""
    return set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", page.read_text()))


def test_the_map_lists_every_package_and_module_and_nothing_else() -> None:
    packages = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.name for path in PACKAGE.glob("*.py")}

    assert sorted(listed_modules()) == sorted(packages | modules)


def test_the_map_is_in_import_order() -> None:
    listed = [name.removesuffix("/").removesuffix(".py") for name in listed_modules()]
    assert listed.pop(0) == "__init__"

    for layer in import_layers():
        assert {listed.pop(0) for _ in layer} == layer
    assert not listed


@pytest.mark.parametrize("page", [CONTRIBUTING, ARCHITECTURE], ids=lambda page: page.stem)
def test_every_module_named_on_a_page_exists(page: Path) -> None:
    paths = module_paths(page)

    assert len(paths) > 20
    missing = [path for path in paths if not (PACKAGE / path).exists() and not (ROOT / path).exists()]
    assert not missing
