"""The paper's four tasks in shape only: as many devices, examples of the right size made of noise.

Enough for `partita describe`; there is nothing to learn in them.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import partita

Loss = Callable[..., Tensor]

CHARACTERS = 62
LANDMARKS = 2028
WORDS = 10_004
PAD = 0
FRAMES = 1200
"""Twelve seconds of sound, a usual length of an utterance."""


def characters() -> partita.Task:
    """Return EMNIST's shape: grey images of 28x28 by 1,114 writers."""
    images = torch.rand(1, 1, 28, 28), torch.randint(CHARACTERS, (1,))
    return _task(partita.ResNet, classify, 1114, images)


def landmarks() -> partita.Task:
    """Return GLDv2's shape: colour images of 224x224 by 823 photographers."""
    images = torch.rand(1, 3, 224, 224), torch.randint(LANDMARKS, (1,))
    return _task(partita.ResNet, classify, 823, images)


def next_words() -> partita.Task:
    """Return StackOverflow's shape: 20 words and the 20 that come after them, by 1,000 users."""
    words = torch.randint(1, WORDS, (1, 21))
    return _task(partita.NextWordTransformer, predict_words, 1000, (words[:, :-1], words[:, 1:]))


def speech() -> partita.Task:
    """Return LibriSpeech's shape: 40 features a frame and some 40 pieces of text, by 902 narrators."""
    fields = (
        torch.randn(1, FRAMES, 40),
        torch.tensor([FRAMES]),
        torch.randint(1, 5000, (1, 40)),
        torch.tensor([40]),
    )
    return _task(partita.SpeechTransformer, transcribe, 902, fields)


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross-entropy of images and labels."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def predict_words(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross-entropy of words and those after them, without padding."""
    words, following = batch
    return nn.functional.cross_entropy(model(words).flatten(0, 1), following.flatten(), ignore_index=PAD)


def transcribe(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """Return the CTC loss of sound and text, each with its lengths."""
    sound, lengths, text, text_lengths = batch
    scores, frames = model(sound, lengths)
    return nn.functional.ctc_loss(scores.transpose(0, 1), text, frames, text_lengths)


def _task(model: type[nn.Module], loss: Loss, count: int, example: tuple[Tensor, ...]) -> partita.Task:
    ids = (f"device-{number:04}" for number in range(count))
    devices = partita.Devices(ids, lambda _: {"train": example})
    return partita.Task(model=model, loss=loss, metrics={"accuracy": partita.accuracy}, devices=devices)
