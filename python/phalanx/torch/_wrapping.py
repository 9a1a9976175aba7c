"""What all wrapped optimizers share; wrapping gives an optimizer another class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

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
