"""Makes ranks equal: broadcasts parameters, optimizer state and objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from phalanx import _phalanx
from phalanx._accord import Accord
from phalanx._arguments import checked_root
from phalanx.exceptions import PhalanxError
from phalanx.objects import allgather_object, broadcast_object
from phalanx.process_sets import ProcessSet, global_process_set
from phalanx.torch._handles import synchronize
from phalanx.torch.collectives import broadcast_async_


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the tensors of ``root_rank``, in place: a ``state_dict()``, ``named_parameters()``, or a list.

    >>> import torch
    >>> import phalanx.torch as hvd
    >>> hvd.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    named: list[tuple[str | None, Any]]
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, (list, tuple, Iterator)):
        named = [p if isinstance(p, tuple) else (None, p) for p in params]
    else:
        raise ValueError(
            f"broadcast_parameters takes a state_dict(), named_parameters() or a list of tensors, not a {type(params).__name__}"
        )
    tensors = _only_tensors(named)
    checked_root(root_rank, process_set)
    if len(process_set.ranks) > 1:
        lines = [described(name or i, t) for i, (name, t) in enumerate(tensors)]
        Accord("broadcast_parameters", lambda: lines, process_set).wait()
    broadcast_tensors(tensors, root_rank, process_set)


def _only_tensors(named: Sequence[tuple[str | None, Any]]) -> list[tuple[str | None, torch.Tensor]]:
    for i, (name, value) in enumerate(named):
        if value is not None and not isinstance(value, torch.Tensor):
            raise ValueError(
                f"broadcast_parameters changes tensors in place, but entry {name or i} is a {type(value).__name__}: leave it "
                "out, and send it with broadcast_object()"
            )
    return [(name, value) for name, value in named if value is not None]


def described(name: object, tensor: torch.Tensor) -> str:
    """A tensor as text, which ranks compare."""
    return f"{name} {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def broadcast_tensors(
    named: Sequence[tuple[str | None, torch.Tensor]], root_rank: int, process_set: ProcessSet
) -> None:
    """Gives every rank the tensors of one rank, in place; they have the same names on all ranks."""
    under_way = []
    for name, tensor in named:
        contiguous = tensor.detach().contiguous()
        handle = broadcast_async_(contiguous, root_rank, name, process_set)
        under_way.append((handle, contiguous, tensor))
    failure: PhalanxError | None = None
    for handle, contiguous, tensor in under_way:
        try:
            synchronize(handle)
        except PhalanxError as why:
            # All are waited for, so that their names are free again.
            failure = failure or why
            continue
        if contiguous.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(contiguous)
    if failure is not None:
        raise failure


@dataclass
class _Hole:
    """A placeholder for a tensor of the state."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the state and the options of ``root_rank``'s optimizer. ``model`` is not needed.

    >>> import torch
    >>> import phalanx.torch as hvd
    >>> hvd.init()
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1, momentum=0.9)
    >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "the state of LBFGS belongs to one line search and is not broadcast: broadcast the parameters before the first step"
        )
    if model is not None and not isinstance(model, torch.nn.Module):
        raise ValueError(f"model must be the model of the optimizer, or left out, not a {type(model).__name__}")
    is_root = _phalanx.place()[0] == checked_root(root_rank, process_set)
    if len(process_set.ranks) > 1:
        Accord("broadcast_optimizer_state", lambda: _groups(optimizer), process_set).wait()
    tensors: list[torch.Tensor] = []
    state = _hollow(optimizer.state_dict(), tensors) if is_root else None
    state = broadcast_object(state, root_rank, "optimizer_state", process_set)
    if not is_root:
        holes: dict[int, _Hole] = {}
        _filled(state, lambda hole: holes.setdefault(hole.index, hole))
        tensors = [torch.empty(holes[i].shape, dtype=holes[i].dtype) for i in range(len(holes))]
    broadcast_tensors([(f"optimizer_state.{i}", t) for i, t in enumerate(tensors)], root_rank, process_set)
    if not is_root:
        optimizer.load_state_dict(_filled(state, lambda hole: tensors[hole.index]))
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.requires_grad and p.grad is None:
                # As with Horovod, whose scripts read gradients before the first pass.
                p.grad = torch.zeros_like(p)


def _groups(optimizer: torch.optim.Optimizer) -> list[str]:
    """What must be equal for one optimizer to take over the state of another."""
    names: dict[torch.Tensor, str] = getattr(optimizer, "_parameter_names", {})
    return [
        described(f"parameter {i}.{j} {names.get(p, '')}".rstrip(), p)
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
    ]


def _hollow(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The value with placeholders instead of tensors, which are appended to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Hole(len(tensors) - 1, tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: _hollow(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_hollow(item, tensors) for item in value)
    return value


def _filled(value: Any, fill: Any) -> Any:
    if isinstance(value, _Hole):
        return fill(value)
    if isinstance(value, dict):
        return {key: _filled(item, fill) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_filled(item, fill) for item in value)
    return value


__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
