"""The registry of methods; no other module names a method."""

import ast
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import partita
from partita.errors import ConfigError
from partita.methods import registry
from partita.server.registry import OPTIMIZERS

SOURCE = Path(partita.__file__).parent
METHODS_PAGE = Path(__file__).parents[2] / "docs/reference/methods.md"
ALLOWED = (
    "__init__.py",
    "server/optimizers.py",
    "server/registry.py",
    "testing/executors.py",
    "testing/tasks.py",
)
"""The public exports, the server optimizers, which have names of their own, and the laws of executors and tasks,
which are checked with one method."""


def test_every_built_in_method_has_a_title_and_a_citation() -> None:
    methods = registry.every()

    assert sorted(methods) == registry.names()
    assert len({method.title for method in methods.values()}) == len(methods)
    assert [name for name, method in methods.items() if method.citation is None] == ["local"]
    papers = [method.citation for method in methods.values() if method.citation]
    assert len({paper.key for paper in papers}) == len(set(papers))
    roles = (registry.DEFAULT, registry.REFERENCE, registry.BASELINE, registry.PARTIAL_BASELINE)
    assert set(roles) <= set(methods)


def test_the_methods_of_a_comparison_are_in_the_order_of_the_paper() -> None:
    methods = registry.every().items()

    assert [name for name, method in methods if method.always_compared] == ["local", "fedavg"]
    assert [name for name, method in methods if method.compared_by_default] == [
        *("finetune", "ditto", "pfedme", "ft_part", "fedalt", "fedsim"),
    ]
    assert [name for name, method in methods if method.in_partial_table] == ["ft_part", "fedalt", "fedsim"]


def test_names_are_listed_without_torch() -> None:
    script = (
        "import sys\nfrom partita.methods import registry\nfrom partita.server import registry as servers\n"
        "assert registry.DEFAULT in registry.names()\nassert 'torch' not in sys.modules\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_the_paper_of_every_server_optimizer_is_the_paper_of_a_method() -> None:
    assert {optimizer.cites for optimizer in OPTIMIZERS.values()} <= set(registry.citations())
    assert [OPTIMIZERS[name].cites for name in ("fedavg", "adam")] == ["mcmahan2017", "pillutla2022"]
    of_reddi = {name for name, optimizer in OPTIMIZERS.items() if optimizer.cites == "reddi2021"}
    assert of_reddi == {"fedadam", "fedadagrad", "fedyogi"}


def words_of(tree: ast.AST) -> Iterator[str]:
    """All names and strings of a module but docstrings and comments."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, str) and id(node) not in docstrings:
                yield value


# Two names are also the words for a stage and for a device's update: they cannot be told apart here.
METHOD_NAMES = set(registry.names()) - {"finetune", "local"}
TITLES = {registry.find(name).title for name in METHOD_NAMES}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_other_module_names_a_method(path: Path) -> None:
    if path.parent.name == "methods" or str(path.relative_to(SOURCE)) in ALLOWED:
        return
    names = re.compile("|".join(map(re.escape, METHOD_NAMES | TITLES)), re.IGNORECASE)

    found = [word for word in words_of(ast.parse(path.read_text())) if names.search(word)]

    assert not found


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[metadata.EntryPoint]]:
    """Entry points of other packages, as if they were installed."""
    points: list[metadata.EntryPoint] = []
    caches = (registry._entry_points, registry._load)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [p for p in points if p.group == group])
    for cached in caches:
        cached.cache_clear()
    yield points
    for cached in caches:
        cached.cache_clear()


def entry_point(name: str, value: str) -> metadata.EntryPoint:
    return metadata.EntryPoint(name, value, "partita.methods")


def test_another_package_can_add_a_method(added: list[metadata.EntryPoint]) -> None:
    added.append(entry_point("mine", "partita:LocalAlt"))

    assert "mine" in registry.names()
    assert registry.find("mine").update is partita.LocalAlt
    assert registry.find("mine").title == "mine"
    assert registry.path_of("mine") == "partita:LocalAlt"


def test_an_entry_point_that_does_not_load_is_left_out_with_a_warning(
    added: list[metadata.EntryPoint], caplog: pytest.LogCaptureFixture
) -> None:
    added.append(entry_point("broken", "no_such_module:METHOD"))

    with caplog.at_level(logging.WARNING):
        methods = registry.every()

    assert "broken" not in methods
    assert "fedalt" in methods
    assert "'no_such_module:METHOD' of the method `broken` does not load" in caplog.text
    with pytest.raises(ConfigError, match="of the method `broken` does not load: ModuleNotFoundError"):
        registry.find("broken")


@pytest.mark.parametrize(
    ("names", "words"),
    [(["fedalt"], "`fedalt` is built in"), (["mine", "mine"], "`mine` is registered twice")],
)
def test_a_name_that_is_taken_is_refused(
    added: list[metadata.EntryPoint], names: list[str], words: str
) -> None:
    added.extend(entry_point(name, "partita:LocalAlt") for name in names)

    with pytest.raises(ConfigError, match=words):
        registry.names()


def test_an_import_path_is_a_method_or_a_bare_update() -> None:
    assert registry.find("partita.methods.ditto:METHOD") is registry.find("ditto")
    bare = registry.find("partita:LocalSim")
    assert (bare.title, bare.update, bare.settings) == ("LocalSim", partita.LocalSim, {})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedatl", "Did you mean `fedalt`?"),
        ("no_such:Thing", "'no_such:Thing' does not import: ModuleNotFoundError"),
        ("partita:Nothing", "does not import: AttributeError"),
    ],
)
def test_an_unknown_name_is_a_one_line_error(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.find(name)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert registry.find_or_none(name) is None


def listed_in(text: str) -> dict[str, tuple[str, str]]:
    """Return the title and the paper of each name in a table."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): (row[1], row[-1]) for row in rows}


def test_the_reference_page_lists_every_server_optimizer_with_its_title_and_its_paper() -> None:
    _, servers = METHODS_PAGE.read_text().split("## Server optimizers")

    listed = listed_in(servers)

    assert list(listed) == list(OPTIMIZERS)
    for name, optimizer in OPTIMIZERS.items():
        title, paper = listed[name]
        assert title == optimizer.title
        assert f"https://arxiv.org/abs/{registry.citations()[optimizer.cites].arxiv})" in paper


def test_the_reference_page_lists_every_method_with_its_title_and_its_paper() -> None:
    methods, _ = METHODS_PAGE.read_text().split("## Server optimizers")

    listed = listed_in(methods)

    assert list(listed) == list(registry.every())
    for name, method in registry.every().items():
        title, paper = listed[name]
        assert title == method.title
        assert method.citation is None or f"https://arxiv.org/abs/{method.citation.arxiv})" in paper
