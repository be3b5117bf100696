"""The fingerprint of a run: settings that differ, and settings that a later version has added."""

from dataclasses import field, make_dataclass

from partita.runs.fingerprint import text_of


def test_a_further_setting_at_its_default_leaves_the_fingerprint_as_it_was() -> None:
    known = ("rate", float)
    further = [("patience", int, field(default=0)), ("server", list, field(default_factory=lambda: [1]))]
    older, newer = (make_dataclass("Settings", [known, *more]) for more in ([], further))

    assert text_of(newer(0.1)) == text_of(older(0.1))
    assert text_of(older(0.1)).endswith("Settings(rate=0.1)")
    assert text_of(newer(0.1, patience=3)).endswith("Settings(rate=0.1, patience=3)")
    assert text_of(newer(0.1, server=[2])).endswith("Settings(rate=0.1, server=[2])")
