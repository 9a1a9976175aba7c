"""Checks that all ranks have the same tensors, before a rank waits for a name that others never submit.

>>> import phalanx
>>> phalanx.init()
>>> Accord("model", lambda: ["weight [2, 1] float32"]).wait()

* PYACCORD-1: a rank submits nothing under its own names before it knows that all ranks have the same names.
* PYACCORD-2: the check is repeated after a shutdown and after a join: ranks that had no data took no part in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import NoReturn

from phalanx import _phalanx, _world
from phalanx.exceptions import MismatchError, PhalanxError
from phalanx.objects import gather_bytes
from phalanx.process_sets import ProcessSet, global_process_set, set_id

#: A rank's number, and a digest of what it has.
_RANK_BYTES, _ROW_BYTES = 4, 4 + 32

#: The age for which these were counted; how many questions each process set was asked in it.
_asked: tuple[int, dict[tuple[str, int], int]] = (-1, {})


class Accord:
    """One check: do all ranks of the set have the same lines? Each line describes a tensor; their order does not matter."""

    def __init__(
        self, what: str, lines: Callable[[], Sequence[str]], process_set: ProcessSet = global_process_set
    ) -> None:
        self._what, self._lines, self._set = what, lines, process_set
        self._age = -1
        self._question: tuple[str, list[str], _phalanx.Operation] | None = None

    def is_reached(self) -> bool:
        """Whether all ranks are known to have the same lines. Starts the check if needed, and does not wait."""
        if self._age == _world.age():
            return self._question is None or (self._question[2].poll() and self._judged())
        lines = sorted(self._lines())
        name = f"{self._what}.{_number(self._what, set_id(self._set))}"
        digest = hashlib.sha256("\n".join(lines).encode()).digest()
        row = _phalanx.place()[0].to_bytes(_RANK_BYTES, "little") + digest
        operation = _phalanx.submit("allgather", [row], name=name, process_set=set_id(self._set))
        self._question = (name, lines, operation)
        self._age = _world.age()
        return False

    def wait(self) -> None:
        """Waits until all ranks are known to have the same lines; :class:`MismatchError` on every rank if they do not."""
        if not self.is_reached():
            self._judged()

    def _judged(self) -> bool:
        assert self._question is not None, "is_reached() has asked"
        name, lines, operation = self._question
        try:
            arrays, _ = operation.wait()
        except PhalanxError:
            self._question, self._age = None, -1
            raise
        # Not before: who was interrupted waits for the same answer again.
        self._question = None
        answers = arrays[0].tobytes()
        rows = [answers[i : i + _ROW_BYTES] for i in range(0, len(answers), _ROW_BYTES)]
        if len({row[_RANK_BYTES:] for row in rows}) > 1:
            self._age = -1
            explain(self._what, name, lines, self._set)
        return True


def explain(what: str, name: str, lines: Sequence[str], process_set: ProcessSet) -> NoReturn:
    """Raises an error that says what differs. All ranks of the set call it once they know that they differ."""
    mine = json.dumps([_phalanx.place()[0], sorted(lines)]).encode() + b"\n"
    answers = gather_bytes(mine, f"{name}.difference", process_set).splitlines()
    have: dict[int, list[str]] = dict(json.loads(answer) for answer in answers)
    a, *others = sorted(have)
    b = next((rank for rank in others if have[rank] != have[a]), None)
    if b is None:
        raise MismatchError(
            f"{what}: ranks differed, but no longer do: look for code that changes it meanwhile", tensor=what
        )
    text = f"{what}: ranks differ: {_difference(a, have[a], b, have[b])}"
    raise MismatchError(f"{text}. Build and do the same on every rank.", ranks=(a, b), tensor=what)


def _number(what: str, set_number: int) -> int:
    """The number of this check in the set: ranks that do the same things count alike."""
    global _asked
    if _asked[0] != _world.age():
        _asked = (_world.age(), {})
    counts = _asked[1]
    counts[what, set_number] = counts.get((what, set_number), -1) + 1
    return counts[what, set_number]


def _difference(a: int, have_a: Sequence[str], b: int, have_b: Sequence[str]) -> str:
    """What one rank has and the other does not have: the first three of each.

    >>> _difference(0, ["x [1]", "y [2]"], 1, ["x [1]", "z [3]"])
    'rank 0 has y [2], which rank 1 does not have; rank 1 has z [3], which rank 0 does not have'
    """
    parts = []
    for mine, have, theirs, others in ((a, have_a, b, have_b), (b, have_b, a, have_a)):
        only = sorted(set(have) - set(others))
        if only:
            more = f" and {len(only) - 3} more" if len(only) > 3 else ""
            parts.append(f"rank {mine} has {', '.join(only[:3])}{more}, which rank {theirs} does not have")
    return "; ".join(parts)


__all__ = ["Accord", "explain"]
