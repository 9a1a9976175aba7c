"""Submits torch tensors to the engine; each submission returns a handle."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from phalanx import _phalanx
from phalanx._arguments import checked_op, checked_root, checked_splits
from phalanx._options import Options
from phalanx.exceptions import UnsupportedError
from phalanx.reductions import Average, Sum
from phalanx.torch import _handles
from phalanx.torch._memory import back, check, device_of, host_like, lend, on_host, taken


def chosen_op(op: int | None, average: bool | None) -> int:
    """The reduction, from the new argument or the old one."""
    if op is not None:
        if average is not None:
            raise ValueError("average and op are the same argument: pass op alone, such as op=Sum")
        return checked_op(op)
    if average is not None and not isinstance(average, bool):
        raise ValueError(f"average must be True or False, not {average!r}: pass op=, and a name as name=")
    if average is not None:
        warnings.warn("average is deprecated: pass op=Average or op=Sum", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    return Average


def _check_group(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    tensors = list(tensors)
    for tensor in tensors:
        check(tensor)
    if len({tensor.device for tensor in tensors}) > 1:
        raise UnsupportedError(
            "the tensors of one group are on several devices: move them to one, or make a group for each"
        )
    return tensors


def reduce(tensors: Sequence[torch.Tensor], options: Options, *, in_place: bool) -> int:
    """Allreduce, of one tensor or a group."""
    tensors = _check_group(tensors)
    inputs = [on_host(tensor) for tensor in tensors]
    outputs = inputs if in_place else [host_like(tensor) for tensor in tensors]
    operation = options.submit(
        "allreduce",
        [lend(tensor) for tensor in inputs],
        None if in_place else [lend(output) for output in outputs],
        device=device_of(tensors[0]) if tensors else -1,
    )
    grouped = options.grouped

    def finish(_arrays: list[_phalanx.Array], _rows: list[int]) -> torch.Tensor | list[torch.Tensor]:
        if in_place:
            results = [back(host, tensor) for host, tensor in zip(outputs, tensors, strict=True)]
        else:
            results = [host.to(tensor.device) for host, tensor in zip(outputs, tensors, strict=True)]
        return results if grouped else results[0]

    return _handles.add(operation, finish)


def gather(tensors: Sequence[torch.Tensor], options: Options) -> int:
    """Allgather, of one tensor or a group."""
    return _gathered("allgather", tensors, options)


def scatter(tensors: Sequence[torch.Tensor], options: Options) -> int:
    """Reducescatter, of one tensor or a group."""
    if checked_op(options.op) not in (Average, Sum):
        raise UnsupportedError(
            "reducescatter supports only Sum and Average: for other reductions, use allreduce and take this rank's rows"
        )
    return _gathered("reducescatter", tensors, options)


def _gathered(kind: str, tensors: Sequence[torch.Tensor], options: Options) -> int:
    """For collectives whose results the engine makes."""
    tensors = _check_group(tensors)
    device = device_of(tensors[0]) if tensors else -1
    operation = options.submit(kind, [lend(on_host(tensor)) for tensor in tensors], device=device)
    return _handles.add(operation, _made(tensors, options.grouped))


def _made(tensors: list[torch.Tensor], grouped: bool) -> _handles.Finish:
    device = tensors[0].device if tensors else torch.device("cpu")

    def finish(arrays: list[_phalanx.Array], _rows: list[int]) -> torch.Tensor | list[torch.Tensor]:
        results = [taken(array, device) for array in arrays]
        return results if grouped else results[0]

    return finish


def broadcast(tensor: torch.Tensor, root_rank: int, options: Options, *, in_place: bool) -> int:
    """Broadcast from a rank of the world."""
    check(tensor)
    source = on_host(tensor)
    output = source if in_place else host_like(tensor)
    root = checked_root(root_rank, options.process_set)
    outputs = None if in_place else [lend(output)]
    operation = options.submit("broadcast", [lend(source)], outputs, root=root, device=device_of(tensor))

    def finish(_arrays: list[_phalanx.Array], _rows: list[int]) -> torch.Tensor:
        return back(output, tensor) if in_place else output.to(tensor.device)

    return _handles.add(operation, finish)


def alltoall(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None, options: Options) -> int:
    """Alltoall; the result is the received rows, and how many came from each rank."""
    check(tensor)
    rows = checked_splits(splits)
    operation = options.submit("alltoall", [lend(on_host(tensor))], splits=rows, device=device_of(tensor))

    def finish(arrays: list[_phalanx.Array], rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return taken(arrays[0], tensor.device), torch.tensor(rows, dtype=torch.int32, device=tensor.device)

    return _handles.add(operation, finish)
