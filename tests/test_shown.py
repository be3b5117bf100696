"""Tests of text as it is shown."""

import random
from dataclasses import dataclass
from itertools import product

from partita.shown import shown, shown_id, shown_in, shown_lines

HIDDEN = ["\x00", "\x01", "\x07", "\x08", "\x1b", "\x7f", "\x9b", "\u202e", "\ufffe", "\uffff", "\ud800"]


def test_each_character_that_cannot_be_printed_is_escaped() -> None:
    assert [shown(character) for character in HIDDEN] == [
        *(r"\x00", r"\x01", r"\x07", r"\x08", r"\x1b", r"\x7f", r"\x9b", r"\u202e", r"\ufffe", r"\uffff"),
        r"\ud800",
    ]
    assert shown("\U0001fffe") == r"\U0001fffe"


def test_other_scripts_and_joined_characters_stay() -> None:
    for text in ("Büro 7", "写字", "نمک\u200cدر", "👩\u200d🔬", "a\\b", "été"):
        assert shown(text) == text
        assert shown_id(text) == text


def test_shown_again_is_the_same() -> None:
    drawn = random.Random(1)
    for _ in range(2000):
        text = "".join(chr(drawn.choice([drawn.randrange(0x110000), drawn.randrange(256)])) for _ in range(8))

        once = shown(text)

        assert shown(once) == once
        assert shown_lines(once) == once
        assert once.encode()  # No surrogate is left.


def test_different_ids_are_shown_differently() -> None:
    letters = "\x00", "\x07", "\\", "x", "u", "0", "7", "\ufffe", r"\x07", "fffe"
    ids = {"".join(each) for length in range(5) for each in product(letters, repeat=length)}

    assert len({shown_id(device) for device in ids}) == len(ids)


def test_all_texts_in_a_value_are_shown() -> None:
    @dataclass(frozen=True)
    class Cell:
        text: str
        size: int

    found = shown_in({"a\x01": [Cell("\x07", 1), ("b\x08", None)]})

    assert found == {r"a\x01": [Cell(r"\x07", 1), [r"b\x08", None]]}
