"""Hooks that run when the gradient of a parameter has been computed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch


def on_gradient(p: torch.Tensor, call: Callable[[torch.Tensor], None]) -> Any:
    """Calls the function whenever a backward pass has added to ``p.grad``, also if ``p`` is unfrozen later."""
    is_frozen = not p.requires_grad
    # torch takes hooks only where a gradient is wanted, and keeps them when it no longer is.
    if is_frozen:
        p.requires_grad_(True)
    try:
        tensor: Any = p
        return tensor.register_post_accumulate_grad_hook(call)
    finally:
        if is_frozen:
            p.requires_grad_(False)


def can_have_gradient(p: torch.Tensor) -> bool:
    """Whether it may be trained, now or later: integers never are."""
    return p.is_leaf and (p.is_floating_point() or p.is_complex())


#: By the id of a parameter: itself, who is told of its gradients, and the hook.
_owners: dict[int, tuple[weakref.ref[torch.Tensor], str, Any]] = {}


def own_gradient(p: torch.Tensor, what: str, call: Callable[[torch.Tensor], None]) -> Any:
    """As :func:`on_gradient`, for one at a time: a model or optimizer that is wrapped again belongs to the new wrapper.

    Wrappers of different kinds are refused, because both would reduce the same gradient.
    """
    known = _owners.get(id(p))
    if known is not None and known[0]() is p:
        if known[1] != what:
            raise ValueError(
                f"a parameter of shape {list(p.shape)} already belongs to a {known[1]}: use that or {what}, not both"
            )
        known[2].remove()
    key = id(p)
    hook = on_gradient(p, call)
    _owners[key] = (weakref.ref(p, lambda _: _owners.pop(key, None)), what, hook)
    return hook
