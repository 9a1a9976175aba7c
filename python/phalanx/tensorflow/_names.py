"""Names under which ranks find each other's operations.

In eager code the engine counts, because ranks call in the same order. In a graph the name is fixed when the node is made,
from the function's name and the node's, so that ranks agree however often they trace and in whatever order nodes run.
A session may run all nodes of its graph at once, so there an explicit name belongs to one node only.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf


def name_of(kind: str, name: str | None, *, grouped: bool = False, ignore_name_scope: bool = False) -> str:
    """The full name of an operation; empty if the engine shall count."""
    prefix = f"grouped_{kind}" if grouped else kind
    if tf.executing_eagerly():
        return "" if name is None else f"{prefix}.{name}"
    graph = tf.compat.v1.get_default_graph()
    if name is not None:
        scope = "" if ignore_name_scope else graph.get_name_scope()
        full = f"{prefix}.{scope}/{name}" if scope else f"{prefix}.{name}"
        _refuse_twice(graph, full, name)
        return full
    return f"{prefix}.{_graph_name(graph)}{graph.unique_name(f'phalanx_{kind}')}"


def _refuse_twice(graph: Any, full: str, name: str) -> None:
    if graph.building_function:
        return
    if not hasattr(graph, "_phalanx_names"):
        graph._phalanx_names = set()
    taken: set[str] = graph._phalanx_names
    if full in taken:
        raise ValueError(
            f"name={name!r} belongs to another operation of this graph, and ranks could mistake one for the other: "
            "give each its own name, or leave name out"
        )
    taken.add(full)


def _graph_name(graph: object) -> str:
    name = getattr(graph, "name", None)
    # Functions get a number of this process's, which other ranks need not have; their gradients have it inside, too.
    return "" if not name else re.sub(r"_[0-9]+(?=_grad|$)", "", str(name)) + "/"
