"""Submits torch tensors to the engine; each submission returns a handle."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from phalanx import _phalanx
from phalanx._arguments import checked_op, checked_root, checked_splits
from phalanx.exceptions import UnsupportedError
from phalanx.process_sets import ProcessSet, set_id
from phalanx.reductions import Average, Sum
from phalanx.torch import _handles
from phalanx.torch._memory import CODES, back, check, device_of, host_like, lend, on_host, taken


def full_name(kind: str, name: str | None) -> str | None:
    """The name of the operation on all ranks; without one, the engine numbers operations."""
    return None if name is None else f"{kind}.{name}"


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


def reduce(
    tensors: Sequence[torch.Tensor],
    *,
    in_place: bool,
    grouped: bool,
    name: str | None,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet,
    wire: torch.dtype | None = None,
) -> int:
    """Allreduce, of one tensor or a group."""
    tensors = _check_group(tensors)
    inputs = [on_host(tensor) for tensor in tensors]
    outputs = inputs if in_place else [host_like(tensor) for tensor in tensors]
    operation = _phalanx.submit(
        "allreduce",
        [lend(tensor) for tensor in inputs],
        outputs=None if in_place else [lend(output) for output in outputs],
        name=full_name("grouped_allreduce" if grouped else "allreduce", name),
        op=op,
        prescale=prescale,
        postscale=postscale,
        process_set=set_id(process_set),
        wire=None if wire is None else CODES[wire],
        device=device_of(tensors[0]) if tensors else -1,
        grouped=grouped,
    )

    def finish(_arrays: list[_phalanx.Array], _rows: list[int]) -> torch.Tensor | list[torch.Tensor]:
        if in_place:
            results = [back(host, tensor) for host, tensor in zip(outputs, tensors, strict=True)]
        else:
            results = [host.to(tensor.device) for host, tensor in zip(outputs, tensors, strict=True)]
        return results if grouped else results[0]

    return _handles.add(operation, finish)


def gather(tensors: Sequence[torch.Tensor], *, grouped: bool, name: str | None, process_set: ProcessSet) -> int:
    """Allgather, of one tensor or a group."""
    tensors = _check_group(tensors)
    operation = _phalanx.submit(
        "allgather",
        [lend(on_host(tensor)) for tensor in tensors],
        name=full_name("grouped_allgather" if grouped else "allgather", name),
        process_set=set_id(process_set),
        device=device_of(tensors[0]) if tensors else -1,
        grouped=grouped,
    )
    return _handles.add(operation, _made(tensors, grouped))


def scatter(
    tensors: Sequence[torch.Tensor],
    *,
    grouped: bool,
    name: str | None,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet,
    wire: torch.dtype | None = None,
) -> int:
    """Reducescatter, of one tensor or a group."""
    op = checked_op(op)
    if op not in (Average, Sum):
        raise UnsupportedError(
            "reducescatter supports only Sum and Average: for other reductions, use allreduce and take this rank's rows"
        )
    tensors = _check_group(tensors)
    operation = _phalanx.submit(
        "reducescatter",
        [lend(on_host(tensor)) for tensor in tensors],
        name=full_name("grouped_reducescatter" if grouped else "reducescatter", name),
        op=op,
        prescale=prescale,
        postscale=postscale,
        process_set=set_id(process_set),
        wire=None if wire is None else CODES[wire],
        device=device_of(tensors[0]) if tensors else -1,
        grouped=grouped,
    )
    return _handles.add(operation, _made(tensors, grouped))


def _made(tensors: list[torch.Tensor], grouped: bool) -> _handles.Finish:
    device = tensors[0].device if tensors else torch.device("cpu")

    def finish(arrays: list[_phalanx.Array], _rows: list[int]) -> torch.Tensor | list[torch.Tensor]:
        results = [taken(array, device) for array in arrays]
        return results if grouped else results[0]

    return finish


def broadcast(
    tensor: torch.Tensor, root_rank: int, *, in_place: bool, name: str | None, process_set: ProcessSet
) -> int:
    """Broadcast from a rank of the world."""
    check(tensor)
    source = on_host(tensor)
    output = source if in_place else host_like(tensor)
    operation = _phalanx.submit(
        "broadcast",
        [lend(source)],
        outputs=None if in_place else [lend(output)],
        name=full_name("broadcast", name),
        root=checked_root(root_rank, process_set),
        process_set=set_id(process_set),
        device=device_of(tensor),
    )

    def finish(_arrays: list[_phalanx.Array], _rows: list[int]) -> torch.Tensor:
        return back(output, tensor) if in_place else output.to(tensor.device)

    return _handles.add(operation, finish)


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None,
    *,
    name: str | None,
    process_set: ProcessSet,
) -> int:
    """Alltoall; the result is the received rows, and how many came from each rank."""
    check(tensor)
    operation = _phalanx.submit(
        "alltoall",
        [lend(on_host(tensor))],
        name=full_name("alltoall", name),
        splits=checked_splits(splits),
        process_set=set_id(process_set),
        device=device_of(tensor),
    )

    def finish(arrays: list[_phalanx.Array], rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return taken(arrays[0], tensor.device), torch.tensor(rows, dtype=torch.int32, device=tensor.device)

    return _handles.add(operation, finish)
