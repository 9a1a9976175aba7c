"""Arguments that every interface checks in the same way.

>>> checked_op("sum")
Traceback (most recent call last):
    ...
ValueError: op must be one of Average, Sum, Adasum, Min, Max, Product, not 'sum'
>>> checked_splits([1, -1])
Traceback (most recent call last):
    ...
ValueError: splits must be whole numbers from 0, the rows for each rank, not [1, -1]
"""

from __future__ import annotations

import operator
from typing import Any

from phalanx import _phalanx
from phalanx.process_sets import ProcessSet, set_id

_REDUCTIONS = ["Average", "Sum", "Adasum", "Min", "Max", "Product"]


def checked_op(op: Any) -> int:
    """The number of a reduction."""
    if isinstance(op, bool) or not hasattr(op, "__index__") or operator.index(op) not in range(len(_REDUCTIONS)):
        raise ValueError(f"op must be one of {', '.join(_REDUCTIONS)}, not {op!r}")
    return operator.index(op)


def checked_passes(passes: Any) -> int:
    """A number of backward passes."""
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step must be a whole number > 0, not {passes!r}")
    return passes


def checked_root(root_rank: Any, process_set: ProcessSet) -> int:
    """A rank of the world that is in the set."""
    set_id(process_set)
    _phalanx.place()
    ranks = process_set.ranks
    if isinstance(root_rank, bool) or not hasattr(root_rank, "__index__") or operator.index(root_rank) not in ranks:
        few = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        raise ValueError(f"root_rank must be one of the ranks {few}, not {root_rank!r}")
    return operator.index(root_rank)


def checked_member(process_set: ProcessSet) -> int:
    """The number of a process set that this rank is in."""
    id = set_id(process_set)
    if id and _phalanx.is_initialized():
        me = _phalanx.place()[0]
        if me not in process_set.ranks:
            raise ValueError(f"rank {me} is not in {process_set}: call this on the ranks of the set only")
    return id


def checked_splits(splits: Any) -> list[int] | None:
    """The number of rows for each rank: a list, an array or a tensor of integers of any width."""
    if splits is None:
        return None
    if getattr(splits, "ndim", 1) != 1:
        raise ValueError(f"splits must have one dimension, with one number for each rank, not {splits.ndim}")
    rows = splits.tolist() if hasattr(splits, "tolist") else list(splits)
    whole = [not isinstance(n, bool) and hasattr(n, "__index__") and operator.index(n) >= 0 for n in rows]
    if not all(whole):
        raise ValueError(f"splits must be whole numbers from 0, the rows for each rank, not {rows!r}")
    return [operator.index(n) for n in rows]
