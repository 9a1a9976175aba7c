"""What a served embedding takes over from the module whose place it takes, and which modules cannot be served."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import parametrize

from phalanx.torch._served_table import Table

#: What changes a state on its way into and out of a module, which is another one where servers have the weight.
_STATE_HOOKS = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")

#: What ``register_forward_hook`` and its kind write to; handles keep these dictionaries, so that a hook can still be removed.
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)


def check_weight(path: str, module: torch.nn.Module) -> None:
    """Refuses a weight that is another tensor each time it is read."""
    if parametrize.is_parametrized(module):
        raise ValueError(f"{path}: its weight is computed by a parametrization, which servers do not know; remove it")


def check(path: str, module: Any) -> None:
    """Refuses what servers would leave out in silence."""
    own = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    if own not in (torch.nn.Embedding, torch.nn.EmbeddingBag) or "forward" in vars(module):
        raise ValueError(
            f"{path}: {type(module).__name__} has a forward() of its own, which a served embedding would not call: put "
            "an Embedding into a module that does the rest"
        )
    if module.weight._backward_hooks or getattr(module.weight, "_post_accumulate_grad_hooks", None):
        raise ValueError(
            f"{path}: its weight has hooks, which never run where rows are on servers: see scale_() of the tables, or use sparse=False"
        )
    if any(getattr(module, name, None) for name in _STATE_HOOKS):
        raise ValueError(
            f"{path}: it has hooks of state_dict() or load_state_dict(), which a served embedding would not call: give them to the "
            "module around it"
        )
    if module.max_norm is not None:
        raise ValueError(f"{path}: max_norm changes rows when they are looked up, which servers do not do; remove it")
    if module.scale_grad_by_freq:
        raise ValueError(f"{path}: scale_grad_by_freq is not served; remove it, or use sparse=False")
    if module.weight.device.type != "cpu":
        raise ValueError(f"{path}: its weight is on {module.weight.device}; serve the tables before the model is moved")
    if module.weight.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{path}: a table is of float32 or float64, not {module.weight.dtype}; see wire_dtype for the network"
        )


def take_over(served: torch.nn.Module, module: torch.nn.Module) -> None:
    """Hooks of the module run on in its place."""
    for name in _HOOKS:
        setattr(served, name, getattr(module, name))
    served.training = module.training


def let_freeze(model: torch.nn.Module, table_of: Callable[[torch.nn.Module], Table | None]) -> None:
    """Makes ``requires_grad_()`` of every module that contains tables reach them: they are not among its parameters."""
    for module in model.modules():
        tables = [table for table in map(table_of, module.modules()) if table is not None]
        if tables and table_of(module) is None:
            own = module.requires_grad_
            module.requires_grad_ = functools.partial(_requires_grad, module, own, tables)  # type: ignore[method-assign]


def _requires_grad(
    module: torch.nn.Module, own: Callable[..., Any], tables: list[Table], requires_grad: bool = True
) -> torch.nn.Module:
    for table in tables:
        table.freeze(not requires_grad)
    own(requires_grad)
    return module
