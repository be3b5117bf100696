"""The operator's page and metrics: right numbers, on this machine alone, and no text of a device runs."""

import http.client
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from partita.deploy.hub import Hub
from partita.deploy.service import Service
from partita.deploy.status import StatusBoard
from partita.executors.desk import Desk

COMPUTES = {"task": "a" * 64}
HOSTILE = "<script>document.title='owned'</script>"


def line(**changes: Any) -> dict[str, Any]:
    return {
        "stage": "personalized",
        "work": "update",
        "round": 4,
        "rounds": 10,
        "loss": 0.25,
        "asked": ["ann", HOSTILE],
        "heard": ["ann"],
        "failed": {HOSTILE: "The loss became <b>nan</b>."},
        "bytes": {"down": 200, "up": 100},
        **changes,
    }


@pytest.fixture
def board() -> StatusBoard:
    """Return the board of a run with one round done, a refused device and a hostile one."""
    hub = Hub("f" * 32, COMPUTES, Desk())
    for device in ("ann", HOSTILE):
        hub.refusal(device, {"computes": COMPUTES})
    hub.refusal("eve", {"computes": {"task": "other"}})
    board = StatusBoard("pilot", hub)
    board.watch(line(), 5, 20)
    return board


def test_the_page_shows_stage_round_loss_devices_and_failures(board: StatusBoard) -> None:
    page = board.page()

    assert "Stage personalized: update, round 4 of 10, loss 0.25" in page
    assert "5 of 20 rounds are done." in page
    assert "2 joined, 2 connected, 1 have failed" in page
    assert "another `task` than the server" in page


def test_texts_of_devices_are_escaped(board: StatusBoard) -> None:
    page = board.page()

    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert "<b>nan</b>" not in page


def test_the_page_says_when_nothing_has_happened_and_when_all_is_over() -> None:
    hub = Hub("f" * 32, COMPUTES, Desk())
    board = StatusBoard("pilot", hub)
    assert "Waiting for devices" in board.page()

    hub.finish([])
    assert "The run is over." in board.page()


class Clock:
    """A clock that stands still until it is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_that_of_the_rounds_and_not_of_waiting_for_devices() -> None:
    clock = Clock()
    board = StatusBoard("pilot", Hub("f" * 32, COMPUTES, Desk()), clock)

    for done, now in ((5, 90_000.0), (6, 90_010.0), (7, 90_020.0)):
        clock.now = now
        board.watch(line(), done, 20)
    clock.now = 90_025.0

    # The rounds 6 and 7 took 10 seconds each, and 13 are left.
    assert "7 of 20 rounds are done, 0:02:10 left." in board.page()


def test_an_onboarding_is_a_state_of_its_own_and_no_counter_falls(board: StatusBoard) -> None:
    hub, counts = board._hub, list[float]()

    def watch(done: int, total: int, **changes: Any) -> None:
        board.watch(line(**changes), done, total)
        counts.append(metrics_of(board)["partita_rounds_done_total",])

    watch(20, 20)
    hub.finish(["ann"])
    assert metrics_of(board)["partita_finished",] == 1
    hub.onboarding = ("zoe",)
    assert "The run is over; late devices are onboarded, 1 now." in board.page()
    watch(1, 3, round=1, rounds=2)
    page, found = board.page(), metrics_of(board)
    watch(3, 3)
    hub.onboarding = ("yan", "xi")
    watch(1, 3)
    hub.onboarding = ()

    assert "late devices are onboarded, 1 now, stage personalized: update, round 1 of 2" in page
    assert "1 of 3 rounds are done." in page
    assert found["partita_finished",] == 0
    assert found["partita_devices_onboarding",] == 1
    assert counts == [20, 21, 23, 24]
    assert "The run is over." in board.page()
    assert "24 of 26 rounds are done." in board.page()


def metrics_of(board: StatusBoard) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(board.metrics().decode())
        for sample in family.samples
    }


def test_the_metrics_are_those_of_the_rounds(board: StatusBoard) -> None:
    board.watch(line(work="evaluate", loss=0.5, failed={}, heard=["ann", HOSTILE]), 6, 20)

    found = metrics_of(board)

    assert found["partita_devices_joined",] == 2
    assert found["partita_devices_refused",] == 1
    assert found["partita_rounds",] == 20
    assert found["partita_rounds_done_total",] == 6
    assert found["partita_replies_total",] == 3
    assert found["partita_failures_total",] == 1
    assert found["partita_bytes_up_total",] == 200
    assert found["partita_loss", "personalized", "evaluate"] == 0.5


@pytest.fixture
def port(board: StatusBoard) -> Iterator[int]:
    """Serve the status and return its port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    service = Service(Hub("f" * 32, COMPUTES, Desk()), "127.0.0.1", 0, None, None)
    service.status = board, port
    with service:
        yield port


def get(port: int, path: str, host: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": host})
    response = connection.getresponse()
    content = response.read().decode()
    connection.close()
    return response.status, content


def test_the_status_is_served_to_this_machine_under_its_own_name_alone(port: int) -> None:
    assert get(port, "/", f"127.0.0.1:{port}")[0] == 200
    assert get(port, "/metrics", f"localhost:{port}")[1].startswith("# HELP")
    assert get(port, "/", f"evil.example:{port}")[0] == 403


@pytest.mark.slow
def test_the_page_opens_in_a_browser_without_running_texts_of_devices(port: int) -> None:
    from browser import BROWSER, DRIVER, driver_of

    if not (BROWSER and DRIVER):
        pytest.skip("There is no Chromium here.")
    browser = driver_of()
    try:
        browser.get(f"http://127.0.0.1:{port}/")
        state = browser.find_element("id", "state").text
        rows = browser.find_elements("css selector", "tbody tr")
        title = browser.title
        log = browser.get_log("browser")
    finally:
        browser.quit()

    assert state == "Stage personalized: update, round 4 of 10, loss 0.25"
    assert len(rows) == 2 + 1 + 1
    assert title.startswith("pilot: Stage personalized")
    assert log == []
