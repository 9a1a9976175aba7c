"""What all wrapped optimizers share; wrapping gives an optimizer another class."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from phalanx import _phalanx
from phalanx.process_sets import ProcessSet

_T = TypeVar("_T")

#: Two copies would reduce the gradients of one model, or one optimizer those of two.
_NO_COPY = (
    "a distributed optimizer cannot be copied or pickled: save its state_dict(), or copy the optimizer before it is wrapped "
    "and wrap the copy"
)


class Uncopied(torch.optim.Optimizer):
    """An optimizer that cannot be copied or pickled."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError(_NO_COPY)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(_NO_COPY)


@contextmanager
def same_groups(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Loads into the existing groups and state, because schedulers and programs hold references to them."""
    groups, state = optimizer.param_groups, optimizer.state
    dicts = list(groups)
    yield
    if optimizer.param_groups is groups:
        return
    for held, loaded in zip(dicts, optimizer.param_groups, strict=True):
        held.clear()
        held.update(loaded)
    loaded_state = dict(optimizer.state)
    state.clear()
    state.update(loaded_state)
    groups[:] = dicts
    optimizer.param_groups, optimizer.state = groups, state


def weakly(owner: Any, call: Callable[[Any], list[_T]]) -> Callable[[], list[_T]]:
    """Calls with the owner as long as it lives, without keeping it alive."""
    reference = weakref.ref(owner)

    def ask() -> list[_T]:
        alive = reference()
        return [] if alive is None else call(alive)

    return ask


def warn_outsider(what: str, process_set: ProcessSet) -> None:
    """Says that this rank is not a member of the set: its gradients stay its own."""
    if not process_set.included():
        warnings.warn(
            f"rank {_phalanx.place()[0]} is not in the process set {list(process_set.ranks)} of this {what}: it trains alone. Make the "
            f"{what} only on ranks of the set if it should not train",
            stacklevel=4,
        )
