"""Arguments that every interface checks in the same way.

>>> checked_op("sum")
Traceback (most recent call last):
    ...
ValueError: op is one of Average, Sum, Adasum, Min, Max, Product, not 'sum'
>>> checked_splits([1, -1])
Traceback (most recent call last):
    ...
ValueError: alltoall expects splits of integers that are not negative, not [1, -1]
"""

from __future__ import annotations

import operator
from typing import Any

_REDUCTIONS = ["Average", "Sum", "Adasum", "Min", "Max", "Product"]


def checked_op(op: Any) -> int:
    """The number of a reduction."""
    if isinstance(op, bool) or not hasattr(op, "__index__") or operator.index(op) not in range(len(_REDUCTIONS)):
        raise ValueError(f"op is one of {', '.join(_REDUCTIONS)}, not {op!r}")
    return operator.index(op)


def checked_splits(splits: Any) -> list[int] | None:
    """How many rows go to each rank: a list, an array or a tensor of integers of any width."""
    if splits is None:
        return None
    if getattr(splits, "ndim", 1) != 1:
        raise ValueError(f"alltoall expects 1D splits, not {splits.ndim}D ones")
    rows = splits.tolist() if hasattr(splits, "tolist") else list(splits)
    whole = [not isinstance(n, bool) and hasattr(n, "__index__") and operator.index(n) >= 0 for n in rows]
    if not all(whole):
        raise ValueError(f"alltoall expects splits of integers that are not negative, not {rows!r}")
    return [operator.index(n) for n in rows]
