"""Rows that are kept between visits."""

from pathlib import Path

import torch

from partita.reuse.kept import Kept
from partita.reuse.kept_rows import KeptRows


def test_rows_are_read_from_disk_to_where_the_visit_computes(tmp_path: Path) -> None:
    kept = Kept(size=5)
    kept.keep("features", torch.arange(5), torch.ones(5, 3), is_constant=True)
    kept.is_same("mask", None, torch.ones(3), is_constant=True)
    KeptRows(tmp_path).put("digest", "a", kept)

    found = KeptRows(tmp_path).take("digest", "a", 5, torch.device("meta"))

    assert found.at("features", torch.tensor([0, 4])).device.type == "meta"
    assert found.whole["mask"][0].device.type == "meta"
    unknown = found.unknown("features", torch.tensor([0, 4]))
    assert unknown is not None
    assert not len(unknown)
