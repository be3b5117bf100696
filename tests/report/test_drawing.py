"""Drawing charts where the machine does not allow it: one line, and no traceback."""

import resource
from pathlib import Path

import pytest
import vl_convert

from partita.errors import RunFailed
from partita.report import figures
from partita.report.charts.chart import Chart


class PanicException(BaseException):
    """Named as the exception that a panic in Rust becomes, and no `Exception` either."""


def draw(folder: Path) -> None:
    figures.write_figures([Chart(name="forest", title="", caption="", spec={}, data=())], {}, folder)


@pytest.mark.parametrize(
    "error", [PanicException("poisoned"), ValueError("Vega-Lite failed:\noneshot canceled\n\nStack:\n 0: x")]
)
def test_what_stops_the_drawing_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(vl_convert, "vegalite_to_svg", fail)

    with pytest.raises(RunFailed) as caught:
        draw(tmp_path)

    reasons = ("poisoned", "Vega-Lite failed: oneshot canceled")
    assert str(caught.value) in [
        f"The charts cannot be drawn: {reason}. All results are safe." for reason in reasons
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_interrupts_and_errors_of_the_system_stay_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(vl_convert, "vegalite_to_svg", fail)

    with pytest.raises(type(error)):
        draw(tmp_path)


def test_too_few_file_descriptors_are_an_error_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (12, 12))

    with pytest.raises(
        RunFailed, match=r"Charts need 32 file descriptors, .* may open 12.* `ulimit -n 1024`"
    ):
        draw(tmp_path)


def test_a_soft_limit_of_file_descriptors_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (12, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    monkeypatch.setattr(figures, "NAMES", frozenset())

    figures.write_figures([], {}, tmp_path)

    ((soft, hard),) = given
    assert 32 <= soft <= hard == 4096
