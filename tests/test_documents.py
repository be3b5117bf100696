"""How pages of documentation are executed: what must fail does."""

import re
import sys
from pathlib import Path

import pytest

from documents import blocks_of, check_config, execute, unprinted, why_not_run
from partita.errors import ConfigError


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty page, and a folder to execute it in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "page.md"


def write(page: Path, *blocks: str) -> Path:
    """Write blocks that begin with their language, and with `<!--` where they have marks."""
    texts = [re.sub(r"((?:<!--.*\n)*)", r"\1```", block, count=1) + "\n```\n" for block in blocks]
    page.write_text("\n".join(texts))
    return page


def test_blocks_of_a_page_share_names_and_a_folder(page: Path) -> None:
    write(
        page,
        "python\nnumber = 6",
        'python title="mine.py"\nnumber = 7',
        "python\nimport pathlib, mine\npathlib.Path('product').write_text(str(number * mine.number))",
        "sh\ntest $(cat product) = 42",
    )
    sys.path.insert(0, str(page.parent))

    execute(page)

    del sys.modules["mine"]


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ("python\n1 / 0", ZeroDivisionError),
        ("sh\npartita describe nowhere.toml", AssertionError),
        ("sh\npartita fly", AssertionError),
        ("sh\nfalse | true", Exception),
        ("toml\n[pretrain]\nturns = 3", ConfigError),
        ("bash\ntrue", ValueError),
        ("\ntrue", ValueError),
        ("text\n$ partita run", ValueError),
        ("<!-- slowly -->\npython\n1", ValueError),
    ],
)
def test_a_block_that_is_wrong_fails(block: str, error: type[Exception], page: Path) -> None:
    with pytest.raises(error):
        execute(write(page, block))


def test_a_mark_must_stand_before_a_block(page: Path) -> None:
    page.write_text("<!-- slow -->\nWords.\n")

    with pytest.raises(ValueError, match="slow must stand before a block"):
        blocks_of(page)


def test_a_block_inside_a_comment_is_executed(page: Path) -> None:
    page.write_text("<!-- what a reader has\n```python\n1 / 0\n```\n-->\n")

    with pytest.raises(ZeroDivisionError):
        execute(page)


def test_marks_say_what_is_not_executed_and_why(page: Path) -> None:
    write(
        page,
        "<!-- not run: it would fail -->\npython\n1 / 0",
        "<!-- slow -->\npython\n1 / 0",
        "<!-- executed by: tests/a.py -->\npython\n1 / 0",
        "sh\npartita run --help",
    )

    execute(page)

    reasons = ["it would fail", "it is slow", "it is executed by tests/a.py", ""]
    assert [why_not_run(block, slow=False) for block in blocks_of(page)] == reasons
    with pytest.raises(ZeroDivisionError):
        execute(page, slow=True)


def test_commands_are_made_short_where_they_take_a_config(page: Path) -> None:
    mark = "<!-- with: pretrain.rounds=0 personalize.rounds=no -->"
    write(page, f"{mark}\nsh\npartita config\npartita describe personalize.rounds=1   # as ever")

    with pytest.raises(AssertionError, match="personalize.rounds=1 pretrain.rounds=0 personalize.rounds=no"):
        execute(page)


@pytest.mark.parametrize("shown", ["accuracy 0.9\nloss 2", "accuracy  0.92", "loss 4", ""])
def test_what_is_shown_was_printed(shown: str, page: Path) -> None:
    write(page, "python\nprint('accuracy 0.91\\n────\\nloss 2')", f"<!-- output -->\ntext\n{shown}")

    execute(page)


@pytest.mark.parametrize(
    "shown", ["accuracy 0.8", "loss 2\naccuracy 0.91", "loss 20", "loss 2.0.1", "Accuracy 0.91"]
)
def test_what_is_shown_and_was_not_printed_fails(shown: str, page: Path) -> None:
    write(page, "python\nprint('accuracy 0.91\\n────\\nloss 2')", f"<!-- output -->\ntext\n{shown}")

    with pytest.raises(AssertionError, match="does not print"):
        execute(page)


def test_lines_may_be_left_out_of_what_is_shown() -> None:
    assert not unprinted("a\nc\n", "a\nb\nc\n")
    assert unprinted("a\nd\n", "a\nb\nc\n") == "d"


def test_a_config_is_checked_key_by_key() -> None:
    check_config(
        '[task]\nkind = "image"\ndata = "a.parquet"\nmin_train_examples = 3\n[model]\nname = "resnet"\ndepth = 10\n'
    )
    check_config("[task]\nvalidation = 0.2\n[compare.settings.ditto]\npartition.proximal = 0.1\n")

    for wrong in (
        '[task]\nkind = "image"\nleast = 3\n',
        "[task]\nmin_train_examples = 3\n",
        '[model]\nname = "resnet"\ndeep = 10\n',
        "[compare.settings.ditto]\npartition.pull = 0.1\n",
    ):
        with pytest.raises((ValueError, TypeError, ConfigError)):
            check_config(wrong)
    with pytest.raises(AssertionError, match="no method 'dito'"):
        check_config("[compare.settings.dito]\npartition.proximal = 0.1\n")
