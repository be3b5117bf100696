"""A transformer for speech recognition with CTC.

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
    """Two convolutions that subsample frames by 4, then transformer blocks; the defaults are the paper's.

    Positions are encoded by fixed sines and cosines.

    Args:
        features: the number of features per frame of audio.
        outputs: the number of tokens, the blank included.
        dim: the dimension of the model.
        layers: the number of blocks.
        heads: the number of attention heads per block.
        hidden: the dimension of a block's feed-forward layer.
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
        """The convolutions, the last block's second linear layer, the output layer, adapters."""
        return {
            "input": ("convolutions.*",),
            "output": (f"blocks.{len(self.blocks) - 1}.linear2.*",),
            "head": ("head.*",),
            "adapter": Adapters(after=SUBLAYERS),
        }

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return log probabilities (utterance, frame, token), and the number of frames of each utterance.

        Args:
            features: the features (utterance, frame, feature), shorter utterances padded at their ends.
            lengths: the number of frames of each utterance; padding has no effect.
        """
        if not torch.compiler.is_exporting() and not ((lengths >= 1) & (lengths <= features.shape[1])).all():
            raise ValueError(
                f"`lengths` must be from 1 to {features.shape[1]} frames, got {lengths.tolist()}."
            )
        frames = features.transpose(1, 2)
        frames = frames.masked_fill(_padding(lengths, frames.shape[2])[:, None], 0.0)
        for convolution in self.convolutions:
            frames = torch.relu(convolution(frames))
            lengths = (lengths + 1) // 2
            frames = frames.masked_fill(_padding(lengths, frames.shape[2])[:, None], 0.0)
        frames = frames.transpose(1, 2)
        frames = frames + _positions(frames.shape[1], frames.shape[2], frames.device).to(frames)
        padding = _padding(lengths, frames.shape[1])
        for block in self.blocks:
            frames = block(frames, src_key_padding_mask=padding)
        scores = self.head(frames)
        if scores.dtype == torch.bfloat16:
            # The loss adds up the log probabilities of all frames: too many for three digits each.
            scores = scores.float()
        return scores.log_softmax(dim=-1), lengths


def _padding(lengths: Tensor, frames: int) -> Tensor:
    """Return a mask (utterance, frame) of the frames after each utterance's end."""
    return torch.arange(frames, device=lengths.device) >= lengths[:, None]


def _positions(count: int, dim: int, device: torch.device) -> Tensor:
    """Return sines and cosines (position, dimension) of wavelengths from 2 pi to 20,000 pi."""
    position = torch.arange(count, device=device).unsqueeze(1)
    rates = torch.exp(torch.arange(0, dim, 2, device=device) * (-math.log(10_000.0) / dim))
    waves = torch.stack([torch.sin(position * rates), torch.cos(position * rates)], dim=2)
    return waves.flatten(1)[:, :dim]
