"""SGD equals that of torch, bit for bit."""

import pytest
import torch
from torch import nn

from partita.methods.sgd import SGD


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_the_steps_are_those_of_torch(momentum: float, weight_decay: float) -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    theirs = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    theirs.load_state_dict(ours.state_dict())
    settings = {"momentum": momentum, "weight_decay": weight_decay}
    optimizers = [
        kind(
            [
                {"params": list(model[0].parameters()), "lr": 0.3},
                {"params": list(model[2].parameters()), "lr": 0.1},
            ],
            **settings,
        )
        for kind, model in ((SGD, ours), (torch.optim.SGD, theirs))
    ]
    data = torch.randn(5, 16, 4)

    for batch in data:
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()

    for mine, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, reference)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="`momentum` must be"):
        SGD([], momentum=-0.1)
    with pytest.raises(ValueError, match="`weight_decay` must be"):
        SGD([], weight_decay=float("nan"))
