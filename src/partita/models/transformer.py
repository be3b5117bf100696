"""A transformer for next-word prediction.

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
    """Word embeddings and causal post-norm blocks; the defaults are the paper's, for 10,000 words.

    The output layer is tied to the embedding, with a bias of its own.

    Args:
        vocabulary_size: the number of words, special tokens included.
        max_length: the maximum number of input tokens.
        dim: the dimension of the model.
        layers: the number of blocks.
        heads: the number of attention heads per block.
        hidden: the dimension of a block's feed-forward layer.
    """

    def __init__(
        self,
        *,
        vocabulary_size: int = 10_004,
        max_length: int = 20,
        dim: int = 256,
        layers: int = 4,
        heads: int = 4,
        hidden: int = 1024,
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.embedding = nn.Embedding(vocabulary_size, dim)
        self.positions = nn.Embedding(max_length, dim)
        self.blocks = blocks(layers, dim, heads, hidden, attention_bias=False)
        self.head = nn.Linear(dim, vocabulary_size)
        self.head.weight = self.embedding.weight
        for module in (self.embedding, self.positions):
            nn.init.normal_(module.weight, std=STD)
        nn.init.zeros_(self.head.bias)

    @property
    def parts(self) -> Mapping[str, Sequence[str] | Adapters]:
        """The first block as `input`, the last block as `output`, and adapters together with every LayerNorm.

        The embeddings would be too large for a personal part.
        """
        return {
            "input": ("blocks.0.*",),
            "output": (f"blocks.{len(self.blocks) - 1}.*",),
            "adapter": Adapters(after=SUBLAYERS, together_with=("blocks.*.norm?.*",)),
        }

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next word: (sequence, position) to (sequence, position, word)."""
        length = tokens.shape[1]
        if length > self.max_length:
            raise ValueError(f"A sequence must have at most {self.max_length} tokens, got {length}.")
        features = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        features = features + self.positions.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        for block in self.blocks:
            features = block(features, src_mask=mask, is_causal=True)
        return self.head(features)


STD = 0.02
"""The standard deviation of the initial weights."""
SUBLAYERS = ("blocks.*.self_attn", "blocks.*.linear2")
"""The two modules of a block that are followed by an adapter."""


def blocks(layers: int, dim: int, heads: int, hidden: int, *, attention_bias: bool) -> nn.ModuleList:
    """Return post-norm transformer blocks with ReLU, with weights of standard deviation `STD`."""
    if layers < 1:
        raise ValueError(f"`layers` must be at least 1, got {layers}.")
    stack = nn.ModuleList()
    for _ in range(layers):
        block = nn.TransformerEncoderLayer(dim, heads, hidden, dropout=0.0, batch_first=True)
        if not attention_bias:
            block.self_attn = nn.MultiheadAttention(dim, heads, bias=False, batch_first=True)
        for name, parameter in block.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        stack.append(block)
    return stack
