"""The operations that a row of the benchmark of reuse is measured against."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from partita.models.resnet import ResNet
from reuse import EXAMPLES, necessary_flops

LAYER = 2 * EXAMPLES * 512 * 62
"""Multiplications and additions of the output layer: 512 features, 62 classes."""


def counted(*, backward: bool) -> int:
    """Return the operations of a pass over the examples, in which everything moves."""
    with torch.device("meta"):
        model, images = ResNet(depth=18), torch.empty(EXAMPLES, 1, 28, 28)
    with FlopCounterMode(display=False) as counter:
        scores = model(images)
        if backward:
            scores.sum().backward()
    return counter.get_total_flops()


def test_what_precedes_the_output_layer_is_counted_once() -> None:
    # A pass over the layer, and its gradient: no other gradient is needed.
    assert necessary_flops(1) == counted(backward=False) + LAYER
    assert necessary_flops(5) - necessary_flops(1) == 4 * 2 * LAYER


def test_a_pass_in_which_the_rest_moves_is_counted_whole() -> None:
    # All gradients but that of the output layer's weights.
    assert necessary_flops(10, shared_epochs=1) - necessary_flops(10) == counted(backward=True) - LAYER
