"""The transformers: what they may look at, and what must not matter."""

import math

import pytest
import torch

from partita import NextWordTransformer, Partition, SpeechTransformer


def words() -> NextWordTransformer:
    return NextWordTransformer(vocabulary=30, length=6, dim=16, layers=2, heads=2, hidden=32)


def speech() -> SpeechTransformer:
    return SpeechTransformer(features=6, outputs=9, dim=16, layers=2, heads=2, hidden=32)


def test_a_word_is_predicted_from_those_before_it_alone() -> None:
    model = words()
    one = torch.tensor([[3, 4, 5, 6, 7, 8]])
    other = torch.tensor([[3, 4, 5, 9, 1, 2]])

    scores, others = model(one), model(other)

    assert scores.shape == (1, 6, 30)
    assert torch.allclose(scores[:, :3], others[:, :3], atol=1e-6)
    assert not torch.allclose(scores[:, 3:], others[:, 3:], atol=1e-3)


def test_a_word_means_something_else_in_another_place() -> None:
    scores = words()(torch.tensor([[3, 3, 3]]))

    assert not torch.allclose(scores[:, 0], scores[:, 1], atol=1e-4)


def test_the_output_layer_is_the_embedding_with_a_bias_of_its_own() -> None:
    model = words()

    assert model.head.weight is model.embedding.weight
    assert "head.weight" not in Partition(model).names("shared")
    assert "head.bias" in Partition(model).names("shared")


def test_weights_begin_small_and_biases_at_zero() -> None:
    torch.manual_seed(0)
    model = NextWordTransformer()

    for weight in (
        model.embedding.weight,
        model.blocks[0].self_attn.in_proj_weight,
        model.blocks[3].linear2.weight,
    ):
        assert weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert all(not parameter.any() for name, parameter in model.named_parameters() if name.endswith("bias"))
    # Before training every word is nearly as likely as any other.
    loss = torch.nn.functional.cross_entropy(model(torch.arange(20)[None]).flatten(0, 1), torch.arange(1, 21))
    assert loss.item() == pytest.approx(math.log(10_004), rel=0.02)


def test_too_long_a_sequence_is_an_error() -> None:
    with pytest.raises(ValueError, match="A sequence must have at most 6 words, got 7."):
        words()(torch.zeros(1, 7, dtype=torch.long))


@pytest.mark.parametrize("training", [True, False])
def test_what_fills_up_a_short_utterance_does_not_matter(training: bool) -> None:
    model = speech().train(training)
    sound = torch.randn(2, 40, 6)
    lengths = torch.tensor([40, 21])

    with torch.no_grad():
        scores, frames = model(sound, lengths)
        alone, _ = model(sound[1:, :21], torch.tensor([21]))
        sound[1, 21:] = 100.0
        refilled, _ = model(sound, lengths)

    # 21 frames, every fourth one kept: 21 -> 11 -> 6.
    assert frames.tolist() == [10, 6]
    assert scores.shape == (2, 10, 9)
    assert torch.allclose(scores[1, :6], alone[0], atol=1e-5)
    assert torch.allclose(scores[1, :6], refilled[1, :6], atol=1e-6)


def test_scores_of_speech_are_log_probabilities() -> None:
    scores, _ = speech()(torch.randn(1, 12, 6), torch.tensor([12]))

    assert torch.allclose(scores.exp().sum(dim=-1), torch.ones(1, 3), atol=1e-5)


def test_a_frame_is_heard_in_its_place() -> None:
    model = speech()
    sound = torch.randn(1, 1, 6).expand(1, 40, 6)

    scores, _ = model(sound, torch.tensor([40]))

    assert not torch.allclose(scores[0, 3], scores[0, 6], atol=1e-4)
