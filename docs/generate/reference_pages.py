"""Write the generated text of the reference pages, from docstrings and `--help`.

On a page, a generated text stands between `<!-- generated: NAME -->` and `<!-- end -->`. `make reference`
runs this file; a test checks that the pages are current.
"""

import re
from pathlib import Path

from reference_keys import WRITERS
from reference_names import names

FOLDER = Path(__file__).parents[1] / "reference"
_GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(page: str) -> str:
    """Return a page with every generated text written again."""
    writers = {**WRITERS, names.__name__: names}
    return _GENERATED.sub(lambda found: f"{found[1]}\n{writers[found[2]]()}\n\n{found[3]}", page)


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.md")):
        path.write_text(written(path.read_text()))
