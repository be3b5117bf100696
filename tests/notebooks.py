"""Execute notebooks, and store the outputs in them.

    python tests/notebooks.py examples/rooms.ipynb

Each notebook runs in a folder of its own. What changes from one execution to the next without telling a reader
anything, such as the version of Python and the ids of cells, is not stored.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


def executed(notebook: Path, folder: Path) -> Any:
    """Return a notebook with the outputs of an execution in a folder."""
    content = nbformat.read(notebook, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(content, timeout=600, resources=resources, record_timing=False).execute()
    content.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(content.cells):
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_removed(output)]
    return content


def _is_removed(output: Any) -> bool:
    """Return whether an output is the empty place of a progress bar."""
    return output.output_type == "display_data" and output.data.get("text/html") == ""


def texts_of(notebook: Any) -> list[str]:
    """Return the outputs of a notebook as text, one for each cell of code."""
    return ["\n".join(map(_text, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"]


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return output.text
    return output.data.get("text/plain", "")


def main(arguments: Sequence[str]) -> None:
    """Execute notebooks given by their paths and store their outputs."""
    for argument in arguments:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(Path(argument), Path(folder)), argument)


if __name__ == "__main__":
    main(sys.argv[1:])
