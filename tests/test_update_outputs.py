"""`make numbers` rewrites the outputs that a page shows, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from documents import execute, reader_folder
from update_outputs import main, updated

PAGE = """# A page

```python
print("accuracy 0.9731\\n\\n──────\\nloss 1,234\\nnot shown 5")
```

<!-- output -->
```text
{first}
```

About 90 %.

<!-- slow -->
```sh
echo version 7
```

<!-- output -->
```text
{second}
```

<!-- not run: it needs a server -->
```sh
partita --version
```

<!-- output -->
```text
kept 3
```
"""
OLD = PAGE.format(first="accuracy 0.5\n\n──────\nloss 9", second="version 6")
NEW = PAGE.format(first="accuracy 0.9731\n\n──────\nloss 1,234", second="version 7")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Path]:
    """A page whose outputs are out of date, and a folder to execute it in."""
    path = tmp_path / "page.md"
    path.write_text(OLD)
    with reader_folder(tmp_path):
        yield path


def test_outputs_of_a_page_are_measured_again(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="does not print"):
        execute(page)

    main([str(page)])

    assert page.read_text() == NEW
    assert capsys.readouterr().out == "page.md: line 8, line 23\n"
    execute(page)


def test_outputs_that_are_up_to_date_stay_as_they_are(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page.write_text(NEW)

    main([str(page)])

    assert page.read_text() == NEW
    assert capsys.readouterr().out == "page.md: no change\n"


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a 1\nc 2\n", "a 3\nb 4\nc 5\n", "a 3\nc 5\n"),  # a line that the page leaves out stays out
        (
            "a 1\nb 2\n",
            "\n a  3 \n\n───\n b 4\n\nend\n",
            " a  3\n\n───\n b 4\n",
        ),  # rules and blank lines between
        ("a 1\n\nc 2\n", "a 3\n\nb 4\n\nc 5\n", "a 3\nc 5\n"),  # but not those around what is left out
        ("a 1\nb 2\n", "\nb 3\na 4\n", "b 3\na 4\n"),  # another order is another output
        ("old 1\nb 2\n", "new 3\nb 4\nc 5\n", "new 3\nb 4\nc 5\n"),  # a shown line is gone: the whole output
    ],
)
def test_an_output_keeps_its_selection_of_lines(shown: str, printed: str, expected: str) -> None:
    assert updated(shown, printed) == expected
