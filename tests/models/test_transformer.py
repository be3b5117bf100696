"""The transformer for next-word prediction."""

import math

import pytest
import torch

from partita import NextWordTransformer, Partition


def small() -> NextWordTransformer:
    return NextWordTransformer(vocabulary_size=30, max_length=6, dim=16, layers=2, heads=2, hidden=32)


def test_a_word_is_predicted_only_from_the_words_before_it() -> None:
    model = small()
    one = torch.tensor([[3, 4, 5, 6, 7, 8]])
    other = torch.tensor([[3, 4, 5, 9, 1, 2]])

    scores, others = model(one), model(other)

    assert scores.shape == (1, 6, 30)
    assert torch.allclose(scores[:, :3], others[:, :3], atol=1e-6)
    assert not torch.allclose(scores[:, 3:], others[:, 3:], atol=1e-3)


def test_scores_depend_on_the_position() -> None:
    scores = small()(torch.tensor([[3, 3, 3]]))

    assert not torch.allclose(scores[:, 0], scores[:, 1], atol=1e-4)


def test_the_output_layer_is_tied_to_the_embedding_with_a_bias_of_its_own() -> None:
    model = small()

    assert model.head.weight is model.embedding.weight
    assert "head.weight" not in Partition(model).names("shared")
    assert "head.bias" in Partition(model).names("shared")


def test_initial_weights_are_small_and_biases_zero() -> None:
    torch.manual_seed(0)
    model = NextWordTransformer()

    for weight in (
        model.embedding.weight,
        model.blocks[0].self_attn.in_proj_weight,
        model.blocks[3].linear2.weight,
    ):
        assert weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert all(not parameter.any() for name, parameter in model.named_parameters() if name.endswith("bias"))
    # Before training all words are about equally likely.
    loss = torch.nn.functional.cross_entropy(model(torch.arange(20)[None]).flatten(0, 1), torch.arange(1, 21))
    assert loss.item() == pytest.approx(math.log(10_004), rel=0.02)


def test_a_sequence_that_is_too_long_is_an_error() -> None:
    with pytest.raises(ValueError, match="A sequence must have at most 6 tokens, got 7."):
        small()(torch.zeros(1, 7, dtype=torch.long))
