"""Selecting the tensors of a part: by glob patterns, module types, predicates, or as the rest.

A parameter that the model itself holds fixed (`requires_grad=False`) and that no selection names is frozen.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, get_args

from torch import Tensor, nn

from partita.params import Params
from partita.partition.common import is_common
from partita.partition.tensors import tensors_of

Part = Literal["shared", "personal", "frozen"]
PARTS: tuple[Part, ...] = get_args(Part)

Selector = str | type[nn.Module] | Callable[[str, Tensor], bool]
"""A glob pattern of names, a module type, or a predicate of name and tensor."""


REST: Final = "rest"
"""As a whole selection, not in a list: the tensors that no other part selects."""
Selection = Selector | Sequence[Selector]


def select(model: nn.Module, claims: Mapping[Part, Selection], added: Set[str]) -> dict[str, Part]:
    """Return the part of every name that a selection names; tensors `added` as personal stay personal."""
    state = tensors_of(model)
    part_of: dict[str, Part] = {}
    for part, claim in claims.items():
        for name in [] if is_rest(claim) else _selected(model, state, claim):
            if name in part_of and name in added:
                continue
            if name in part_of:
                raise ValueError(f"`{name}` is selected as {part_of[name]} and as {part}.")
            part_of[name] = part
    return part_of


def assign(state: Params, claims: Mapping[Part, Selection], selected: Mapping[str, Part]) -> dict[str, Part]:
    """Return the part of every name of a state: as selected, frozen where it is fixed, otherwise the rest."""
    rest: list[Part] = [part for part in PARTS if is_rest(claims[part])]
    if len(rest) > 1:
        raise ValueError(f"Only one part can be the rest, got {' and '.join(rest)}.")
    left = [name for name, tensor in state.items() if name not in selected and not is_fixed(tensor)]
    if left and not rest:
        raise ValueError(
            f"No part selects {', '.join(f'`{name}`' for name in left[:5])}: let one part be the rest."
        )
    part_of: dict[str, Part] = dict.fromkeys(state, "frozen")
    for name in left:
        part_of[name] = rest[0]
    return {**part_of, **selected}


def exactly(names: Iterable[str]) -> Selection:
    """Return the selection of the tensors that have these names, and of no others."""
    chosen = frozenset(names)
    return (lambda name, _: name in chosen) if chosen else ()


def is_fixed(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter that takes no gradient, or any tensor of a pretrained base."""
    return is_common(tensor) or (isinstance(tensor, nn.Parameter) and not tensor.requires_grad)


@dataclass(frozen=True)
class FrozenBefore:
    """The frozen part as seen from the model before `prepare`, which is the model of pretraining."""

    always: frozenset[str]
    """Names in the model before `prepare` of the tensors that are frozen in every stage."""
    later: frozenset[str]
    """Names of the frozen tensors that only `prepare` has fixed: pretraining still trains them."""
    unknown: frozenset[str]
    """Names of the tensors selected as frozen that the model before `prepare` does not have."""


def frozen_before(
    before: Params, fixed: Set[str], after: Params, *, frozen: Set[str], selected: Set[str]
) -> FrozenBefore:
    """Return the frozen part as seen from the model before `prepare`.

    Args:
        before: the tensors before `prepare`.
        fixed: the names of those that took no gradient then.
        after: the tensors after `prepare`; one that only has another name is the same object.
        frozen: the names of the frozen tensors after `prepare`.
        selected: the names after `prepare` that a selection names, all where the rest is frozen.
    """
    by_id = {id(tensor): name for name, tensor in reversed(list(before.items()))}
    moved = {by_id[id(tensor)] for tensor in after.values() if id(tensor) in by_id}
    old_names = {name: by_id.get(id(tensor), name) for name, tensor in after.items()}
    known = {
        new: old
        for new, old in old_names.items()
        if id(after[new]) in by_id or (old in by_id.values() and old not in moved)
    }
    first = fixed & set(by_id.values())
    later = {name for name in frozen - selected if known.get(name) not in first}
    always = {known[name] for name in frozen - later if name in known} | (first - set(known.values()))
    return FrozenBefore(
        frozenset(name for name, tensor in before.items() if by_id[id(tensor)] in always),
        frozenset(later),
        frozenset(frozen - later - known.keys()),
    )


def is_rest(claim: Selection) -> bool:
    """Return whether a selection is the tensors that no other part selects."""
    return isinstance(claim, str) and claim == REST


def _selected(model: nn.Module, state: Params, claim: Selection) -> Iterator[str]:
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
