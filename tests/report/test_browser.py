"""The page of a real run in a real browser: tooltips, sorting, search; no error and no request."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.ui import WebDriverWait

from browser import BROWSER, DRIVER, assert_quiet, at, driver_of
from compared import done, values
from partita.cli import main

SMALL = ("pretrain.rounds=5", "personalize.rounds=4", "finetune.epochs=1")
pytestmark = [
    pytest.mark.skipif(
        not (BROWSER and DRIVER), reason="needs Debian's packages chromium and chromium-driver"
    ),
    pytest.mark.usefixtures("reports"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from partita.report.write import write_report

    folder = tmp_path_factory.mktemp("browser") / "run"
    assert main(["run", *SMALL, f"out={folder}"]) == 0
    return write_report(folder)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a comparison of 18 models with two seeds."""
    from partita.report.write import write_report

    parts = {"partitions": ["output", "slope.*", "full"], "seeds": 2}
    methods = ("finetune", "ditto", "ft_part", "fedalt", "fedsim", "fedalt-stateless", "fedsim-stateless")
    folder = tmp_path_factory.mktemp("browser") / "grid"
    done(folder, values(*methods, compare=parts))
    return write_report(folder)


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    driver = driver_of()
    yield driver
    driver.quit()


@pytest.fixture
def browser(opened: Any, page: Path) -> Any:
    return at(opened, page)


def shown(browser: Any) -> list[str]:
    return [b.text for b in browser.find_elements(By.CSS_SELECTOR, "#devices tbody button")]


@pytest.mark.parametrize(
    ("width", "scheme"), [(1100, "light"), (1100, "dark"), (390, "light"), (390, "dark")]
)
def test_all_charts_are_drawn_without_an_error_or_a_request_and_fit(
    opened: Any, page: Path, width: int, scheme: str
) -> None:
    browser = at(opened, page, width=width, scheme=scheme)

    assert_quiet(browser, page)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".chart svg")) == 6
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert wider_than_the_page(browser, ".chart") == []


def wider_than_the_page(browser: Any, selector: str) -> list[str]:
    """The charts or tables that must be scrolled sideways."""
    return browser.execute_script(
        """return [...document.querySelectorAll(arguments[0])]
        .filter((place) => place.scrollWidth > place.clientWidth)
        .map((place) => place.id || place.getAttribute("aria-label"))""",
        selector,
    )


@pytest.mark.parametrize(
    ("width", "scheme", "selector"),
    [(1200, "light", ".chart, .scroll"), (1200, "dark", ".chart, .scroll"), (390, "light", ".chart")],
)
def test_a_comparison_of_many_models_is_not_cut_off(
    opened: Any, compared: Path, width: int, scheme: str, selector: str
) -> None:
    browser = at(opened, compared, width=width, scheme=scheme)

    assert_quiet(browser, compared)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert wider_than_the_page(browser, selector) == []


@pytest.mark.parametrize("width", [1200, 390])
def test_every_model_has_a_row_and_its_texts_are_large(opened: Any, compared: Path, width: int) -> None:
    browser = at(opened, compared, width=width)

    texts = browser.execute_script(
        "return [...document.querySelectorAll('#chart-forest svg text')].map((text) => text.textContent)"
    )
    assert {"FedAvg, continued", "Local only", "Finetune", "FedAlt (output)"} <= set(texts)
    smallest = browser.execute_script(
        """return Math.min(...[...document.querySelectorAll(".chart svg text")]
        .map((text) => parseFloat(getComputedStyle(text).fontSize)))"""
    )
    assert smallest >= 13


@pytest.mark.parametrize("width", [1200, 800, 390])
def test_no_text_of_the_charts_of_models_is_on_another_or_struck_through(
    opened: Any, compared: Path, width: int
) -> None:
    browser = at(opened, compared, width=width)

    for chart in ("forest", "bytes", "parameters"):
        assert (chart, browser.execute_script(OVERLAPS, f"#chart-{chart} svg")) == (chart, [])


OVERLAPS = """
const boxes = (kind) => [...document.querySelectorAll(`${arguments[0]} ${kind}`)]
  .map((one) => [one.textContent, one.getBoundingClientRect()]).filter(([, box]) => box.width || box.height);
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
const texts = boxes(".role-mark text"), ticks = boxes(".mark-rect.role-mark path");
const found = texts.flatMap(([one, a], place) => texts.slice(place + 1).filter(([, b]) => meet(a, b)).map(([b]) => [one, b]));
return [...found, ...texts.filter(([, a]) => ticks.some(([, b]) => meet(a, b))).map(([one]) => [one, "line"])];
"""


def test_texts_are_readable_in_light_and_dark_mode(opened: Any, page: Path) -> None:
    for scheme in ("light", "dark"):
        browser = at(opened, page, scheme=scheme)
        for selector in (".answer", "figcaption", ".note, caption", "nav a", "svg .role-axis-label text"):
            assert contrast(browser, selector) >= 4.5, (scheme, selector)


