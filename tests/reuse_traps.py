"""Models and losses that make it hard to compute only once what does not move.

Each trap says whether reuse applies to it: whether the rows of the first layer, `stem`, are computed once in a
visit. In every trap the personal part is the `head`.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

ROWS: list[int] = []
"""The number of rows in each call of a `Counted` layer."""
Body = Callable[[Any, Tensor], Tensor]


class Counted(nn.Linear):
    """A linear layer that counts the rows it computes, without a trace in the module."""

    def forward(self, input: Tensor) -> Tensor:
        ROWS.append(len(input))
        return super().forward(input)


class Net(nn.Module):
    """The stem, a body between it and the head, and the head."""

    def __init__(self, body: Body = lambda _, features: torch.relu(features), **modules: Any) -> None:
        super().__init__()
        self.stem = Counted(6, 16)
        self.head = nn.Linear(16, 3)
        self.body = body
        for name, module in modules.items():
            setattr(self, name, module() if isinstance(module, type | partial) else module)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores."""
        return self.head(self.body(self, self.stem(inputs)))


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss of the model on a batch of inputs and labels."""
    return functional.cross_entropy(model(batch[0]), batch[1])


@dataclass(frozen=True)
class Trap:
    """A model and a loss."""

    model: Callable[[], nn.Module]
    applies: bool | None = True
    """None: for some batches."""
    loss: Callable[[nn.Module, Any], Tensor] = cross_entropy
    partition: dict[str, Any] = field(default_factory=lambda: {"personal": "head.*"})


TRAPS: dict[str, Trap] = {}


def body(name: str, *, applies: bool = True, **modules: Any) -> Callable[[Body], Body]:
    """Make a trap of a function between stem and head."""

    def add(function: Body) -> Body:
        TRAPS[name] = Trap(partial(Net, function, **modules), applies)
        return function

    return add


def loss(
    name: str, *, applies: bool | None = True, model: Callable[[], nn.Module] = Net
) -> Callable[[Any], Any]:
    """Make a trap of a loss."""

    def add(function: Any) -> Any:
        TRAPS[name] = Trap(model, applies, function)
        return function

    return add


# --- Bodies that keep rows apart -----------------------------------------------------------------------------

body("nothing between")(lambda net, x: x)
body("relu")(lambda net, x: torch.relu(x))
body("a chain of operations")(lambda net, x: (functional.gelu(x) * 2 + 1).tanh() / 3 - 0.5)
body("relu in place")(lambda net, x: functional.relu(x, inplace=True))
body("a module in place", act=partial(nn.ReLU, inplace=True))(lambda net, x: net.act(x))
body("method in place")(lambda net, x: x.relu_())
body("augmented assignment")(lambda net, x: _augmented(x))
body("inactive dropout", drop=partial(nn.Dropout, 0.0))(lambda net, x: net.drop(x))
body("functional dropout, off")(lambda net, x: functional.dropout(x, 0.5, training=False))
body("GroupNorm", norm=partial(nn.GroupNorm, 2, 16))(lambda net, x: net.norm(x))
body("LayerNorm", norm=partial(nn.LayerNorm, 16))(lambda net, x: net.norm(x))
body("functional LayerNorm")(lambda net, x: functional.layer_norm(x, (16,)))
body("a view and back")(lambda net, x: x.view(len(x), 4, 4).transpose(1, 2).flatten(1))
body("an own size")(lambda net, x: x.reshape(x.shape[0], -1))
body("columns swapped")(lambda net, x: torch.cat([x[:, 8:], x[:, :8]], dim=1))
body("a mean of parts")(lambda net, x: x.view(-1, 16, 1).mean(dim=2))
body("softmax over features")(lambda net, x: functional.softmax(x, dim=1))
body("a constant tensor")(lambda net, x: x + torch.arange(16.0))
body("a still parameter", scale=nn.Parameter(torch.linspace(0.5, 2, 16)))(lambda net, x: x * net.scale)
body("sorted, an operation without a rule")(lambda net, x: x.sort(dim=1).values)
body("einsum, an operation without a rule")(lambda net, x: torch.einsum("ij,j->ij", x, torch.arange(16.0)))
body("no gradients", inner=partial(nn.Linear, 16, 16))(lambda net, x: _without_gradients(net, x * 1))
body("a module twice", inner=partial(nn.Linear, 16, 16))(lambda net, x: net.inner(torch.relu(net.inner(x))))
body("a residual", inner=partial(nn.Linear, 16, 16))(lambda net, x: x + torch.relu(net.inner(x)))
body("a list of modules", inner=nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)]))(
    lambda net, x: net.inner[1](torch.relu(net.inner[0](x)))
)
body("an encoder layer", inner=partial(nn.TransformerEncoderLayer, 8, 2, 16, 0.0, batch_first=True))(
    lambda net, x: net.inner(x.view(-1, 2, 8)).flatten(1)
)
body("attention with its weights", inner=partial(nn.MultiheadAttention, 8, 2, batch_first=True))(
    lambda net, x: net.inner(x.view(-1, 2, 8), x.view(-1, 2, 8), x.view(-1, 2, 8))[0].flatten(1)
)
body("an LSTM", inner=partial(nn.LSTM, 8, 8, batch_first=True))(
    lambda net, x: net.inner(x.view(-1, 2, 8))[0].flatten(1)
)
body("a checkpoint", inner=partial(nn.Linear, 16, 16))(
    lambda net, x: checkpoint(net.inner, x, use_reentrant=False)
)
body("BatchNorm of a part that does not move", norm=partial(nn.BatchNorm1d, 16))(lambda net, x: net.norm(x))
body("a value that escapes between modules")(lambda net, x: x * 2 if float(x.detach().mean()) > 0 else x)
body("transposed rows")(lambda net, x: (x.t().contiguous() * 2).t())
body("a token of each row")(lambda net, x: torch.stack([x, x * 2], dim=1)[:, 0])
body("double")(lambda net, x: x.double().exp().float())
body(
    "a branch on a mode",
)(lambda net, x: x if net.training else x * 2)
body("in place on a view", applies=False)(lambda net, x: _in_place_on_view(x))
body("in place after use")(lambda net, x: _in_place_after_use(x))

# --- Bodies that mix rows, draw numbers or remember ----------------------------------------------------------

body("active dropout", drop=partial(nn.Dropout, 0.5))(lambda net, x: net.drop(x))
body("noise")(lambda net, x: x + torch.randn_like(x))
body("rows mixed")(lambda net, x: x - x.mean(dim=0))
body("statistics of the batch", norm=partial(nn.BatchNorm1d, 16, track_running_stats=False))(
    lambda net, x: net.norm(x)
)
body("a value for each place in the batch")(lambda net, x: x * torch.linspace(0, 1, len(x))[:, None])


def _augmented(features: Tensor) -> Tensor:
    features += 1
    features *= 2
    return features


def _without_gradients(net: Any, features: Tensor) -> Tensor:
    with torch.no_grad():
        return net.inner(features)


def _in_place_on_view(features: Tensor) -> Tensor:
    features[:, :4].mul_(2)
    return features


def _in_place_after_use(features: Tensor) -> Tensor:
    before = features * 3
    features.add_(1)
    return before + features


class _Stem(nn.Module):
    """A stem that does something besides."""

    def __init__(self, act: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = Counted(6, 16)
        self.register_buffer("calls", torch.zeros(()))
        self.act = act
        self.count = 0

    def forward(self, inputs: Tensor) -> Tensor:
        return self.act(self, self.layer(inputs))


def stem(name: str, act: Callable[[Any, Tensor], Tensor], *, applies: bool) -> None:
    """Make a trap of a module around the counted layer, which is inside it."""
    TRAPS[name] = Trap(partial(Net, stem=partial(_Stem, act)), applies)


def _counting(stem: Any, features: Tensor) -> Tensor:
    stem.calls += 1
    return features


def _counting_calls(stem: Any, features: Tensor) -> Tensor:
    stem.count += 1
    return features * stem.count


stem("a stem that counts in a buffer", _counting, applies=True)
stem("a stem that counts in an attribute", _counting_calls, applies=False)
stem("a stem that draws", lambda stem, x: x + torch.randn(16), applies=True)
stem("a stem that mixes rows", lambda stem, x: x - x.mean(0), applies=True)
stem("a stem that lets values escape", lambda stem, x: x * (2 if x.max() > 1 else 1), applies=True)
stem("a stem of some rows", lambda stem, x: torch.where(x > 0, x, x[x > 0].mean()), applies=True)


class _Named(nn.Module):
    """Returns a dict, and takes keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Counted(6, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, *, inputs: Tensor) -> dict[str, Tensor]:
        features = self.stem(input=inputs)
        return {"scores": self.head(features), "features": features}


