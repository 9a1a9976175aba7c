"""IBM DDL's functions: Init, Bcast, AllReduce, AllReduceN, along the tiers of the network.

>>> import numpy as np
>>> from phalanx import ddl
>>> ddl.init()
Learner(rank=0, size=1, gpuid=0)
>>> ddl.bcast(np.array([1.0, 2.0]))
array([1., 2.])
>>> ddl.allreduce(np.array([1.0, 2.0]), op="avg", check=0.17)
array([1., 2.])
>>> ddl.finalize()

Arrays are numpy's or tensors of torch; results are new. For 12 ranks on 3 hosts: ``ddl.init(4, mode="-mode n:4x3")``.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

import phalanx.numpy as _arrays
from phalanx import _phalanx, _world
from phalanx._options import manner
from phalanx.exceptions import CheckError, MismatchError, NoMpiError
from phalanx.reductions import Average, Max, Min, Product, Sum

T = TypeVar("T")

_OPS = {"sum": Sum, "avg": Average, "average": Average, "min": Min, "max": Max, "prod": Product, "product": Product}


class Learner(NamedTuple):
    """What Init gives back: this process's rank, the number of ranks, and the device that belongs to it."""

    rank: int
    size: int
    gpuid: int


class Tier(NamedTuple):
    """One tier of the shape, what it does, and what this rank has sent along it. Times are taken with ``-dump_iter``."""

    ranks: int
    way: str
    bytes: int
    messages: int
    seconds: float


class Report(list[Tier]):
    """The tiers, and what the last ``check`` compared with: MPI, or all inputs gathered, and then why not MPI."""

    baseline: str | None = None


def init(num_gpu: int | None = None, mode: str | None = None) -> Learner:
    """Joins the world. ``num_gpu`` is the number of ranks on each host, ``mode`` DDL's option string.

    Without ``mode`` the variable ``DDL_OPTIONS`` is read; without a shape there is a single ring. docs/topology.md has
    the letters.
    """
    if num_gpu is not None and (isinstance(num_gpu, bool) or not isinstance(num_gpu, int) or num_gpu < 1):
        raise ValueError(f"num_gpu must be a positive number or None, not {num_gpu!r}: pass the ranks of each host")
    if mode is not None and not isinstance(mode, str):
        raise ValueError(f"mode must be DDL's option string, such as '-mode n:4x3', not {mode!r}")
    if not _world.join_with(num_gpu, mode or ""):
        raise RuntimeError("DDL has already been initialized.")
    greeting = _phalanx.ddl_greeting()
    if greeting is not None:
        sys.stderr.write(f"{greeting}\n")
    return Learner(rank(), size(), local_rank())


def rank() -> int:
    """This process's rank."""
    return _world.rank()


def size() -> int:
    """The number of ranks."""
    return _world.size()


def local_rank() -> int:
    """This process's place on its host."""
    return _world.local_rank()


def num_hosts() -> int:
    """The number of hosts."""
    return _phalanx.ddl_shape()[2]


def coordinates(of: int | None = None) -> tuple[int, ...]:
    """Where a rank, this one unless said otherwise, is along each tier."""
    if of is None:
        return tuple(_phalanx.ddl_coordinates(rank()))
    if isinstance(of, bool) or not isinstance(of, int) or not 0 <= of < size():
        raise ValueError(f"of must be a rank from 0 to {size() - 1}, or None for this one, not {of!r}")
    return tuple(_phalanx.ddl_coordinates(of))


def groups() -> list[list[int]]:
    """For each tier, the ranks with which this one reduces there."""
    return _phalanx.ddl_groups()


def report() -> Report:
    """What this rank has sent along each tier since :func:`init`, and what results are compared with."""
    made = Report(Tier(*line) for line in _phalanx.ddl_report())
    made.baseline = _phalanx.ddl_baseline()
    return made


def finalize() -> None:
    """Leaves the world in order; :func:`init` may be called again."""
    _world.shutdown()


def _torch() -> Any:
    # Only who passes tensors has torch, and has imported it.
    return sys.modules.get("torch")


def _is_tensor(x: object) -> bool:
    torch = _torch()
    return torch is not None and isinstance(x, torch.Tensor)


def _check_kind(x: object) -> None:
    if not _is_tensor(x) and not isinstance(x, np.ndarray):
        raise ValueError(f"expected an array or a tensor, not {type(x).__name__}: numpy.asarray() makes an array")


def _wait_for_device(x: object, level: int) -> None:
    if _is_tensor(x) and _phalanx.ddl_shape()[3] >= level:
        device: Any = getattr(x, "device", None)
        if device.type == "cuda":
            _torch().cuda.synchronize(device)


