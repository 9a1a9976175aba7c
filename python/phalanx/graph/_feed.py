"""What users feed and fetch, in one form. What has no form is refused here, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phalanx.graph import _values
from phalanx.graph._values import Array, Lent
from phalanx.graph.errors import FeedError, FeedTypeError, FetchError
from phalanx.graph.program import Program, Variable


class Replicate:
    """Feeds all of a value to every device, where it would be split."""

    def __init__(self, value: Any) -> None:
        self.value = value


class PerDevice:
    """Feeds each device a value of its own; one without samples leaves its device idle."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)


TYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float32", "float64")
MERGES = ("concat", "unmerged", "mean", "sum", "first")


class Fetch(NamedTuple):
    """A variable to fetch, and how the values of devices become one: one of :data:`MERGES`."""

    var: Variable | str
    merge: str = "concat"


Feeds = list[tuple[str, str, list[Lent]]]


def _array(program: Program, name: str, value: Any) -> Array:
    """The value as an array; scalars of Python's take the variable's type."""
    found = program._graph.var(name)
    wanted = None if found is None else f"{_values.name(found[0])}{list(found[1])}"
    if isinstance(value, (bool, int, float)):
        if found is None:
            raise FeedError(f"`{name}` is fed, but the program has no such feed", var=name)
        dtype = np.dtype(_values.name(found[0]))
        if dtype.kind in "iu" and isinstance(value, float):
            text = f"`{name}` wants {wanted} (declared at {found[3]}), got the fraction {value!r}"
            raise FeedTypeError(text, var=name, wanted=wanted, got=repr(value), site=found[3])
        try:
            array = np.asarray(value, dtype)
        except OverflowError:
            text = f"`{name}` wants {wanted} (declared at {found[3]}), which cannot hold {value!r}"
            raise FeedTypeError(text, var=name, wanted=wanted, got=repr(value), site=found[3]) from None
        return array.reshape(found[1]) if all(d == 1 for d in found[1]) else array
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        array = np.asarray(value)
        is_one = found is not None and array.size == 1 and all(d == 1 for d in found[1])
        if array.dtype.name not in TYPES:
            raise FeedTypeError(f"`{name}` wants {wanted}, got an array of {array.dtype}", var=name, wanted=wanted)
        return array.reshape(found[1]) if is_one and found is not None else array
    got = type(value).__name__
    hint = "; make it one with numpy.asarray(value, dtype)" if isinstance(value, (list, tuple)) else ""
    raise FeedTypeError(f"`{name}` wants an array of {wanted}, got a {got}{hint}", var=name, wanted=wanted, got=got)


def _one(program: Program, name: Any, value: Any) -> tuple[str, str, list[Lent]]:
    if isinstance(name, Variable):
        name = name.name
    if not isinstance(name, str):
        raise FeedTypeError(f"feeds are named by strings or variables, not by {name!r}")
    if isinstance(value, PerDevice):
        return name, "each", [_values.lend(_array(program, name, each)) for each in value.values]
    kind = "replicate" if isinstance(value, Replicate) else "split"
    inner = value.value if isinstance(value, Replicate) else value
    return name, kind, [_values.lend(_array(program, name, inner))]


def feeds(program: Program, feed: Any, feed_dict: Any = None) -> Feeds:
    """A dict that is split, or a list with a dict for each device."""
    if feed is not None and feed_dict is not None:
        raise FeedError("feed and feed_dict are the same thing under two names; give one")
    given = feed if feed is not None else feed_dict
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [_one(program, name, value) for name, value in given.items()]
    if isinstance(given, (list, tuple)):
        return _each(program, list(given))
    raise FeedTypeError(f"feed is a dict, or a list with a dict for each device, not a {type(given).__name__}")


def _each(program: Program, dicts: list[Any]) -> Feeds:
    for i, each in enumerate(dicts):
        if not isinstance(each, Mapping):
            raise FeedTypeError(f"feed: element {i} of the list is a {type(each).__name__}, not a dict", replica=i)
        if each.keys() != dicts[0].keys():
            odd = sorted(str(name) for name in each.keys() ^ dicts[0].keys())
            raise FeedError(
                f"feed: devices 0 and {i} are fed different variables: {', '.join(odd)}", var=odd[0], replica=i
            )
    if not dicts:
        raise FeedError("feed: the list is empty; a dict for each device is needed")
    return [_one(program, name, PerDevice([each[name] for each in dicts])) for name in dicts[0]]


def fetches(fetch_list: Any, return_merged: bool) -> list[tuple[str, str]]:
    """Names, each with the way to merge it."""
    if fetch_list is None:
        return []
    if isinstance(fetch_list, (str, Variable, Fetch)):
        fetch_list = [fetch_list]
    if not isinstance(fetch_list, (list, tuple)):
        raise TypeError(f"fetch_list is a list of variables or names, not a {type(fetch_list).__name__}")
    return [_fetch(one, return_merged) for one in fetch_list]


def _fetch(one: Any, return_merged: bool) -> tuple[str, str]:
    merge = "concat" if return_merged else "unmerged"
    if isinstance(one, Fetch):
        one, merge = one.var, one.merge
        if merge not in MERGES:
            raise FetchError(f"values cannot be merged by {merge!r}; there are {', '.join(MERGES)}")
    if isinstance(one, Variable):
        return one.name, merge
    if isinstance(one, str):
        return one, merge
    raise TypeError(f"variables and names can be fetched, not a {type(one).__name__}")