@loss("a dict, with a penalty on features", model=_Named)
def _named(model: nn.Module, batch: Any) -> Tensor:
    found = model(inputs=batch[0])
    return functional.cross_entropy(found["scores"], batch[1]) + 0.1 * found["features"].square().mean()


def _doubled(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return output * 2


class _Hooked(Net):
    """A net whose stem has a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.stem.register_forward_hook(_doubled)


TRAPS["a hook"] = Trap(_Hooked, applies=False)


class _Tied(Net):
    """A net whose head has the weights of its stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.inner = Counted(6, 16)
        self.head = nn.Linear(16, 3)
        self.head.bias = self.stem.bias = nn.Parameter(torch.zeros(3))
        self.stem = nn.Linear(6, 3)
        self.stem.bias = self.head.bias

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.inner(inputs)) + self.stem(inputs)


TRAPS["tied parameters"] = Trap(_Tied, partition={"personal": ["head.*", "stem.bias"]})


class _Branches(Net):
    """A still branch beside one that moves, from one input."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.relu(self.stem(inputs))) + self.stem(inputs)[:, :3].detach()


TRAPS["a still branch beside the head"] = Trap(_Branches)


class _First(Net):
    """A head that comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.stem = nn.Linear(6, 6), Counted(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.stem(torch.relu(self.head(inputs)))


TRAPS["a personal part that comes first"] = Trap(_First, applies=False)


class _Remembering(Net):
    """Holds on to the features of the last batch, and uses them in the next."""

    def forward(self, inputs: Tensor) -> Tensor:
        features = torch.relu(self.stem(inputs))
        last = self.__dict__.get("last")
        self.__dict__["last"] = features.detach()
        return self.head(features if last is None or len(last) != len(features) else features + 0.1 * last)


@loss("features of the last batch", model=_Remembering, applies=False)
def _remembering(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, batch)


@loss("the model twice")
def _twice(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, batch) + 0.1 * model(batch[0]).square().mean()


@loss("submodules called directly")
def _direct(model: Any, batch: Any) -> Tensor:
    return functional.cross_entropy(model.head(torch.relu(model.stem(batch[0]))), batch[1])


@loss("noise on the inputs", applies=False)
def _noisy(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, (batch[0] + torch.randn_like(batch[0]), batch[1]))


@loss("clean and noisy inputs")
def _both(model: Any, batch: Any) -> Tensor:
    noisy = functional.linear(batch[0] + torch.randn_like(batch[0]), model.stem.weight)
    return cross_entropy(model, batch) + 0.1 * (model.head(noisy) - model(batch[0])).square().mean()


@loss("the batch changed in place before")
def _changed_before(model: nn.Module, batch: Any) -> Tensor:
    batch[0].mul_(2)
    return cross_entropy(model, batch)


@loss("the batch changed in place after", applies=False)
def _changed_after(model: Any, batch: Any) -> Tensor:
    features = model.stem(batch[0])
    if not model.stem.weight.requires_grad:  # Otherwise the backward pass would fail.
        batch[0].zero_()
    return functional.cross_entropy(model.head(torch.relu(features)), batch[1]) + batch[0].sum()


@loss("inputs that take a gradient", applies=False)
def _adversarial(model: nn.Module, batch: Any) -> Tensor:
    inputs = batch[0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cross_entropy(model, (inputs, batch[1])), inputs)
    return cross_entropy(model, (batch[0] + 0.1 * gradient.sign(), batch[1]))


@loss("features that take a gradient", applies=False)
def _saliency(model: Any, batch: Any) -> Tensor:
    features = model.stem(batch[0])
    features.requires_grad_()
    value = functional.cross_entropy(model.head(features), batch[1])
    (gradient,) = torch.autograd.grad(value, features, create_graph=True)
    return value + gradient.square().sum()


@loss("a copy of the model")
def _copied(model: Any, batch: Any) -> Tensor:
    teacher = copy.deepcopy(model)
    with torch.no_grad():
        teacher.stem.weight.mul_(2)
        target = functional.linear(batch[0], teacher.stem.weight).sum() + teacher(batch[0]).sum()
    return cross_entropy(model, batch) + 0 * target


@loss("parameters changed by the loss", applies=False)
def _moved(model: Any, batch: Any) -> Tensor:
    with torch.no_grad():
        model.stem.weight.mul_(0.99)
    return cross_entropy(model, batch)


@loss("functional_call with other parameters", applies=False)
def _functional(model: Any, batch: Any) -> Tensor:
    others = {"stem.weight": model.stem.weight * torch.rand(())}
    return functional.cross_entropy(torch.func.functional_call(model, others, batch[0]), batch[1])


@loss("the mode toggled", applies=None)
def _toggled(model: Any, batch: Any) -> Tensor:
    model.stem.training = not model.stem.training
    return cross_entropy(model, batch)


@loss("an attribute that changes", applies=False)
def _annealed(model: Any, batch: Any) -> Tensor:
    model.stem.step = torch.rand(1).item()
    return cross_entropy(model, batch)


@loss("a factor that changes between modules")
def _factor(model: Any, batch: Any) -> Tensor:
    features = model.stem(batch[0]) * torch.rand(1).item()
    return functional.cross_entropy(model.head(features), batch[1])


@loss("features kept outside")
def _hoarding(model: Any, batch: Any) -> Tensor:
    features = torch.relu(model.stem(batch[0]))
    HOARD.append(features.detach())
    return functional.cross_entropy(model.head(features), batch[1]) + 0 * HOARD[0].mean()


HOARD: list[Tensor] = []


@loss("features as numbers")
def _numbers(model: Any, batch: Any) -> Tensor:
    features = model.stem(batch[0])
    weight = float(features.detach().numpy().mean())
    return functional.cross_entropy(model.head(features), batch[1]) * (1 + abs(weight))


@loss("autocast")
def _autocast(model: Any, batch: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        features = model.stem(batch[0])
    return functional.cross_entropy(model.head(features.float()), batch[1])
