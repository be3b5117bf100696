"""The transformer for speech recognition."""

import pytest
import torch

from partita import SpeechTransformer


def small() -> SpeechTransformer:
    return SpeechTransformer(features=6, outputs=9, dim=16, layers=2, heads=2, hidden=32)


@pytest.mark.parametrize("training", [True, False])
def test_padding_has_no_effect(training: bool) -> None:
    model = small().train(training)
    features = torch.randn(2, 40, 6)
    lengths = torch.tensor([40, 21])

    with torch.no_grad():
        scores, frames = model(features, lengths)
        alone, _ = model(features[1:, :21], torch.tensor([21]))
        features[1, 21:] = 100.0
        repadded, _ = model(features, lengths)

    # 21 frames, subsampled by 2 twice: 21 -> 11 -> 6.
    assert frames.tolist() == [10, 6]
    assert scores.shape == (2, 10, 9)
    assert torch.allclose(scores[1, :6], alone[0], atol=1e-5)
    assert torch.allclose(scores[1, :6], repadded[1, :6], atol=1e-6)


def test_scores_are_log_probabilities() -> None:
    scores, _ = small()(torch.randn(1, 12, 6), torch.tensor([12]))

    assert torch.allclose(scores.exp().sum(dim=-1), torch.ones(1, 3), atol=1e-5)


def test_scores_depend_on_the_position() -> None:
    model = small()
    features = torch.randn(1, 1, 6).expand(1, 40, 6)

    scores, _ = model(features, torch.tensor([40]))

    assert not torch.allclose(scores[0, 3], scores[0, 6], atol=1e-4)
