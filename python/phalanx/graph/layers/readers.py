"""Readers that declare the variables they feed.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program()):
...     reader = graph.layers.py_reader(capacity=4, shapes=[[-1, 2], [-1, 1]], dtypes=["float32", "int64"])
...     x, label = graph.layers.read_file(reader)
>>> x.shape, label.dtype
((-1, 2), 'int64')
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx.graph._data import data
from phalanx.graph.errors import ProgramError
from phalanx.graph.places import only_cpu
from phalanx.graph.program import Variable, default_main_program

if TYPE_CHECKING:
    from phalanx.graph.io import PyReader


def py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[Any],
    lod_levels: Sequence[int] | None = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> PyReader:
    """A reader with ``start()`` and ``reset()`` that feeds variables of these shapes; :func:`read_file` returns them."""
    from phalanx.graph.io import PyReader

    if any(lod_levels or ()):
        raise ProgramError(
            "py_reader: declare sequences with layers.data(…, lod_level=1, max_length=…), and use io.PyReader"
        )
    prefix = name or default_main_program()._prefix("py_reader")
    pairs = zip(shapes, dtypes, strict=True)
    variables = [data(f"{prefix}.data_{i}", shape, dtype) for i, (shape, dtype) in enumerate(pairs)]
    return PyReader(variables, capacity, use_double_buffer, iterable=False)


def create_py_reader_by_data(
    capacity: int, feed_list: Sequence[Variable], name: str | None = None, use_double_buffer: bool = True
) -> PyReader:
    """A reader with ``start()`` and ``reset()`` that feeds variables which are declared already."""
    from phalanx.graph.io import PyReader

    return PyReader(feed_list, capacity, use_double_buffer, iterable=False)


def double_buffer(reader: PyReader, place: Any = None, name: str | None = None) -> PyReader:
    """The same reader: all of them read ahead."""
    only_cpu(place)
    return reader


def read_file(reader: PyReader) -> Variable | list[Variable]:
    """The variables that a reader feeds."""
    found = [reader._program.var(name) for name in reader._names]
    return found[0] if len(found) == 1 else found


__all__ = ["create_py_reader_by_data", "double_buffer", "py_reader", "read_file"]
