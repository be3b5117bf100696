"""The personal store: nothing counts before its round is committed."""

import gc
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from partita.device.store import DiskStore, MemoryStore, Store
from partita.protocol import key_of

ONE, TWO, THREE = ({"v": torch.tensor([float(n)])} for n in (1, 2, 3))


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return DiskStore(tmp_path) if request.param == "disk" else MemoryStore()


def kept(store: Store, device: str) -> float | None:
    personal = store.load(device)
    return None if personal is None else personal["v"].item()


def test_a_device_that_was_never_counted_has_nothing(store: Store) -> None:
    store.save("a", "personalized-0", ONE)

    assert kept(store, "a") is None


def test_only_counted_devices_keep_what_they_learnt(store: Store) -> None:
    store.save("a", "personalized-0", ONE)
    store.save("b", "personalized-0", ONE)
    store.commit("personalized-0", ["a"], ["a", "b"])

    assert (kept(store, "a"), kept(store, "b")) == (1.0, None)

    store.save("a", "personalized-1", TWO)
    store.save("b", "personalized-1", TWO)
    store.commit("personalized-1", ["b"], ["a", "b"])

    assert (kept(store, "a"), kept(store, "b")) == (1.0, 2.0)


def test_committing_again_does_no_harm(store: Store) -> None:
    store.save("a", "personalized-0", ONE)
    store.commit("personalized-0", ["a"], ["a", "b"])
    store.save("a", "personalized-1", TWO)

    store.commit("personalized-0", ["a"], ["a", "b"])

    assert kept(store, "a") == 1.0


def test_what_is_kept_does_not_change_with_what_was_saved(store: Store) -> None:
    mine = {"v": torch.tensor([1.0])}
    store.save("a", "r", mine)
    mine["v"].fill_(9)
    store.commit("r", ["a"], ["a", "b"])
    loaded = store.load("a")
    assert loaded is not None
    loaded["v"].fill_(8)

    assert kept(store, "a") == 1.0


def test_a_new_process_finishes_the_last_commit(tmp_path: Path) -> None:
    before = DiskStore(tmp_path)
    before.save("a", "personalized-4", ONE)
    before.save("b", "personalized-4", TWO)
    # Here the process is killed: the commit of round 4 is on disk, the renames are not.

    after = DiskStore(tmp_path)
    after.commit("personalized-4", ["a"], ["a", "b"])

    assert (kept(after, "a"), kept(after, "b")) == (1.0, None)
    assert not list(tmp_path.glob("*.next"))


def test_a_file_carries_its_devices_id(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.save("../Ann's phone", "r", ONE)
    store.commit("r", ["../Ann's phone"], ["../Ann's phone"])

    (path,) = tmp_path.iterdir()

    with safe_open(str(path), framework="pt") as file:
        (seal,) = file.metadata().values()
    found = json.loads(seal)
    assert (found["device"], found["round"].rstrip(), found["schema"]) == ("../Ann's phone", "r", 1)
    assert len(found["sha256"]) == 64


@pytest.mark.parametrize("device", ["../../etc/passwd", "", "a" * 500, "CON", "æ/ß\0\n", ".", "x.next"])
def test_any_id_gives_a_safe_file_name(device: str, tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.save(device, "r", ONE)
    store.commit("r", [device], [device])

    assert kept(store, device) == 1.0
    assert [path.parent for path in tmp_path.rglob("*")] == [tmp_path]


def test_ids_that_look_alike_have_different_keys() -> None:
    ids = ["a b", "a_b", "A_B", "a-b", "a/b", "a" * 41, "a" * 42]

    assert len({key_of(device).lower() for device in ids}) == len(ids)


def learn(store: Store, device: str, round: int, value: float, keep: str | None) -> None:
    """A visit in a round, counted; with `keep`, another round is the best so far."""
    if keep is not None:
        store.preserve(device, keep)
    store.save(device, f"personalized-{round}", {"v": torch.tensor([value])})
    store.commit(f"personalized-{round}", [device], [device])


def test_devices_go_back_to_what_they_had_after_the_best_round(store: Store) -> None:
    learn(store, "once", 0, 1.0, None)
    learn(store, "often", 0, 1.0, None)
    # The best round is now 1.
    learn(store, "often", 1, 2.0, "best-1")
    learn(store, "often", 2, 3.0, "best-1")
    learn(store, "late", 2, 3.0, "best-1")

    store.restore("best-1")

    assert [kept(store, device) for device in ("once", "often", "late")] == [1.0, 1.0, None]


def test_when_the_best_round_moves_on_earlier_copies_are_of_no_use(store: Store) -> None:
    learn(store, "a", 0, 1.0, None)
    learn(store, "a", 1, 2.0, "best-1")
    learn(store, "b", 1, 2.0, "best-1")
    # The best round is now 2: `b` is not visited again.
    learn(store, "a", 2, 3.0, "best-2")

    store.restore("best-2")
    store.restore("best-2")

    assert [kept(store, device) for device in "ab"] == [2.0, 2.0]


def test_going_back_leaves_one_file_for_each_device_that_keeps_something(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    learn(store, "a", 0, 1.0, None)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    learn(store, "a", 1, 2.0, "best-1")
    learn(store, "late", 1, 2.0, "best-1")
    assert len(list(tmp_path.iterdir())) == 4

    store.restore("best-1")

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_commit_of_a_round_in_which_nothing_was_saved_makes_no_file(tmp_path: Path) -> None:
    DiskStore(tmp_path / "personal").commit("r", ["a"], ["a", "b"])

    assert not list(tmp_path.iterdir())


def test_all_that_belongs_to_a_temporary_store_is_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = DiskStore.temporary()
    store.save("a", "r", ONE)
    store.commit("r", ["a"], ["a"])
    store.rows_folder.mkdir()

    assert kept(store, "a") == 1.0
    assert len(list(tmp_path.iterdir())) == 1
    del store
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_settling_keeps_the_counted_round_and_drops_rounds_that_were_lost(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "personal")
    for number, label in enumerate(("personalized-1", "personalized-2", "finetuned-0")):
        store.save("ann", label, {"v": torch.tensor([float(number)])})
    store.save("bob", "personalized-2", {"v": torch.tensor([7.0])})

    store.settle("ann", "personalized-2")

    kept = store.load("ann")
    assert kept is not None
    assert kept["v"].item() == 1.0
    assert [store.has_saved("ann", label) for label in ("personalized-1", "finetuned-0")] == [False, False]
    assert store.has_saved("bob", "personalized-2")
    store.save("ann", "finetuned-0", {"v": torch.tensor([9.0])})
    store.settle("ann", "personalized-2")  # The round was lost: what it had saved does not stand.
    assert store.load("ann") == {"v": torch.tensor([1.0])}


def test_settling_a_device_that_has_saved_nothing_does_nothing(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "personal")

    store.settle("ann", None)
    store.settle("ann", "personalized-2")

    assert store.load("ann") is None
