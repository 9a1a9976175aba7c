"""Data-parallel training with JAX, on the CPU: collectives inside and outside of ``jax.jit``.

Every function takes an array or a tree of arrays; a tree is one operation. Collectives of a process have one order, in
which they stand in the program, so ranks that run the same program meet.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp

from phalanx import _phalanx
from phalanx._arguments import checked_op, checked_root
from phalanx._world import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from phalanx.exceptions import UnsupportedError
from phalanx.jax._primitive import Spec, bind, is_native, use_native
from phalanx.objects import allgather_object, broadcast_object
from phalanx.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set, set_id
from phalanx.reductions import Adasum, Average, Max, Min, Product, Sum


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _collective(spec: Spec, arrays: list[Any]) -> list[Any]:
    return bind(spec, arrays)


def _forward(spec: Spec, arrays: list[Any]) -> tuple[list[Any], None]:
    return bind(spec, arrays), None


def _backward(spec: Spec, _kept: None, grads: list[Any]) -> tuple[list[Any]]:
    n = len(dict(_phalanx.process_sets())[spec.process_set])
    me = dict(_phalanx.process_sets())[spec.process_set].index(_phalanx.place()[0])
    if spec.kind == "allreduce":
        if spec.op not in (Average, Sum):
            raise UnsupportedError("only allreduce with op=Average or op=Sum can be differentiated")
        return (bind(spec, grads),)
    if spec.kind == "broadcast":
        reduced = bind(Spec("allreduce", spec.process_set, Average), grads)
        return (reduced if _phalanx.place()[0] == spec.root else [jnp.zeros_like(g) for g in reduced],)
    if spec.kind == "allgather":
        reduced = bind(Spec("allreduce", spec.process_set, Average), grads)
        return ([g[me * (len(g) // n) : (me + 1) * (len(g) // n)] for g in reduced],)
    if spec.kind == "alltoall":
        return (bind(spec, grads),)
    factor = spec.prescale * spec.postscale * (n if spec.op == Sum else 1)
    if any(len(g) * n != sum(_rows(spec, g)) for g in grads):
        raise UnsupportedError("reducescatter can be differentiated if its rows can be divided by the number of ranks")
    return (bind(Spec("allgather", spec.process_set), [g * jnp.asarray(factor, g.dtype) for g in grads]),)


def _rows(spec: Spec, part: Any) -> list[int]:
    return [len(part)] * len(dict(_phalanx.process_sets())[spec.process_set])


_collective.defvjp(_forward, _backward)


def _mapped(spec: Spec, tree: Any) -> Any:
    leaves, form = jax.tree.flatten(tree)
    if not leaves:
        return tree
    return jax.tree.unflatten(form, _collective(spec, [jnp.asarray(leaf) for leaf in leaves]))


def allreduce(
    tree: Any,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> Any:
    """Reduces the arrays of all ranks to their average, sum, minimum, maximum or product."""
    full = "" if name is None else f"allreduce.{name}"
    spec = Spec("allreduce", set_id(process_set), checked_op(op), float(prescale_factor), float(postscale_factor), 0, full)
    return _mapped(spec, tree)


def grouped_allreduce(arrays: Sequence[Any], op: int = Average, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Reduces several arrays as one operation: all of them, or none."""
    return list(allreduce(list(arrays), op, process_set=process_set))


def allgather(tree: Any, process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Concatenates the rows of all ranks in rank order; all ranks have the same shapes."""
    full = "" if name is None else f"allgather.{name}"
    return _mapped(Spec("allgather", set_id(process_set), name=full), tree)


def broadcast(
    tree: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set, name: str | None = None
) -> Any:
    """Returns the arrays of ``root_rank``, a rank of the world, on every rank."""
    root = checked_root(root_rank, process_set)
    leaves, form = jax.tree.flatten(tree)
    done = []
    for i, leaf in enumerate(leaves):
        full = "" if name is None else f"broadcast.{name}.{i}"
        done += _collective(Spec("broadcast", set_id(process_set), root=root, name=full), [jnp.asarray(leaf)])
    return jax.tree.unflatten(form, done)


def alltoall(array: Any, process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Sends as many rows to each rank, and returns the received ones."""
    full = "" if name is None else f"alltoall.{name}"
    return _collective(Spec("alltoall", set_id(process_set), name=full), [jnp.asarray(array)])[0]


def reducescatter(
    tree: Any, op: int = Average, process_set: ProcessSet = global_process_set, name: str | None = None
) -> Any:
    """Reduces the rows and returns to each rank its share of them."""
    if checked_op(op) not in (Average, Sum):
        raise UnsupportedError("reducescatter has op=Average and op=Sum only")
    full = "" if name is None else f"reducescatter.{name}"
    return _mapped(Spec("reducescatter", set_id(process_set), checked_op(op), name=full), tree)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the set has called it, after what was started before. Not inside of a compiled function."""
    jax.effects_barrier()
    _phalanx.submit("barrier", [], process_set=set_id(process_set), awaited=True).wait()


def value_and_grad(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """As :func:`jax.value_and_grad`, with the average of all ranks' values and gradients, in one operation."""
    process_set = kwargs.pop("process_set", global_process_set)
    has_aux = kwargs.get("has_aux", False)
    inner = jax.value_and_grad(function, *args, **kwargs)

    def averaged(*inputs: Any, **named: Any) -> Any:
        value, gradients = inner(*inputs, **named)
        if has_aux:
            (loss, aux), gradients = value, gradients
            loss, gradients = allreduce((loss, gradients), process_set=process_set)
            return (loss, aux), gradients
        return allreduce((value, gradients), process_set=process_set)

    return averaged


def distributed(optimizer: Any, op: int = Average, process_set: ProcessSet = global_process_set) -> Any:
    """An optimizer of optax, before which the gradients of all ranks are reduced."""
    if not hasattr(optimizer, "update") or not hasattr(optimizer, "init"):
        raise ValueError(f"expected an optimizer of optax, not a {type(optimizer).__name__}")

    def update(gradients: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.update(allreduce(gradients, op, process_set=process_set), state, *args, **kwargs)

    return type(optimizer)(optimizer.init, update)


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Inside of it, errors of collectives in compiled functions are Phalanx's own exceptions, with rank and cause.

    XLA keeps only the text of an error. The block waits at its end for what was started in it.
    """
    try:
        yield
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        match = re.search(r"\[phalanx failure ([0-9]+)\]", str(error))
        found = _phalanx.native_failure(int(match[1])) if match else None
        if found is None:
            raise
        raise found from error


__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "distributed",
    "errors",
    "global_process_set",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "is_native",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
    "use_native",
    "value_and_grad",
]
