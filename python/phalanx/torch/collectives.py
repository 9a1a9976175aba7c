"""Collectives of torch tensors: blocking, asynchronous, in place, grouped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from phalanx import _phalanx, _world
from phalanx._options import Options
from phalanx.exceptions import MismatchError
from phalanx.process_sets import ProcessSet, global_process_set, set_id
from phalanx.reductions import Average, Sum
from phalanx.torch import _autograd, _submit
from phalanx.torch._handles import poll, synchronize
from phalanx.torch._submit import chosen_op
from phalanx.torch.compression import Compression, Compressor, is_native, narrows, wire_of

_Tensors = Sequence[torch.Tensor]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As :func:`allreduce`, without waiting: returns a handle for :func:`poll` and :func:`synchronize`."""
    options = Options(name, process_set, False, chosen_op(op, average), prescale_factor, postscale_factor)
    return _submit.reduce([tensor], options, in_place=False)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces the tensors of all ranks; ``op`` is ``Average`` by default. Can be differentiated.

    >>> import torch
    >>> import phalanx.torch as hvd
    >>> hvd.init()
    >>> hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Sum)
    tensor([1., 2.])
    """
    options = Options(name, process_set, False, chosen_op(op, average), prescale_factor, postscale_factor)
    (result,) = _reduced([tensor], compression, options)
    return result


def _reduced(tensors: _Tensors, compression: type[Compressor], options: Options) -> list[torch.Tensor]:
    contexts: list[Any] | None = None
    if not is_native(compression):
        pairs = [compression.compress(t) for t in tensors]
        tensors, contexts = [t for t, _ in pairs], [c for _, c in pairs]
    elif tensors and all(isinstance(t, torch.Tensor) and narrows(t, compression) for t in tensors):
        options = options.but(wire=wire_of(compression))
    if _autograd.is_wanted(*tensors):
        results = list(_autograd.Reduce.apply(options, *tensors))
    else:
        result = synchronize(_submit.reduce(tensors, options.but(awaited=True), in_place=False))
        results = result if options.grouped else [result]
    if contexts is not None:
        results = [compression.decompress(t, c) for t, c in zip(results, contexts, strict=True)]
    return results


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As :func:`allreduce_`, without waiting."""
    _autograd.refuse_in_place([tensor])
    options = Options(name, process_set, False, chosen_op(op, average), prescale_factor, postscale_factor)
    return _submit.reduce([tensor], options, in_place=True)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As :func:`allreduce`, in place; autograd does not see it."""
    _autograd.refuse_in_place([tensor])
    op = chosen_op(op, average)
    options = Options(name, process_set, False, op, prescale_factor, postscale_factor, awaited=True)
    result: torch.Tensor = synchronize(_submit.reduce([tensor], options, in_place=True))
    return result


def grouped_allreduce_async(
    tensors: _Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As :func:`grouped_allreduce`, without waiting."""
    options = Options(name, process_set, True, chosen_op(op, average), prescale_factor, postscale_factor)
    return _submit.reduce(tensors, options, in_place=False)


