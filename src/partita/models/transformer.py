"""A transformer that predicts the next word.

Attention Is All You Need
    A. Vaswani, N. Shazeer, N. Parmar, J. Uszkoreit, L. Jones, A. Gomez, L. Kaiser, I. Polosukhin.
    NeurIPS 2017.
    https://arxiv.org/abs/1706.03762
"""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from partita.models.adapters import Adapters


class NextWordTransformer(nn.Module):
    """Embedded words through causal post-norm blocks; as it is, the paper's for 10,000 words.

    The output layer's weights are those of the embedding; it has a bias of its own.

    Args:
        vocabulary: how many words there are, special ones included.
        length: the most words that can go in.
        dim: numbers to a word inside.
        layers: how many blocks.
        heads: attention heads in a block.
        hidden: numbers to a word inside a block's feed-forward part.
    """

    def __init__(
        self,
        *,
        vocabulary: int = 10_004,
        length: int = 20,
        dim: int = 256,
        layers: int = 4,
        heads: int = 4,
        hidden: int = 1024,
    ) -> None:
        super().__init__()
        self.length = length
        self.embedding = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(length, dim)
        self.blocks = blocks(layers, dim, heads, hidden, attention_bias=False)
        self.head = nn.Linear(dim, vocabulary)
        self.head.weight = self.embedding.weight
        for module in (self.embedding, self.positions):
            nn.init.normal_(module.weight, std=STD)
        nn.init.zeros_(self.head.bias)

    @property
    def parts(self) -> Mapping[str, Sequence[str] | Adapters]:
        """The first block, the last one, adapters with every LayerNorm: embeddings are too large."""
        return {
            "input": ("blocks.0.*",),
            "output": (f"blocks.{len(self.blocks) - 1}.*",),
            "adapter": Adapters(after=SUBLAYERS, together_with=("blocks.*.norm?.*",)),
        }

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores of every word to come after each place: (sequence, place) to (..., word)."""
        length = words.shape[1]
        if length > self.length:
            raise ValueError(f"A sequence must have at most {self.length} words, got {length}.")
        features = self.embedding(words) * math.sqrt(self.embedding.embedding_dim)
        features = features + self.positions.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=words.device)
        for block in self.blocks:
            features = block(features, src_mask=mask, is_causal=True)
        return self.head(features)


STD = 0.02
"""The standard deviation with which weights begin."""
SUBLAYERS = ("blocks.*.self_attn", "blocks.*.linear2")
"""The two modules of a block after which its adapters go."""


def blocks(layers: int, dim: int, heads: int, hidden: int, *, attention_bias: bool) -> nn.ModuleList:
    """Return post-norm transformer blocks with ReLU, their weights drawn with the deviation `STD`."""
    if layers < 1:
        raise ValueError(f"`layers` must be at least 1, got {layers}.")
    made = nn.ModuleList()
    for _ in range(layers):
        block = nn.TransformerEncoderLayer(dim, heads, hidden, dropout=0.0, batch_first=True)
        if not attention_bias:
            block.self_attn = nn.MultiheadAttention(dim, heads, bias=False, batch_first=True)
        for name, parameter in block.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        made.append(block)
    return made
