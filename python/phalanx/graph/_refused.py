"""Arguments that cannot act are refused by name, with what to write instead."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phalanx.graph.errors import ProgramError

IN_PLACE = "variables are not written in place: leave it out and take what the layer returns"


def refuse(op: str, remedy: str, **given: Any) -> None:
    """Refuses arguments that are given.

    >>> refuse("equal", IN_PLACE, cond=None)
    >>> refuse("uniform_random", "leave it out", seed=7)
    Traceback (most recent call last):
    phalanx.graph.errors.ProgramError: uniform_random: seed=7 is not supported: leave it out
    """
    for name, value in given.items():
        if value is not None:
            raise ProgramError(f"{op}: {name}={value!r} is not supported: {remedy}", op=op, got=repr(value))


def whole(op: str, name: str, value: Any) -> int:
    """A whole number; a fraction or a text is not rounded or read.

    >>> whole("fc", "size", 64.0)
    64
    >>> whole("fc", "size", 2.7)
    Traceback (most recent call last):
    phalanx.graph.errors.ProgramError: fc: size=2.7 must be a whole number
    """
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or int(value) != value:
        known = f"`{value.name}`, which is known only in a run; it" if hasattr(value, "program") else f"{value!r}"
        raise ProgramError(f"{op}: {name}={known} must be a whole number", op=op, got=repr(value))
    return int(value)


def number(
    op: str,
    name: str,
    value: Any,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> float:
    """A finite number within limits.

    >>> number("elu", "alpha", 1), number("elu", "alpha", np.array([0.5]))
    (1.0, 0.5)
    >>> number("batch_norm", "momentum", 2.0, least=0.0, most=1.0)
    Traceback (most recent call last):
    phalanx.graph.errors.ProgramError: batch_norm: momentum=2.0 must be at least 0 and at most 1
    >>> number("elu", "alpha", "1")
    Traceback (most recent call last):
    phalanx.graph.errors.ProgramError: elu: alpha='1' must be a finite number
    """
    if isinstance(value, (np.ndarray, np.generic)) and value.size == 1:
        value = value.item()
    known = f"`{value.name}`, which is known only in a run; it" if hasattr(value, "program") else f"{value!r}"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ProgramError(f"{op}: {name}={known} must be a finite number", op=op, got=repr(value))
    if not (least <= value <= most and above < value < below):
        limits = {"at least": least, "more than": above, "at most": most, "less than": below}
        text = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
        raise ProgramError(f"{op}: {name}={known} must be {text}", op=op, got=repr(value))
    return float(value)


def wholes(op: str, name: str, values: Any) -> list[int]:
    """Several of them.

    >>> wholes("transpose", "perm", 1)
    Traceback (most recent call last):
    phalanx.graph.errors.ProgramError: transpose: perm=1 must be a list of whole numbers
    """
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ProgramError(f"{op}: {name}={values!r} must be a list of whole numbers", op=op, got=repr(values))
    return [whole(op, name, value) for value in values]
