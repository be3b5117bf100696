"""Devices by id and by position, loaded on access."""

import pyarrow as pa
import pytest

from partita import Devices
from partita.data.arrow import Ids
from partita.data.devices import devices_of
from small import affine_task


@pytest.mark.slow
def test_a_million_devices_cost_less_than_twenty_megabytes_until_visited() -> None:
    loaded: list[str] = []

    def load(device: str) -> dict:
        loaded.append(device)
        return {"train": [0]}

    before = pa.total_allocated_bytes()
    devices = Devices((f"device-{number:07}" for number in range(1_000_000)), load)
    task = affine_task(devices=devices)

    assert pa.total_allocated_bytes() - before < 20e6
    assert len(task.devices) == 1_000_000
    assert task.devices.ids[765_432] == "device-0765432"
    assert loaded == []
    assert task.devices["device-0000003"] == {"train": [0]}
    assert loaded == ["device-0000003"]


def test_a_dict_is_converted() -> None:
    devices = devices_of({"b": {"train": [1]}, "a": {"train": [2]}})

    assert list(devices) == ["b", "a"]
    assert devices.ids[1:] == ["a"]
    assert "a" in devices
    assert "c" not in devices
    assert 3 not in devices


@pytest.mark.parametrize("ids", [["a", "b", "a"], ["x"] * 3])
def test_ids_must_be_unique(ids: list[str]) -> None:
    with pytest.raises(ValueError, match=f"unique, got {ids[0]!r} more than once"):
        Ids(ids)


@pytest.mark.parametrize("ids", [[1, 2], ["a", None]])
def test_ids_must_be_strings(ids: list) -> None:
    with pytest.raises(TypeError, match="must be strings"):
        Ids(ids)


def test_an_id_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be text in UTF-8, got 'a\\ud800'"):
        Devices(["a\ud800"], load=lambda device: {})
