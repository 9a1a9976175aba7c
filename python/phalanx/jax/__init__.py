"""Data-parallel training with JAX, on the CPU: collectives inside and outside of ``jax.jit``.

Every function takes an array or a tree of arrays; a tree is one operation. Collectives of a process have one order, in
which they stand in the program, so ranks that run the same program meet.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from phalanx import _phalanx
from phalanx._arguments import checked_member, checked_op, checked_root
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
from phalanx.jax._order import errors, is_traced
from phalanx.jax._primitive import Spec, bind, compare, is_native, use_native
from phalanx.objects import allgather_object, broadcast_object
from phalanx.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set, set_id
from phalanx.reductions import Adasum, Average, Max, Min, Product, Sum


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _collective(spec: Spec, arrays: list[Any]) -> list[Any]:
    return bind(spec, arrays)


def _forward(spec: Spec, arrays: list[Any]) -> tuple[list[Any], None]:
    n = len(dict(_phalanx.process_sets())[spec.process_set])
    if spec.kind == "reducescatter" and any(array.ndim and len(array) % n for array in arrays):
        raise UnsupportedError("reducescatter can be differentiated if its rows can be divided by the number of ranks")
    # Not the call itself: it may be differentiated once more.
    return _collective(spec, arrays), None


def _backward(spec: Spec, _kept: None, grads: list[Any]) -> tuple[list[Any]]:
    # Whole numbers have no gradient.
    real = [i for i, g in enumerate(grads) if g.dtype != jax.dtypes.float0]
    made = iter(_gradients(spec, [grads[i] for i in real]) if real else [])
    return ([next(made) if i in real else None for i in range(len(grads))],)


def _gradients(spec: Spec, grads: list[Any]) -> list[Any]:
    """Of collectives, too, so that they can be differentiated again."""
    ranks = dict(_phalanx.process_sets())[spec.process_set]
    n, me = len(ranks), ranks.index(_phalanx.place()[0])
    if spec.kind == "allreduce":
        if spec.op not in (Average, Sum):
            raise UnsupportedError("only allreduce with op=Average or op=Sum can be differentiated")
        return list(_collective(spec, grads))
    if spec.kind == "broadcast":
        reduced = _collective(Spec("allreduce", spec.process_set, Average), grads)
        # A choice that is differentiated on all ranks: each of them takes part in the gradient of this gradient.
        return [jnp.where(_phalanx.place()[0] == spec.root, g, jnp.zeros_like(g)) for g in reduced]
    if spec.kind == "allgather":
        reduced = _collective(Spec("allreduce", spec.process_set, Average), grads)
        return [g[me * (len(g) // n) : (me + 1) * (len(g) // n)] for g in reduced]
    if spec.kind == "alltoall":
        return list(_collective(spec, grads))
    factor = spec.prescale * spec.postscale * (n if spec.op == Sum else 1)
    return list(_collective(Spec("allgather", spec.process_set), [g * jnp.asarray(factor, g.dtype) for g in grads]))


_collective.defvjp(_forward, _backward)


def _name(kind: str, name: str | None) -> str:
    """The full name. Calls without one have that of their kind: they come one after the other, and the engine knows names it had before."""
    return f"{kind}.jax" if name is None else f"{kind}.{name}"


def _factor(name: str, factor: Any) -> float:
    if isinstance(factor, (bool, str)) or not hasattr(factor, "__float__"):
        raise ValueError(f"{name} must be a number, not {factor!r}")
    return float(factor)


def _mapped(spec: Spec, tree: Any) -> Any:
    _phalanx.place()
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
    full = _name("allreduce", name)
    before, after = _factor("prescale_factor", prescale_factor), _factor("postscale_factor", postscale_factor)
    return _mapped(Spec("allreduce", checked_member(process_set), checked_op(op), before, after, 0, full), tree)


def grouped_allreduce(arrays: Sequence[Any], op: int = Average, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Reduces several arrays as one operation: all of them, or none."""
    return list(allreduce(list(arrays), op, process_set=process_set))


