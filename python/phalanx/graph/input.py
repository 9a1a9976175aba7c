"""Layers of ``fluid`` itself, which take numbers as they are: ``[n, 1]`` stays two axes.

>>> import phalanx.graph as fluid
>>> with fluid.program_guard(fluid.Program(), fluid.Program()):
...     ids = fluid.data("ids", [None, 1], "int64")
...     fluid.embedding(ids, size=[10, 4]).shape, fluid.one_hot(ids, 10).shape
((-1, 1, 4), (-1, 1, 10))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.graph._adding import program_of
from phalanx.graph.layers import network, shaping
from phalanx.graph.program import Variable


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: str = "float32",
) -> Variable:
    """Rows of a trainable table by number; the result has one axis more than the numbers."""
    return network.looked_up(input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype, squeeze=False)


def one_hot(input: Variable, depth: int, allow_out_of_range: bool = False) -> Variable:
    """A row with a one in the place of each number; the result has one axis more than the numbers."""
    program_of([input], "one_hot")
    depth = shaping.checked_depth(depth, allow_out_of_range)
    return shaping.rows_of(shaping.as_whole(input), depth)


__all__ = ["embedding", "one_hot"]
