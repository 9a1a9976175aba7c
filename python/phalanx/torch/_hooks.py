"""Being told when the gradient of a parameter is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def on_gradient(p: torch.Tensor, call: Callable[[torch.Tensor], None]) -> Any:
    """Calls whenever a backward pass has added to ``p.grad``, also if ``p`` is frozen now and not later."""
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
