"""Progress of runs and comparisons in Python: where it is shown, and where not."""

from pathlib import Path
from typing import Any

import pytest

import partita
from api.test_comparison import compared
from partita import FedAlt, Partition
from partita.progress.notebook import NotebookBar
from small import affine_task


def trained(**arguments: Any) -> partita.Result:
    task = affine_task()
    return partita.run(task, Partition(task.model(), personal="offset"), FedAlt(), rounds=2, **arguments)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Everything that the output of a notebook's cell has shown."""
    shown: list[str] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("partita.progress.notebook._cell_output", lambda: shown.append)
    return shown


def test_without_a_terminal_nothing_is_shown_unless_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained()
    compared(tmp_path / "quiet")
    assert capsys.readouterr() == ("", "")

    lines: list[int] = []
    trained(progress=True, watch=lambda line, done, total: lines.append(done))
    compared(tmp_path / "mine", progress=True)

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "1/4 " in captured.err
    assert "4/4 evaluating the personalized model" in captured.err
    assert "fedalt-output-1, 100 %" in captured.err
    assert lines == [1, 2, 3, 4]


def test_in_a_notebook_a_bar_is_shown_by_default_and_removed(cell: list[str]) -> None:
    trained()

    assert cell[0].startswith('<div><progress value="1.00" max="4"></progress> 1/4 ')
    assert 'value="4.00" max="4"' in cell[-2]
    assert cell[-1] == ""


@pytest.mark.parametrize("arguments", [{"progress": False}, {"watch": lambda line, done, total: None}])
def test_in_a_notebook_there_is_no_bar_if_it_is_not_wanted_or_another_watches(
    cell: list[str], arguments: dict[str, Any]
) -> None:
    trained(**arguments)

    assert cell == []


def test_a_notebook_is_drawn_a_few_times_a_second_and_at_the_end() -> None:
    shown: list[str] = []
    moments = iter([0.0, 0.1, 0.3, 0.35])
    bar = NotebookBar(shown.append, clock=lambda: next(moments))

    for done in (1, 2, 3, 4):
        bar.update(done, 4, f"{done}/4", "<loss>")

    assert [text.partition("</progress> ")[2] for text in shown] == [
        f"{done}/4<br>&lt;loss&gt;</div>" for done in (1, 3, 4)
    ]