def contrast(browser: Any, selector: str) -> float:
    """The contrast ratio of a text to the page's background, as defined by WCAG."""
    texts = browser.execute_script(
        """const one = getComputedStyle(document.querySelector(arguments[0]));
        const svg = document.querySelector(arguments[0]) instanceof SVGElement;
        return [svg ? one.fill : one.color, getComputedStyle(document.body).backgroundColor];""",
        selector,
    )
    light, dark = sorted((luminance(text) for text in texts), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(text: str) -> float:
    parts = [int(part) / 255 for part in text[text.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_tooltip_of_a_point_names_its_device(browser: Any) -> None:
    point = browser.find_element(By.CSS_SELECTOR, "#chart-scatter svg .mark-symbol.role-mark path")
    ActionChains(browser).scroll_to_element(point).move_to_element(point).perform()

    tip = WebDriverWait(browser, 10).until(
        lambda b: b.find_element(By.CSS_SELECTOR, "#vg-tooltip-element.visible").text
    )

    assert "device" in tip
    assert any(device in tip for device in shown(browser))


def test_clicking_a_column_sorts_it_ascending_then_descending(browser: Any) -> None:
    heading = browser.find_element(
        By.XPATH, "//table[@id='devices']//th[button='change in accuracy, FedAlt']"
    )
    place = int(browser.execute_script("return arguments[0].cellIndex", heading))

    def column() -> list[float]:
        cells = browser.find_elements(By.CSS_SELECTOR, f"#devices tbody td:nth-child({place + 1})")
        return [float(cell.text) for cell in cells]

    orders = []
    for _ in range(2):
        heading.find_element(By.TAG_NAME, "button").click()
        orders.append((heading.get_attribute("aria-sort"), column()))

    (first, up), (second, down) = orders
    assert (first, second) == ("ascending", "descending")
    assert up == sorted(up)
    assert down == sorted(up, reverse=True)
    assert len(set(up)) > 1


def test_a_very_long_id_leaves_room_for_the_other_columns(browser: Any) -> None:
    button = browser.find_element(By.CSS_SELECTOR, "#devices tbody button")

    browser.execute_script("arguments[0].firstChild.data = 'x'.repeat(10000)", button)

    assert button.size["width"] < 400


def test_a_device_is_found_and_its_details_opened_by_keyboard(browser: Any) -> None:
    every = shown(browser)
    wanted = every[3]

    search = browser.find_element(By.ID, "search")
    search.send_keys(wanted)
    assert shown(browser) == [device for device in every if wanted in device]
    assert browser.find_element(By.ID, "found").text == f"{len(shown(browser))} of {len(every)} devices"

    button = browser.find_element(By.CSS_SELECTOR, "#devices tbody button")
    button.send_keys(Keys.ENTER)
    one = browser.find_element(By.ID, "details")
    assert one.find_element(By.TAG_NAME, "h3").text == wanted
    # Four models on the train and test splits.
    assert len(one.find_elements(By.CSS_SELECTOR, "tbody tr")) == 8
    assert browser.switch_to.active_element.text == wanted
    asked = [entry.text for entry in one.find_elements(By.TAG_NAME, "li")]
    assert any(re.fullmatch(r"fine-tuning: selected \d+ times?", text) for text in asked)

    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not one.is_displayed()
    assert browser.switch_to.active_element == button

    search.clear()
    search.send_keys("nobody")
    assert shown(browser) == []


def test_a_chart_has_an_alternative_text_that_does_not_hide_its_menu(browser: Any) -> None:
    images = browser.find_elements(By.CSS_SELECTOR, ".chart svg[role=img]")
    assert len(images) == 6
    assert all(len(image.get_attribute("aria-label")) > 20 for image in images)
    assert not browser.find_elements(By.CSS_SELECTOR, "[role=img] select")


def test_selecting_a_model_by_keyboard_fades_the_others(browser: Any) -> None:
    def faded() -> int:
        return len(
            browser.find_elements(By.CSS_SELECTOR, "#chart-scatter svg .role-mark path[opacity='0.04']")
        )

    choice = browser.find_element(By.CSS_SELECTOR, "#chart-scatter select")
    points = len(browser.find_elements(By.CSS_SELECTOR, "#chart-scatter svg .mark-symbol.role-mark path"))
    assert faded() == 0
    choice.send_keys(Keys.ARROW_DOWN)
    # Three models, of which one is selected.
    WebDriverWait(browser, 10).until(lambda _: faded() == points * 2 // 3)
    choice.send_keys(Keys.ARROW_UP)
    WebDriverWait(browser, 10).until(lambda _: faded() == 0)


def test_a_selection_is_kept_when_the_page_is_resized(browser: Any) -> None:
    def selected() -> Any:
        return browser.find_element(By.CSS_SELECTOR, "#chart-scatter select").get_property("selectedIndex")

    old = browser.find_element(By.CSS_SELECTOR, "#chart-scatter svg")
    browser.find_element(By.CSS_SELECTOR, "#chart-scatter select").send_keys(Keys.ARROW_DOWN)
    size = {"width": 800, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    WebDriverWait(browser, 20).until(staleness_of(old))
    WebDriverWait(
        browser, 20, ignored_exceptions=[StaleElementReferenceException, NoSuchElementException]
    ).until(lambda _: selected() == 1)
