"""States of objects as plain values, which a checkpoint holds without pickling.

>>> form = hollow({0: (1 << 64, float("inf")), "text": [None, True]}, "state")
>>> form
{'$dict': [[0, {'$tuple': [{'$int': '18446744073709551616'}, {'$float': 'inf'}]}], ['text', [None, True]]]}
>>> filled(form, {})
{0: (18446744073709551616, inf), 'text': [None, True]}
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

#: The form of a value that is not plain; ``None`` if it has none.
Leaf = Callable[[Any, str], Any]
PLAIN = "numbers, texts, lists, tuples and dicts"


def hollow(value: Any, name: str, leaf: Leaf | None = None, known: str = PLAIN) -> Any:
    """The value as JSON from which :func:`filled` makes it again. What does not survive that is refused by its name."""
    form = None if leaf is None else leaf(value, name)
    if form is not None:
        return form
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 64 else {"$int": str(int(value))}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, Mapping):
        items = [(key, hollow(one, f"{name}.{key}", leaf, known)) for key, one in value.items()]
        return _hollow_dict(items, name)
    if isinstance(value, (list, tuple)):
        each = [hollow(one, f"{name}.{i}", leaf, known) for i, one in enumerate(value)]
        return each if isinstance(value, list) else {"$tuple": each}
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return hollow(value.item(), name, leaf, known)
    raise TypeError(f"{name} cannot be saved: it is a {type(value).__name__}; only {known} can")


def _hollow_dict(items: list[tuple[Any, Any]], name: str) -> Any:
    odd = next((key for key, _ in items if not isinstance(key, (str, int)) or isinstance(key, bool)), None)
    if odd is not None:
        raise TypeError(f"{name} cannot be saved: a dict's keys must be texts or numbers, not {odd!r}")
    if all(isinstance(key, str) and not key.startswith("$") for key, _ in items):
        return dict(items)
    return {"$dict": [[hollow(key, name), one] for key, one in items]}


def filled(form: Any, tensors: Mapping[str, Any]) -> Any:
    """The value of which :func:`hollow` made this."""
    if isinstance(form, list):
        return [filled(one, tensors) for one in form]
    if not isinstance(form, dict):
        return form
    if len(form) == 1:
        ((kind, inner),) = form.items()
        if kind == "$tensor":
            return tensors[inner]
        if kind == "$dict":
            return {filled(key, tensors): filled(one, tensors) for key, one in inner}
        if kind == "$tuple":
            return tuple(filled(one, tensors) for one in inner)
        if kind in ("$int", "$float"):
            return int(inner) if kind == "$int" else float(inner)
    return {key: filled(one, tensors) for key, one in form.items()}


def digest(form: Any) -> str:
    """Equal for equal forms."""
    return hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()


__all__ = ["digest", "filled", "hollow"]