def allgather(tree: Any, process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Concatenates the rows of all ranks in rank order; all ranks have the same shapes."""
    full = _name("allgather", name)
    return _mapped(Spec("allgather", checked_member(process_set), name=full), tree)


def broadcast(
    tree: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set, name: str | None = None
) -> Any:
    """Returns the arrays of ``root_rank``, a rank of the world, on every rank."""
    root = checked_root(root_rank, process_set)
    leaves, form = jax.tree.flatten(tree)
    done = []
    for i, leaf in enumerate(leaves):
        full = _name("broadcast", None if name is None else f"{name}.{i}")
        done += _collective(Spec("broadcast", checked_member(process_set), root=root, name=full), [jnp.asarray(leaf)])
    return jax.tree.unflatten(form, done)


def alltoall(array: Any, process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Sends as many rows to each rank, and returns the received ones."""
    _phalanx.place()
    full = _name("alltoall", name)
    return _collective(Spec("alltoall", checked_member(process_set), name=full), [jnp.asarray(array)])[0]


def reducescatter(
    tree: Any, op: int = Average, process_set: ProcessSet = global_process_set, name: str | None = None
) -> Any:
    """Reduces the rows and returns to each rank its share of them."""
    if checked_op(op) not in (Average, Sum):
        raise UnsupportedError("reducescatter has op=Average and op=Sum only")
    full = _name("reducescatter", name)
    return _mapped(Spec("reducescatter", checked_member(process_set), checked_op(op), name=full), tree)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the set has called it, after what was started before. Not inside of a compiled function."""
    if is_traced():
        raise UnsupportedError("barrier() in a compiled function would wait when that is traced, not when it runs: call it outside")
    jax.effects_barrier()
    _phalanx.submit("barrier", [], process_set=checked_member(process_set), awaited=True).wait()


def value_and_grad(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """As :func:`jax.value_and_grad`, with the average of all ranks' values and gradients, in one operation.

    What is differentiated must be the same on all ranks: they compare it in the first calls. ``compared=False`` leaves this out.
    """
    process_set = kwargs.pop("process_set", global_process_set)
    compared = kwargs.pop("compared", True)
    if not isinstance(compared, bool):
        raise ValueError(f"compared must be True or False, not {compared!r}")
    set_id(process_set)
    has_aux = kwargs.get("has_aux", False)
    inner = jax.value_and_grad(function, *args, **kwargs)
    chosen = args[0] if args else kwargs.get("argnums", 0)

    def averaged(*inputs: Any, **named: Any) -> Any:
        if compared:
            # JAX itself complains of an argument that is not there.
            places = chosen if isinstance(chosen, (list, tuple)) else [chosen]
            parameters = [inputs[i] for i in places if -len(inputs) <= i < len(inputs)]
            compare(parameters[0] if len(places) == len(parameters) == 1 else parameters, checked_member(process_set), "value_and_grad")
        value, gradients = inner(*inputs, **named)
        if has_aux:
            (loss, aux), gradients = value, gradients
            loss, gradients = allreduce((loss, gradients), process_set=process_set, name="value_and_grad")
            return (loss, aux), gradients
        return allreduce((value, gradients), process_set=process_set, name="value_and_grad")

    return averaged


def distributed(
    optimizer: Any, op: int = Average, process_set: ProcessSet = global_process_set, *, compared: bool = True
) -> Any:
    """An optimizer of optax, before which the gradients of all ranks are reduced.

    Ranks compare the parameters in the first calls of ``update``, if they are passed to it. ``compared=False`` leaves this out.
    """
    if not isinstance(compared, bool):
        raise ValueError(f"compared must be True or False, not {compared!r}")
    if not hasattr(optimizer, "update") or not hasattr(optimizer, "init"):
        raise ValueError(f"expected an optimizer of optax, not a {type(optimizer).__name__}")
    if hasattr(optimizer.update, "_phalanx"):
        raise ValueError("this optimizer is a distributed one already: its gradients would be reduced twice")
    checked_op(op), set_id(process_set)
    warned: list[bool] = []

    def update(gradients: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = args[0] if args else kwargs.get("params")
        if compared and parameters is not None:
            compare(parameters, checked_member(process_set), "distributed")
        elif compared and not warned and rank() == 0:
            warned.append(True)
            warnings.warn(
                "update() got no parameters, so ranks cannot compare them: write optimizer.update(gradients, state, parameters)",
                RuntimeWarning,
                stacklevel=2,
            )
        reduced = allreduce(gradients, op, process_set=process_set, name="distributed")
        return optimizer.update(reduced, state, *args, **kwargs)

    update._phalanx = True  # type: ignore[attr-defined]
    return type(optimizer)(optimizer.init, update)


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
