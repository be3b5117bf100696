"""Tokenizers: characters and subwords."""

import pytest

pytest.importorskip("sentencepiece", reason="the extra `speech` is not installed")

from partita.errors import ConfigError
from partita.tasks.tokenizer import characters, train_subwords


def test_decoding_reverses_encoding() -> None:
    texts = ["one two three", "three two", "one one two"] * 20

    for tokenizer in (characters(texts), train_subwords(texts, 20)):
        assert tokenizer.decode(tokenizer.encode("two one")) == "two one"
        assert min(tokenizer.encode("two one")) >= 1
        assert max(tokenizer.encode("three one")) <= len(tokenizer)
    assert len(train_subwords(texts, 20)) == 20
    assert characters(["ab"]).encode("abc") == [1, 2]
    with pytest.raises(ConfigError, match="`tokens` = 5000 cannot be learned from 60 texts"):
        train_subwords(texts, 5000)
