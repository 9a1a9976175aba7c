"""Pads the sequences among the feeds, and adds their lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from phalanx.graph import lod
from phalanx.graph._forms import PerDevice, Replicate
from phalanx.graph._values import Array
from phalanx.graph.errors import FeedError
from phalanx.graph.program import Program, Variable


def named(feed: Mapping[Any, Any]) -> dict[Any, Any]:
    """By names, where variables may stand for them. What is neither is for others to refuse."""
    made: dict[Any, Any] = {}
    for key, value in feed.items():
        name = key.name if isinstance(key, Variable) else key
        if name in made:
            raise FeedError(f"`{name}` is fed twice, by name and as a variable; feed it once", var=name)
        made[name] = value
    return made


def padded(program: Program, feed: Mapping[Any, Any]) -> dict[Any, Any]:
    """By names, with sequences padded, and their lengths."""
    given = named(feed)
    made: dict[Any, Any] = {}
    for name, value in given.items():
        parts = value.values if isinstance(value, PerDevice) else [value]
        if not (isinstance(name, str) and parts and all(isinstance(p, (lod.LoDTensor, list, tuple)) for p in parts)):
            made[name] = value
        elif _is_ragged(program, name):
            if lod.lengths_of(name) in given:
                text = f"`{lod.lengths_of(name)}` is fed, but the sequences of `{name}` already have lengths"
                raise FeedError(f"{text}; feed `{name}` padded, or leave them out", var=lod.lengths_of(name))
            pairs = [_pad(program, name, part) for part in parts]
            both = [
                PerDevice([pair[k] for pair in pairs]) if isinstance(value, PerDevice) else pairs[0][k] for k in (0, 1)
            ]
            made[name], made[lod.lengths_of(name)] = both
        elif all(isinstance(part, lod.LoDTensor) and not part._lengths for part in parts):
            # Rows without lengths are an array.
            rows = [np.asarray(part) for part in parts]
            made[name] = PerDevice(rows) if isinstance(value, PerDevice) else rows[0]
        elif any(isinstance(part, lod.LoDTensor) for part in parts):
            raise FeedError(f"`{name}` is fed with sequences, but was not declared with lod_level=1", var=name)
        else:
            made[name] = value
    return made


def _is_ragged(program: Program, name: str) -> bool:
    return program._lengths.get(name) == lod.lengths_of(name)


def _pad(program: Program, name: str, value: Any) -> tuple[Array, Array]:
    var = program.var(name)
    sequences = value.sequences() if isinstance(value, lod.LoDTensor) else value
    return lod.pad(name, sequences, var.shape[1], var.shape[2:], var.dtype, var.site)


def check_alike(program: Program, feed: Mapping[Any, Any]) -> None:
    """Sequences that layers take together are equally long."""
    for a, b in sorted(program._alike):
        mine, other = _numbers(feed.get(a)), _numbers(feed.get(b))
        # Different numbers of sequences are found where samples are counted.
        if mine is None or other is None or mine.shape != other.shape or np.array_equal(mine, other):
            continue
        at = int(np.flatnonzero(mine != other)[0])
        first, second = a.removesuffix("@LENGTHS"), b.removesuffix("@LENGTHS")
        raise FeedError(
            f"sequence {at} of `{second}` has the length {other[at]}, and that of `{first}` {mine[at]}; "
            "layers take them together",
            var=second,
            wanted=str(mine[at]),
            got=str(other[at]),
        )


def _numbers(lengths: Any) -> Array | None:
    """Of all sequences, one device after the other."""
    whole = lengths.value if isinstance(lengths, Replicate) else lengths
    parts = whole.values if isinstance(whole, PerDevice) else [whole]
    if not parts or not all(hasattr(part, "__array__") for part in parts):
        return None
    arrays = [np.asarray(part) for part in parts]
    return np.concatenate(arrays) if all(each.ndim == 1 for each in arrays) else None
