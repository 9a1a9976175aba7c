"""Being told when the gradient of a parameter is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def on_gradient(p: torch.Tensor, call: Callable[[torch.Tensor], None]) -> Any:
    """Calls whenever a backward pass has added to ``p.grad``. Keep what is returned as long as that is wanted."""
    tensor: Any = p
    if hasattr(p, "register_post_accumulate_grad_hook"):
        return tensor.register_post_accumulate_grad_hook(call)
    # Before torch 2.1: the node that adds to it, which lives as long as somebody keeps it.
    accumulator = tensor.expand_as(tensor).grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *_: call(p))
    return accumulator