def bcast(x: T, name: str | None = None) -> T:
    """The values of rank 0, on every rank."""
    _check_kind(x)
    full = None if name is None else f"ddl.{name}"
    _wait_for_device(x, 1)
    if _is_tensor(x):
        import phalanx.torch

        result: Any = phalanx.torch.broadcast(x, 0, name=full)  # type: ignore[arg-type]
    else:
        result = _arrays.broadcast(x, 0, name=full)  # type: ignore[arg-type]
    _wait_for_device(x, 2)
    return result  # type: ignore[no-any-return]


def allreduce(x: T, op: str = "sum", mpi: bool = False, check: float = 0.0, name: str | None = None) -> T:
    """Reduces over all ranks: ``op`` is sum, avg, min, max or prod.

    ``mpi`` lets MPI_Allreduce do it, under mpirun of Open MPI or MPICH; elsewhere all ranks raise ``NoMpiError``.
    ``check`` compares the result with MPI's, or without MPI with all inputs, gathered and reduced in double precision; where
    it is further off than that fraction, all ranks raise :class:`phalanx.CheckError` and write ``ddl.dumpRRR``. Both are the
    same on all ranks.
    """
    return _reduced([x], op, mpi, check, name, None)[0]


def allreduce_n(
    xs: Sequence[T],
    op: str = "sum",
    mpi: bool = False,
    check: float = 0.0,
    name: str | None = None,
    names: Sequence[str] | None = None,
) -> list[T]:
    """Reduces several arrays in one operation: all of them, or none.

    Arrays are told apart by their place; with ``names`` by these, whatever the order on each rank.
    """
    if names is not None and len(names) != len(xs):
        raise ValueError(f"{len(names)} names were given for {len(xs)} arrays")
    if not xs:
        return []
    if names is None:
        return _reduced(list(xs), op, mpi, check, name, None, grouped=True)
    twice = [one for one, n in Counter(names).items() if n > 1]
    if twice:
        raise ValueError(f"the name {twice[0]!r} is given twice: each array needs its own")
    order = sorted(range(len(xs)), key=lambda i: names[i])
    called = [names[i] for i in order]
    # Ranks that name other arrays wait for each other, and the stall report says so; nothing is summed with something else.
    digest = hashlib.blake2b("\0".join(called).encode(), digest_size=6).hexdigest()
    label = f"{name or 'allreduce_n'}.{digest}"
    results = _reduced([xs[i] for i in order], op, mpi, check, label, called, grouped=True)
    places = {i: place for place, i in enumerate(order)}
    return [results[places[i]] for i in range(len(xs))]


def grads_reduce(grads_and_vars: Sequence[tuple[Any, Any]], average: bool = True) -> list[tuple[Any, Any]]:
    """Reduces the gradients of (gradient, variable) pairs; a gradient that is None stays None, and must be None on all ranks."""
    pairs = list(grads_and_vars)
    present = [grad for grad, _ in pairs if grad is not None]
    has = np.array([grad is not None for grad, _ in pairs], dtype=np.int32)
    fewest, most = np.split(_arrays.allreduce(np.concatenate([has, -has]), op=Min, name="ddl.grads.present"), 2)
    differing = np.flatnonzero(fewest != -most)
    if differing.size:
        numbers = ", ".join(map(str, differing[:10].tolist()))
        raise MismatchError(
            f"gradients {numbers} of {len(pairs)} are None on some ranks and not on others: give zeros where a rank has none"
        )
    reduced = iter(allreduce_n(present, "avg" if average else "sum", name="grads"))
    return [(None if grad is None else next(reduced), var) for grad, var in pairs]


