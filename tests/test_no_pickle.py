"""No module of Partita reads a pickle: none from a file, none from a socket, none from another process."""

import ast
from pathlib import Path

import pytest

import partita

MODULES = sorted(Path(partita.__file__).parent.rglob("*.py"))
PICKLING_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
"""Modules that read objects from bytes, and run code for it."""
PICKLING_CALLS = {
    *("torch.load", "torch.save", "torch.jit.load", "numpy.load", "np.load", "numpy.save", "np.save"),
    *("pandas.read_pickle", "pd.read_pickle", "pa.deserialize", "pyarrow.deserialize"),
    *("multiprocessing.Queue", "multiprocessing.Pipe", "multiprocessing.Process", "multiprocessing.Pool"),
    *(
        "dist.broadcast_object_list",
        "dist.all_gather_object",
        "dist.gather_object",
        "dist.scatter_object_list",
    ),
}
"""Calls that pickle, unless they are told not to."""


def imports_in(tree: ast.AST) -> set[str]:
    """Return the top-level packages that a module imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def calls_in(tree: ast.AST) -> set[str]:
    """Return the dotted names that a module calls."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_module_pickles(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))

    assert not imports_in(tree) & PICKLING_MODULES
    assert not calls_in(tree) & PICKLING_CALLS
    assert not any(
        keyword.arg == "allow_pickle" for keyword in ast.walk(tree) if isinstance(keyword, ast.keyword)
    )


def test_the_check_finds_what_it_looks_for() -> None:
    tree = ast.parse("def f(file):\n    import pickle\n    return torch.load(file)")

    assert imports_in(tree) == {"pickle"}
    assert calls_in(tree) == {"torch.load"}