def grouped_allreduce(
    tensors: _Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors as one operation: all of them, or none.

    >>> import torch
    >>> import phalanx.torch as hvd
    >>> hvd.init()
    >>> hvd.grouped_allreduce([torch.ones(1), torch.zeros(2)])
    [tensor([1.]), tensor([0., 0.])]
    """
    options = Options(name, process_set, True, chosen_op(op, average), prescale_factor, postscale_factor)
    return _reduced(list(tensors), compression, options)


def grouped_allreduce_async_(
    tensors: _Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As :func:`grouped_allreduce_`, without waiting."""
    tensors = list(tensors)
    _autograd.refuse_in_place(tensors)
    options = Options(name, process_set, True, chosen_op(op, average), prescale_factor, postscale_factor)
    return _submit.reduce(tensors, options, in_place=True)


def grouped_allreduce_(
    tensors: _Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As :func:`grouped_allreduce`, in place."""
    op = chosen_op(op, average)
    handle = grouped_allreduce_async_(tensors, None, name, op, prescale_factor, postscale_factor, process_set)
    result: list[torch.Tensor] = synchronize(handle)
    return result


SPARSE_OPS = {Average: "Average", Sum: "Sum"}


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Sums or averages a sparse tensor by gathering the rows of all ranks. Call the returned function for the result."""
    if op not in (Average, Sum):
        raise ValueError("sparse tensors can only be summed or averaged: use op=Sum or op=Average")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"expected a sparse COO tensor, not layout {tensor.layout}: tensor.to_sparse() makes one")
    if op == Average and not tensor.dtype.is_floating_point:
        raise ValueError(f"rows of {tensor.dtype} cannot be averaged: convert the tensor, or use op=Sum")
    own_form = torch.tensor([[op, *tensor.size()]])
    options = Options(name, process_set)
    form = _submit.gather([own_form], options.of("form"))
    indices, values = tensor._indices().t().contiguous(), tensor._values().contiguous()
    handle = _submit.gather([indices, values], options.but(grouped=True))

    def result() -> torch.Tensor:
        forms = synchronize(form)
        all_indices, all_values = synchronize(handle)
        if not bool((forms == own_form).all()):
            raise MismatchError(
                f"sparse_allreduce of {name or 'a tensor'}: ranks have different sizes or ops: "
                f"{sorted({(SPARSE_OPS[row[0]], tuple(row[1:])) for row in forms.tolist()})}. Pass the same on every rank.",
                tensor=name,
            )
        if op == Average:
            all_values /= len(process_set.ranks)
        # What ranks brought was checked when it was made; checking it again would read all of it.
        return torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.size(), check_invariants=False)

    return result


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """As :func:`allgather`, without waiting."""
    return _submit.gather([tensor], Options(name, process_set))


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenates the rows of all ranks in rank order; ranks may have different numbers of rows. Can be differentiated.

    >>> import torch
    >>> import phalanx.torch as hvd
    >>> hvd.init()
    >>> hvd.allgather(torch.tensor([[1, 2]]))
    tensor([[1, 2]])
    """
    if _autograd.is_wanted(tensor):
        return _autograd.Gather.apply(Options(name, process_set), tensor)[0]  # type: ignore[no-any-return]
    result: torch.Tensor = synchronize(allgather_async(tensor, name, process_set))
    return result


def grouped_allgather_async(
    tensors: _Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """As :func:`grouped_allgather`, without waiting."""
    return _submit.gather(tensors, Options(name, process_set, grouped=True))


def grouped_allgather(
    tensors: _Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Gathers several tensors as one operation: all of them, or none."""
    tensors = list(tensors)
    if _autograd.is_wanted(*tensors):
        return list(_autograd.Gather.apply(Options(name, process_set, grouped=True), *tensors))
    result: list[torch.Tensor] = synchronize(grouped_allgather_async(tensors, name, process_set))
    return result


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """As :func:`broadcast`, without waiting."""
    return _submit.broadcast(tensor, root_rank, Options(name, process_set), in_place=False)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Returns the tensor of ``root_rank``, a rank of the world, on every rank. Can be differentiated.

    >>> import torch
    >>> import phalanx.torch as hvd
    >>> hvd.init()
    >>> hvd.broadcast(torch.tensor([7]), root_rank=0)
    tensor([7])
    """
    if _autograd.is_wanted(tensor):
        return _autograd.Broadcast.apply(Options(name, process_set), root_rank, tensor)  # type: ignore[no-any-return]
    result: torch.Tensor = synchronize(broadcast_async(tensor, root_rank, name, process_set))
    return result


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """As :func:`broadcast_`, without waiting."""
    # Parameters are given their first values like this, which is no mistake.
    _autograd.refuse_in_place([tensor], leaves=False)
    return _submit.broadcast(tensor, root_rank, Options(name, process_set), in_place=True)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """As :func:`broadcast`, in place."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As :func:`alltoall`, without waiting; :func:`synchronize` returns both the received rows and their splits."""
    return _submit.alltoall(tensor, splits, Options(name, process_set))


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends ``splits[r]`` rows to each rank r, by default equal shares; with splits, also returns the received splits.

    >>> import torch
    >>> import phalanx.torch as hvd
    >>> hvd.init()
    >>> hvd.alltoall(torch.tensor([1, 2, 3]), splits=[2])
    (tensor([1, 2]), tensor([2], dtype=torch.int32))
    """
    if _autograd.is_wanted(tensor):
        output, received = _autograd.Alltoall.apply(Options(name, process_set), splits, tensor)
    else:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """As :func:`reducescatter`, without waiting."""
    options = Options(name, process_set, False, op, prescale_factor, postscale_factor)
    return _submit.scatter([tensor], options)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces the rows and returns to each rank its share of them. Can be differentiated.

    >>> import torch
    >>> import phalanx.torch as hvd
    >>> hvd.init()
    >>> hvd.reducescatter(torch.tensor([1.0, 2.0]), op=hvd.Sum)
    tensor([1., 2.])
    """
    options = Options(name, process_set, False, op, prescale_factor, postscale_factor)
    return _scattered([tensor], compression, options)[0]


def grouped_reducescatter_async(
    tensors: _Tensors,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """As :func:`grouped_reducescatter`, without waiting."""
    options = Options(name, process_set, True, op, prescale_factor, postscale_factor)
    return _submit.scatter(tensors, options)


def grouped_reducescatter(
    tensors: _Tensors,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduces and scatters several tensors as one operation: all of them, or none."""
    options = Options(name, process_set, True, op, prescale_factor, postscale_factor)
    return _scattered(list(tensors), compression, options)


def _scattered(tensors: _Tensors, compression: type[Compressor], options: Options) -> list[torch.Tensor]:
    pairs = [compression.compress(t) for t in tensors]
    tensors = [t for t, _ in pairs]
    if _autograd.is_wanted(*tensors):
        results = list(_autograd.Scatter.apply(options, *tensors))
    else:
        result = synchronize(_submit.scatter(tensors, options))
        results = result if options.grouped else [result]
    return [compression.decompress(t, c) for t, (_, c) in zip(results, pairs, strict=True)]


def join(device: int = -1) -> int:
    """Declares that this rank has no more data, and waits until all ranks have; returns the rank that was last.

    Until then this rank takes part in the others' allreduces with zeros. ``device`` is ignored.
    """
    return _world.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the set has called it."""
    _phalanx.submit("barrier", [], process_set=set_id(process_set), awaited=True).wait()


__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