def _reduced(
    xs: list[T],
    op: str,
    mpi: bool,
    check: float,
    name: str | None,
    names: list[str] | None,
    *,
    grouped: bool = False,
) -> list[T]:
    number = _OPS.get(op) if isinstance(op, str) else None
    if number is None:
        raise ValueError(f"op must be sum, avg, min, max or prod, not {op!r}")
    if not isinstance(mpi, bool):
        raise ValueError(f"mpi must be True or False, not {mpi!r}")
    if isinstance(check, bool) or not isinstance(check, (int, float)) or not 0.0 <= check < float("inf"):
        raise ValueError(f"check must be a fraction such as 0.17, or 0 for no check, not {check!r}")
    for x in xs:
        _check_kind(x)
    if len({_is_tensor(x) for x in xs}) > 1:
        raise ValueError("arrays and tensors are mixed in one call: convert them with torch.as_tensor()")
    full = None if name is None else f"ddl.{name}"
    _wait_for_device(xs[0], 1)
    # Arrays without names are told apart by what they are.
    _phalanx.ddl_begin(name or f"{op} of " + ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in xs))  # type: ignore[attr-defined]
    with manner(mpi, float(check)):
        results = _run(xs, number, full, grouped)
    _phalanx.ddl_end()
    told = _phalanx.ddl_rebind_due()
    _wait_for_device(xs[0], 2)
    if check > 0.0:
        labels = names or (
            [name or "allreduce"] if len(xs) == 1 else [f"{name or 'allreduce'}[{i}]" for i in range(len(xs))]
        )
        for x, result, label in zip(xs, results, labels, strict=True):
            _compare(x, result, label, number, float(check), is_mpi=mpi)
    due = _phalanx.ddl_dump_due()
    if due is not None:
        said = _arrays.allgather(np.array(due), name="ddl.dump")
        text = _phalanx.ddl_shown(said.tolist())
        if rank() == 0:
            sys.stderr.write(text + "\n")
    if told is not None:
        moved = _phalanx.ddl_rebind(_arrays.allgather(np.array(told), name="ddl.rebind").tolist())
        if moved is not None:
            sys.stderr.write(f"DDL: {moved}\n")
    return results


def _run(xs: list[T], op: int, name: str | None, grouped: bool) -> list[T]:
    if _is_tensor(xs[0]):
        import phalanx.torch

        if grouped:
            return list(phalanx.torch.grouped_allreduce(xs, name=name, op=op))  # type: ignore[arg-type]
        return [phalanx.torch.allreduce(xs[0], name=name, op=op)]  # type: ignore[arg-type,list-item]
    if grouped:
        return list(_arrays.grouped_allreduce(xs, name=name, op=op))  # type: ignore[arg-type]
    return [_arrays.allreduce(xs[0], name=name, op=op)]  # type: ignore[arg-type,list-item]


def _lent(x: Any) -> tuple[Any, Any]:
    """A contiguous copy on the CPU, in one dimension, and its memory."""
    if _is_tensor(x):
        from phalanx.torch import _memory

        flat = _memory.on_host(x.detach()).reshape(-1).contiguous()
        return flat, _memory.lend(flat)
    row = np.ascontiguousarray(x).reshape(-1)
    return row, _arrays._lend(row)


def _other(sent: Any, label: str, op: int, is_mpi: bool) -> tuple[Any, bool]:
    """What a result is compared with, and whether it is MPI's: all inputs, where MPI is not there or would judge itself."""
    if not is_mpi and _phalanx.ddl_may_ask_mpi():
        try:
            with manner(True, 0.0):
                return _run([sent], op, f"ddl.mpi.{label}", False)[0], True
        except NoMpiError as why:
            _phalanx.ddl_without_mpi(str(why))
    if _is_tensor(sent):
        import phalanx.torch

        return phalanx.torch.allgather(sent, name=f"ddl.check.{label}"), False
    return _arrays.allgather(sent, name=f"ddl.check.{label}"), False


def _compare(x: Any, result: Any, label: str, op: int, rtol: float, *, is_mpi: bool) -> None:
    sent, _ = _lent(x)
    other, by_mpi = _other(sent, label, op, is_mpi)
    kept, base = _lent(other)
    mine, lent = _lent(result)
    record, faults = _phalanx.ddl_judge(lent, base, by_mpi, op, rtol)
    del kept, mine
    records = _arrays.allgather(np.array(record), name=f"ddl.verdict.{label}").tolist()
    index = _phalanx.ddl_found(label, records, lent[1], by_mpi)
    if index is None:
        return
    is_bad = not np.isfinite(float(sent[index]))
    told = _arrays.allgather(np.array([int(is_bad)]), name=f"ddl.blame.{label}").tolist()
    found = _phalanx.ddl_verdict(label, records, told, faults, lent[1], (by_mpi, is_mpi), op, rtol)
    if found is not None:
        culprit, index, value, baseline, text = found
        raise CheckError(text, rank=culprit, tensor=label, index=index, value=value, baseline=baseline)


Init = init
Bcast = bcast
AllReduce = allreduce
AllReduceN = allreduce_n

__all__ = [
    "AllReduce",
    "AllReduceN",
    "Bcast",
    "Init",
    "Learner",
    "Report",
    "Tier",
    "allreduce",
    "allreduce_n",
    "bcast",
    "coordinates",
    "finalize",
    "grads_reduce",
    "groups",
    "init",
    "local_rank",
    "num_hosts",
    "rank",
    "report",
    "size",
]
