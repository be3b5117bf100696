"""Selecting the tensors of a part: by glob patterns, module types, predicates, or as the rest."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from enum import Enum
from fnmatch import fnmatchcase
from typing import Literal, get_args

from torch import Tensor, nn

from partita.params import Params

Part = Literal["shared", "personal", "frozen"]
PARTS: tuple[Part, ...] = get_args(Part)

Selector = str | type[nn.Module] | Callable[[str, Tensor], bool]
"""A glob pattern of names, a module type, or a predicate of name and tensor."""


class Rest(Enum):
    """The tensors that no other part selects."""

    REST = "the rest"


REST = Rest.REST
Selection = Selector | Sequence[Selector] | Rest


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's tensors under all their names, in `state_dict` order."""
    state = model.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def assign(model: nn.Module, claims: Mapping[Part, Selection], added: Set[str]) -> dict[str, Part]:
    """Return the part of every name in the model's state; tensors `added` as personal stay personal."""
    state = tensors_of(model)
    rest: list[Part] = [part for part in PARTS if claims[part] is REST]
    if len(rest) > 1:
        raise ValueError(f"Only one part can be the rest, got {' and '.join(rest)}.")
    part_of: dict[str, Part] = {}
    for part, claim in claims.items():
        if isinstance(claim, Rest):
            continue
        for name in _selected(model, state, claim):
            if name in part_of and name in added:
                continue
            if name in part_of:
                raise ValueError(f"`{name}` is selected as {part_of[name]} and as {part}.")
            part_of[name] = part
    left = [name for name in state if name not in part_of]
    if left and not rest:
        raise ValueError(
            f"No part selects {', '.join(f'`{name}`' for name in left[:5])}: let one part be the rest."
        )
    for name in left:
        part_of[name] = rest[0]
    return part_of


def _selected(model: nn.Module, state: Params, claim: Selector | Sequence[Selector]) -> Iterator[str]:
    selectors = claim if isinstance(claim, Sequence) and not isinstance(claim, str) else [claim]
    seen: set[str] = set()
    for selector in selectors:
        names = _matches(model, state, selector)
        if not names:
            raise ValueError(_nothing_matches(model, state, selector))
        yield from (name for name in names if name not in seen)
        seen.update(names)


def _matches(model: nn.Module, state: Params, selector: Selector) -> list[str]:
    if isinstance(selector, str):
        return [name for name in state if fnmatchcase(name, selector)]
    if isinstance(selector, type):
        modules = model.named_modules(remove_duplicate=False)
        owners = [name for name, module in modules if isinstance(module, selector)]
        prefixes = tuple(f"{owner}." if owner else "" for owner in owners)
        return [name for name in state if name.startswith(prefixes)]
    return [name for name in state if selector(name, state[name])]


def _nothing_matches(model: nn.Module, state: Params, selector: Selector) -> str:
    if not isinstance(selector, str):
        return f"No tensor of {type(model).__name__} is selected by {selector!r}."
    modules = [f"{name}.*" for name, module in model.named_modules() if name]
    near = difflib.get_close_matches(selector, [*modules, *state], n=4, cutoff=0.4)
    return (
        f"No tensor of {type(model).__name__} matches {selector!r}. "
        f"Near names: {', '.join(near or list(state)[:4])}."
    )
