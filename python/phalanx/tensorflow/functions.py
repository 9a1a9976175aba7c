"""What ranks begin with: variables and objects of one rank for all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from phalanx import objects
from phalanx._accord import Accord
from phalanx._arguments import checked_root
from phalanx.process_sets import ProcessSet, global_process_set
from phalanx.tensorflow.collectives import assigned_from_root, listed_variables


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Gives the variables of ``root_rank`` to every rank. In a graph, returns the operation that does so.

    ``inplace`` changes nothing: variables are always assigned to.
    """
    checked_root(root_rank, process_set)
    variables = listed_variables(variables)
    lines = [f"variable {i}, {tf.TensorShape(v.shape)} of {tf.as_dtype(v.dtype).name}" for i, v in enumerate(variables)]
    if tf.executing_eagerly():
        if len(process_set.ranks) > 1:
            Accord("broadcast_variables", lambda: lines, process_set).wait()
        assigned_from_root(variables, root_rank, "variables", process_set)
        return None
    # A graph may have several such operations, each with names of its own. Making it waits for no rank, so operations carry the list.
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]
    note = f"{len(variables)} variables (list {digest})"
    done = assigned_from_root(variables, root_rank, None, process_set, note)
    return tf.group(*[d for d in done if d is not None])


def broadcast_global_variables(root_rank: int) -> Any:
    """Gives all global variables of ``root_rank``'s graph to every rank; for ``tf.compat.v1`` graphs only."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "eager code has no global variables: write broadcast_variables(model.variables, root_rank=0) after the first step"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A hook of monitored sessions that gives all variables of ``root_rank`` to every rank once they are initialized."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        if device and "CPU" not in device.upper():
            raise ValueError(f"device={device!r}: variables are sent from the CPU; leave device out")
        self.root_rank = root_rank
        self._op: Any = None

    def begin(self) -> None:
        """Adds the operation to the graph before that is final."""
        if self._op is None or self._op.graph is not tf.compat.v1.get_default_graph():
            self._op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it."""
        session.run(self._op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the object of ``root_rank`` on every rank. ``session`` is not needed."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function that returns the object of ``root_rank`` on every rank."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks, in rank order. ``session`` is not needed."""
    return objects.allgather_object(obj, name, process_set)


__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]
