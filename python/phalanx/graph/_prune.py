"""The part of a program that is fetched, for ``use_prune``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from phalanx.graph import _feed, _ragged
from phalanx.graph._forms import Group
from phalanx.graph.errors import FetchError
from phalanx.graph.program import Operator, Program

MOST = 16
"""The number of parts of one program that are cached; the oldest is dropped first."""


def _is_update(one: Any) -> bool:
    """Whether it is what ``minimize`` has given, updates and parameters with gradients, or only the updates."""
    if isinstance(one, tuple) and len(one) == 2 and all(isinstance(part, list) for part in one):
        return all(isinstance(op, Operator) for op in one[0])
    return isinstance(one, Operator) or (
        isinstance(one, list) and bool(one) and all(isinstance(op, Operator) for op in one)
    )


def _updates(one: Any) -> list[Operator]:
    found = [one] if isinstance(one, Operator) else one if isinstance(one, list) else one[0]
    return list(found)


def split(fetch_list: Any) -> tuple[Any, list[Operator] | None]:
    """What is to be fetched, and the updates among it, if there are any.

    >>> fetched, updates = split(["loss", ([Operator("sgd", "Sgd", "Optimize", ["w", "g"], ["w"], "a.py:1")], [])])
    >>> fetched, updates[0].outputs
    (['loss'], ['w'])
    """
    if _is_update(fetch_list):
        fetch_list = [fetch_list]
    if not isinstance(fetch_list, (list, tuple)) or isinstance(fetch_list, _feed.Fetch):
        return fetch_list, None
    updates = [one for one in fetch_list if _is_update(one)]
    if not updates:
        return fetch_list, None
    written = [op for one in updates for op in _updates(one)]
    return [one for one in fetch_list if not _is_update(one)], written


def targets(program: Program, fetch_list: Any, updates: list[Operator] | None) -> tuple[str, ...]:
    """What is wanted, in one form. Of what updates write, only what lives in the scope."""
    wanted = [name for name, _ in _feed.fetches(fetch_list, True)]
    _feed.check_fetched(program, wanted)
    for name in dict.fromkeys(name for op in updates or () for name in op.outputs):
        found = program._graph.var(name)
        if found is not None and found[2] in ("parameter", "state"):
            _check_alone(program, name, updates or [])
            wanted.append(name)
    if not wanted:
        raise FetchError("use_prune keeps only what fetch_list needs, but fetch_list is empty")
    return tuple(sorted(set(wanted)))


def _check_alone(program: Program, name: str, updates: list[Operator]) -> None:
    """What a part keeps is found by what it writes, so it cannot leave out another optimizer of the same variable."""
    for op in program.global_block().ops:
        if op.role == "Optimize" and name in op.outputs and op not in updates:
            raise FetchError(
                f"`{name}` is also updated at {op.site}, and one update cannot run without the other; fetch "
                "both, or write a program for each",
                var=name,
            )


def needed(part: Program, whole: Program, feed: Any) -> Any:
    """What is fed, without what only the rest of the program needs. Names of neither are for others to refuse."""
    if isinstance(feed, (list, tuple)):
        parts = [needed(part, whole, one) for one in feed]
        return Group(feed.places, parts) if isinstance(feed, Group) else parts
    if not isinstance(feed, Mapping):
        return feed

    def stays(name: Any) -> bool:
        if not isinstance(name, str):
            return True
        return part._graph.var(name) is not None or whole._graph.var(name) is None

    # Lengths that the part does not need still say whether sequences go together.
    given = _ragged.padded(whole, feed)
    _ragged.check_alike(whole, given)
    return {name: value for name, value in given.items() if stays(name)}


class Parts:
    """Parts of programs by what they are for. One of a program that has grown since is made anew."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Program, tuple[int, dict[tuple[str, ...], Program]]] = WeakKeyDictionary()

    def part(self, program: Program, wanted: tuple[str, ...]) -> Program:
        """Only what these variables need."""
        version = program._graph.version
        known = self._made.get(program)
        if known is None or known[0] != version:
            known = (version, {})
            self._made[program] = known
        parts = known[1]
        if wanted not in parts:
            if len(parts) >= MOST:
                del parts[next(iter(parts))]
            parts[wanted] = program._with(program._graph.pruned(list(wanted)))
            # Loaders may still come.
            parts[wanted]._readers = program._readers
        parts[wanted].random_seed = program.random_seed
        return parts[wanted]

    def clear(self) -> None:
        """Lets go of all of them."""
        self._made.clear()
