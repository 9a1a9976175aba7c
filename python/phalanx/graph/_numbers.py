"""Numbers for equal programs, so that ranks that run them in another order are told.

Two programs with the same text cannot be told apart by what they exchange. They belong together in the order in which each
rank has made them.
"""

from __future__ import annotations

import hashlib

from phalanx import _phalanx, _world
from phalanx.graph.program import Program

#: Compiled programs are numbered from here on, executors from 1.
COMPILED = 1 << 32

_made: dict[bytes, int] = {}
_age = -1


def number(program: Program, first: int = 1) -> int | None:
    """Which of this rank's equal programs this is; nothing for a rank alone."""
    global _age
    if not _phalanx.is_initialized() or _phalanx.place()[1] == 1:
        return None
    if _world.age() != _age:
        # Ranks that joined later count from here, too.
        _made.clear()
        _age = _world.age()
    key = hashlib.sha256(f"{first}\n{program}".encode()).digest()
    n = _made.get(key, 0)
    _made[key] = n + 1
    return first + n


def described(number: int | None) -> str:
    """As a line that ranks compare.

    >>> described(2)
    'executor 2 of equal programs, in the order in which they were made'
    >>> described(COMPILED)
    'compiled program 1 of equal programs, in the order in which they were made'
    """
    if number is None:
        return ""
    what = f"executor {number}" if number < COMPILED else f"compiled program {number - COMPILED + 1}"
    return f"{what} of equal programs, in the order in which they were made"
