"""Names under which ranks find each other's operations.

In eager code the engine counts, because ranks call in the same order. In a graph the name is fixed when the node is made,
from the function's name and the node's, so that ranks agree however often they trace and in whatever order nodes run.
"""

from __future__ import annotations

import re

import tensorflow as tf


def name_of(kind: str, name: str | None, *, grouped: bool = False, ignore_name_scope: bool = False) -> str:
    """The full name of an operation; empty if the engine shall count."""
    prefix = f"grouped_{kind}" if grouped else kind
    if tf.executing_eagerly():
        return "" if name is None else f"{prefix}.{name}"
    graph = tf.compat.v1.get_default_graph()
    if name is not None:
        scope = "" if ignore_name_scope else graph.get_name_scope()
        return f"{prefix}.{scope}/{name}" if scope else f"{prefix}.{name}"
    return f"{prefix}.{_graph_name(graph)}{graph.unique_name(f'phalanx_{kind}')}"


def _graph_name(graph: object) -> str:
    name = getattr(graph, "name", None)
    # Functions get a number of this process's, which other ranks need not have.
    return "" if not name else re.sub(r"_[0-9]+$", "", str(name)) + "/"
