"""A transformer that writes down speech, trained with CTC.

End-to-End ASR: from Supervised to Semi-Supervised Learning with Modern Architectures
    G. Synnaeve, Q. Xu, J. Kahn, T. Likhomanenko, E. Grave, V. Pratap, A. Sriram, V. Liptchinsky,
    R. Collobert. 2019.
    https://arxiv.org/abs/1911.08460
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from partita.models.adapters import Adapters
from partita.models.transformer import SUBLAYERS, blocks


class SpeechTransformer(nn.Module):
    """Two convolutions that keep every fourth frame, then transformer blocks; as it is, the paper's.

    Places among frames are told by fixed sines and cosines.

    Args:
        features: numbers to a frame of sound.
        outputs: how many pieces of text there are, the blank included.
        dim: numbers to a frame inside.
        layers: how many blocks.
        heads: attention heads in a block.
        hidden: numbers to a frame inside a block's feed-forward part.
    """

    def __init__(
        self,
        *,
        features: int = 40,
        outputs: int = 5000,
        dim: int = 384,
        layers: int = 6,
        heads: int = 6,
        hidden: int = 1536,
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(entering, dim, kernel_size=5, stride=2, padding=2) for entering in (features, dim)
        )
        self.blocks = blocks(layers, dim, heads, hidden, attention_bias=True)
        self.head = nn.Linear(dim, outputs)

    @property
    def parts(self) -> Mapping[str, Sequence[str] | Adapters]:
        """The convolutions, the last block's second linear layer, adapters."""
        return {
            "input": ("convolutions.*",),
            "output": (f"blocks.{len(self.blocks) - 1}.linear2.*",),
            "adapter": Adapters(after=SUBLAYERS),
        }

    def forward(self, sound: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return log probabilities (utterance, frame, piece) and how many frames of each utterance count.

        Args:
            sound: frames (utterance, frame, feature), shorter utterances filled up at their ends.
            lengths: how many frames each utterance has; what is after them has no effect.
        """
        if not ((lengths >= 1) & (lengths <= sound.shape[1])).all():
            raise ValueError(
                f"Lengths must be from 1 to {sound.shape[1]}, the number of frames, got {lengths.tolist()}."
            )
        frames = sound.transpose(1, 2)
        frames = frames.masked_fill(_beyond(lengths, frames.shape[2])[:, None], 0.0)
        for convolution in self.convolutions:
            frames = torch.relu(convolution(frames))
            lengths = (lengths + 1) // 2
            frames = frames.masked_fill(_beyond(lengths, frames.shape[2])[:, None], 0.0)
        frames = frames.transpose(1, 2)
        frames = frames + _places(frames.shape[1], frames.shape[2]).to(frames)
        beyond = _beyond(lengths, frames.shape[1])
        for block in self.blocks:
            frames = block(frames, src_key_padding_mask=beyond)
        return self.head(frames).log_softmax(dim=-1), lengths


def _beyond(lengths: Tensor, most: int) -> Tensor:
    """Return which frames (utterance, frame) are after an utterance's end."""
    return torch.arange(most, device=lengths.device) >= lengths[:, None]


def _places(count: int, dim: int) -> Tensor:
    """Return sines and cosines (place, number) of wavelengths from 2 pi to 20,000 pi."""
    place = torch.arange(count).unsqueeze(1)
    rates = torch.exp(torch.arange(0, dim, 2) * (-math.log(10_000.0) / dim))
    waves = torch.stack([torch.sin(place * rates), torch.cos(place * rates)], dim=2)
    return waves.flatten(1)[:, :dim]
