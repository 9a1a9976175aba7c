"""Programs for feeds of other sizes than they declare, where ``layers.data`` says that sizes are not checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from phalanx.graph.errors import FeedError, ProgramError
from phalanx.graph.program import Program

_MOST = 8


class Fitted:
    """The programs that were made for other sizes, the last of each program."""

    def __init__(self) -> None:
        # Each with the version that they were made of.
        self._known: WeakKeyDictionary[Program, tuple[int, dict[Any, Program]]] = WeakKeyDictionary()

    def program(self, program: Program, fed: Iterable[tuple[str, Sequence[int]]]) -> Program:
        """The program for what one device is fed: itself, if it declares these sizes."""
        others = []
        for name, shape in fed:
            found = program._graph.var(name) if name in program._unchecked else None
            if found is not None and len(shape) == len(found[1]) and list(shape) != list(found[1]):
                others.append((name, list(shape)))
        if not others:
            return program
        version, known = self._known.get(program, (-1, {}))
        if version != program._graph.version:
            known = {}
        key = tuple((name, tuple(shape)) for name, shape in others)
        if key not in known:
            if len(known) == _MOST:
                known.pop(next(iter(known)))
            try:
                known[key] = _refitted(program, others)
            except ProgramError as why:
                name, shape = others[0]
                declared = program.var(name)
                raise FeedError(
                    f"`{name}` is {declared!r} (declared at {declared.site}) and is fed {shape}, which the program does "
                    f"not fit: {why}",
                    var=name,
                    site=declared.site,
                    wanted=f"{declared.dtype}{list(declared.shape)}",
                    got=f"{declared.dtype}{shape}",
                ) from None
            self._known[program] = program._graph.version, known
        known[key].random_seed = program.random_seed
        return known[key]

    def clear(self) -> None:
        """Frees them."""
        self._known.clear()


def _refitted(program: Program, feeds: list[tuple[str, list[int]]]) -> Program:
    """The program for feeds of other sizes, if no layer made a number of a size that is another one now."""
    fitted = program._with(program._graph.refit(feeds))
    for name, axis in sorted(program._measured):
        before, now = program._graph.var(name), fitted._graph.var(name)
        if before is not None and now is not None and before[1][axis] != now[1][axis]:
            raise ProgramError(
                f"a layer took the size of `{name}` for a number when it was added: it was {list(before[1])} and would be "
                f"{list(now[1])}; declare the feed with the size that is fed",
                var=name,
            )
    return fitted
