"""Converts what users feed and fetch into one form. Invalid values are refused here, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from phalanx.graph import _ragged, _values, lod
from phalanx.graph._forms import Group, PerDevice, Replicate
from phalanx.graph._taken import Taken
from phalanx.graph._values import Array, Lent
from phalanx.graph.errors import FeedError, FeedTypeError, FetchError, GraphError
from phalanx.graph.layers.learning_rate import LearningRate
from phalanx.graph.program import Operator, Program, Variable

TYPES = ("bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
MOST_SHOWN = 12
MERGES = ("concat", "unmerged", "mean", "sum", "first")


class Fetch(NamedTuple):
    """A variable to fetch, and how the values of devices become one: one of :data:`MERGES`."""

    var: Variable | LearningRate | str
    merge: str = "concat"


Feeds = list[tuple[str, str, list[Lent]]]


def _array(program: Program, name: str, value: Any) -> Array:
    """The value as an array; scalars of Python's take the variable's type."""
    found = program._graph.var(name)
    wanted = None if found is None else f"{_values.name(found[0])}{list(found[1])}"
    if isinstance(value, (bool, int, float)):
        if found is None:
            unknown = FeedError(f"`{name}` is fed, but the program has no feed of that name", var=name)
            raise explained(program, unknown)
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
    if isinstance(value, np.ndarray | np.generic) or (hasattr(value, "__array__") and not isinstance(value, Variable)):
        array = np.asarray(value)
        if found is not None:
            array = _values.as_wanted(array, _values.name(found[0]), found[1])
        if array.dtype.name not in TYPES:
            text = f"`{name}` wants {wanted}, got an array of {array.dtype}"
            hint = "" if found is None else f"; {_remedy(name, _values.name(found[0]))}"
            raise FeedTypeError(text + hint, var=name, wanted=wanted, got=str(array.dtype))
        return array
    got = type(value).__name__
    hint = "; make it one with numpy.asarray(value, dtype)" if isinstance(value, (list, tuple)) else ""
    raise FeedTypeError(f"`{name}` wants an array of {wanted}, got a {got}{hint}", var=name, wanted=wanted, got=got)


def _convert(name: str, dtype: str) -> str:
    return f'feed `{name}` as array.astype("{dtype}")'


def _remedy(name: str, dtype: str) -> str:
    """What to do about an array whose type cannot be fed."""
    if dtype == "bfloat16":
        return f"numpy has no bfloat16: declare `{name}` as float32 or float16"
    return _convert(name, dtype)


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


def from_readers(program: Program, feed: Any, devices: int, taken: Taken) -> Any:
    """What is fed, and the next batches of readers that are not iterated over. One whose variables are fed is left."""
    if not (feed is None or isinstance(feed, Mapping)):
        return feed
    given = _ragged.named(feed or {})
    made: dict[Any, Any] = {}
    for reader in program._readers:
        # A part of a program may do without some of them, or all.
        wanted = [name for name in reader._names if program._graph.var(name) is not None]
        fed = [name for name in wanted if name in given]
        if len(fed) == len(wanted):
            continue
        if fed:
            rest = ", ".join(name for name in wanted if name not in given)
            raise FeedError(
                f"`{fed[0]}` is fed, but a loader gives it together with {rest}; feed all or none", var=fed[0]
            )
        batches = _filled(program, taken.take(reader, devices), devices)
        for name in batches[0]:
            if program._graph.var(name) is None:
                continue
            made[name] = PerDevice([each[name] for each in batches]) if devices > 1 else batches[0][name]
    return {**given, **made} if made else feed


def _filled(program: Program, batches: Sequence[Any], devices: int) -> list[Any]:
    """With dicts that have no samples for devices that are to be idle."""
    missing = devices - len(batches)
    if missing == 0:
        return list(batches)
    given = [_ragged.padded(program, each) for each in batches]
    known = [name for name in given[-1] if isinstance(name, str) and program._graph.var(name) is not None]
    if known and all(_batch_axis(program, name) is None for name in known):
        raise FeedError(
            f"feed: {len(given)} of {devices} devices are fed, but `{known[0]}` has a fixed batch, so that the others "
            "cannot be fed nothing; pass a dict for each device, or declare it with a batch of None",
            var=known[0],
        )
    idle = {name: _nothing(program, name, value) for name, value in given[-1].items()}
    return [*given, *[idle] * missing]


def _batch_axis(program: Program, name: str) -> int | None:
    found = program._graph.var(name)
    return next((i for i, d in enumerate(found[1]) if d < 0), None) if found is not None else None


def _nothing(program: Program, name: str, value: Any) -> Any:
    axis = _batch_axis(program, name)
    if axis is None or not hasattr(value, "__array__"):
        return value
    # Not `value.shape`: tensors that are no arrays yet have a method of that name.
    array = np.asarray(value)
    return np.take(array, np.empty(0, int), axis=axis) if axis < array.ndim else value


def in_pieces(program: Program, fed: Feeds, devices: int, pieces: int) -> Feeds:
    """With what each device is given cut into pieces, which it takes one after the other."""
    made: Feeds = []
    for name, kind, lent in fed:
        if kind == "each" and len(lent) == devices and pieces > 1:
            lent = [_values.lend(part) for *_, whole in lent for part in _cut(program, name, whole, pieces)]
        made.append((name, kind, lent))
    return made


def _cut(program: Program, name: str, whole: Array, pieces: int) -> list[Array]:
    axis = _batch_axis(program, name)
    if axis is None or axis >= whole.ndim:
        return [whole] * pieces
    # A sample may have several rows.
    rows = -program.var(name).shape[axis]
    shares = np.array_split(np.arange(whole.shape[axis] // rows), pieces)
    ends = np.cumsum([len(share) * rows for share in shares])[:-1]
    return list(np.split(whole, ends, axis=axis))


def feeds(program: Program, feed: Any, feed_dict: Any = None, devices: int = 1, *, taken: Taken | None = None) -> Feeds:
    """A dict that is split, or a list with a dict for each device; what loaders give is noted in ``taken``."""
    if taken is None:
        with Taken() as taken:
            return feeds(program, feed, feed_dict, devices, taken=taken)
    if feed is not None and feed_dict is not None:
        raise FeedError("feed and feed_dict are the same argument; pass one of them")
    given = from_readers(program, feed if feed is not None else feed_dict, devices, taken)
    if isinstance(given, Group) and given.places == 1 and len(given) == 1:
        given = given[0]
    elif isinstance(given, Group) and given.places == devices and 0 < len(given) < devices:
        given = _filled(program, given, devices)
    if given is None:
        return []
    if isinstance(given, Mapping):
        given = _ragged.padded(program, given)
        _ragged.check_alike(program, given)
        return [_one(program, name, _shares(program, name, value, devices)) for name, value in given.items()]
    if isinstance(given, (list, tuple)):
        listed = list(given)
        if (
            not isinstance(given, Group)
            and 0 < len(listed) < devices
            and all(isinstance(each, Mapping) for each in listed)
        ):
            listed = _filled(program, listed, devices)
        return _each(program, listed)
    raise FeedTypeError(f"feed must be a dict, or a list with a dict for each device, not a {type(given).__name__}")


def _shares(program: Program, name: Any, value: Any, devices: int) -> Any:
    """What is declared with a fixed batch, and fed with a larger or smaller one, in a part for each device.

    Where sizes are checked, the batch is one for each device.
    """
    found = program._graph.var(name) if isinstance(name, str) and devices > 1 else None
    if found is None or found[2] != "feed" or not isinstance(value, np.ndarray) or not found[1]:
        return value
    wants, shape = list(found[1]), list(value.shape)
    if min(wants) <= 0 or len(shape) != len(wants) or shape == wants:
        return value
    if name in program._unchecked and shape[0] > 0 and shape[0] % devices == 0:
        return PerDevice(np.split(value, devices))
    return PerDevice(np.split(value, devices)) if shape == [devices * wants[0], *wants[1:]] else value


def _each(program: Program, given: list[Any]) -> Feeds:
    dicts = [_ragged.padded(program, each) if isinstance(each, Mapping) else each for each in given]
    for i, each in enumerate(dicts):
        if not isinstance(each, Mapping):
            raise FeedTypeError(f"feed: element {i} of the list is a {type(each).__name__}, not a dict", replica=i)
        if each.keys() != dicts[0].keys():
            odd = sorted(str(name) for name in each.keys() ^ dicts[0].keys())
            raise FeedError(
                f"feed: devices 0 and {i} are fed different variables: {', '.join(odd)}", var=odd[0], replica=i
            )
        _ragged.check_alike(program, each)
    if not dicts:
        raise FeedError("feed: the list is empty; pass a dict for each device")
    return [_one(program, name, PerDevice([each[name] for each in dicts])) for name in dicts[0]]


def fetches(fetch_list: Any, return_merged: bool) -> list[tuple[str, str]]:
    """Names, each with the way to merge it."""
    if fetch_list is None:
        return []
    if isinstance(fetch_list, (str, Variable, Fetch)):
        fetch_list = [fetch_list]
    if not isinstance(fetch_list, (list, tuple)):
        raise TypeError(f"fetch_list must be a list of variables or names, not a {type(fetch_list).__name__}")
    return [_fetch(one, return_merged) for one in fetch_list]


def _fetch(one: Any, return_merged: bool) -> tuple[str, str]:
    merge = "concat" if return_merged else "unmerged"
    if isinstance(one, Fetch):
        one, merge = one.var, one.merge
        if merge not in MERGES:
            raise FetchError(f"values cannot be merged by {merge!r}; choose one of {', '.join(MERGES)}")
    if isinstance(one, (Variable, LearningRate)):
        return one.name, merge
    if isinstance(one, str):
        return one, merge
    if isinstance(one, Operator) or (isinstance(one, (list, tuple)) and one and isinstance(one[0], (Operator, list))):
        raise TypeError(
            "what minimize() returns can be fetched only with Executor.run; a ParallelExecutor runs all updates anyway"
        )
    raise TypeError(f"only variables and names can be fetched, not a {type(one).__name__}")


def check_fetched(program: Program, names: Iterable[str]) -> None:
    """Checks that all of these exist, before a batch is taken from a loader."""
    for name in names:
        if program._graph.var(name) is None:
            unknown = FetchError(f"`{name}` is fetched, but the program has no variable of that name", var=name)
            raise explained(program, unknown)


def explained(program: Program, why: GraphError) -> GraphError:
    """Adds what to do about it, if a name is wrong."""
    hint = _hint(program, why)
    if hint is None:
        return why
    made = type(why)(f"{why}; {hint}", var=why.var, op=why.op, site=why.site, wanted=why.wanted, got=why.got)
    made.replica = why.replica
    return made


def _hint(program: Program, why: GraphError) -> str | None:
    if why.var is None:
        return None
    of = why.var.removesuffix(lod.lengths_of(""))
    if of != why.var and why.got == "nothing":
        return f"feed `{of}` as a list of sequences, or as a LoDTensor, or its lengths too"
    if isinstance(why, FetchError) and why.var in program._inside:
        where = program._inside[why.var]
        return f"it exists only inside the {where}: return it from the function there, and fetch the result"
    found = program._graph.var(why.var)
    if found is not None:
        return _hint_of_known(program, why, _values.name(found[0]))
    earlier = _copied(program, why.var)
    if earlier is not None:
        return earlier
    is_feed = isinstance(why, FeedError)
    known = [name for name, kind in program._graph.vars() if not is_feed or kind in ("feed", "parameter", "state")]
    near = get_close_matches(why.var, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    shown = [name for name, kind in program._graph.vars() if kind == "feed" or not is_feed]
    if not shown:
        return "nothing was written into this program: run the one that layers were written into"
    return f"there are {', '.join(shown[:MOST_SHOWN])}{' and more' if len(shown) > MOST_SHOWN else ''}"


def _hint_of_known(program: Program, why: GraphError, dtype: str) -> str | None:
    name = str(why.var)
    if not isinstance(why, FeedError) or why.wanted is None or why.got is None:
        return None
    if why.got == "nothing":
        return _other_loader(program, name)
    # Both are a type and a shape.
    is_type = why.wanted.partition("[")[0] != why.got.partition("[")[0] and "[" in why.got
    if not is_type and name in program._lengths and program.var(name).is_data:
        return f"feed `{name}` as a list of sequences, or as a LoDTensor; an array is padded already, and needs its lengths"
    if not is_type and name in program._unchecked:
        return (
            "other sizes are split where each device gets as many rows, and ranks take only those that are declared; "
            "declare the batch as None"
        )
    return _convert(name, dtype) if is_type else None


def _origins(program: Program) -> Iterator[tuple[Program, str]]:
    """The programs that this one was copied from, and what for, the last one first."""
    origin = program._origin
    while origin is not None:
        earlier = origin[0]()
        if earlier is None:
            return
        yield earlier, origin[1]
        origin = earlier._origin


def _copied(program: Program, name: str) -> str | None:
    """What a variable lacks that is in the program as it is now, but not in its copy."""
    for earlier, what in _origins(program):
        if earlier._graph.var(name) is None:
            continue
        if what == "executor":
            return "it was added after the executor was made; make the executor after it"
        return "only the program that was cloned has it: it was added after clone(), or is only for training"
    return None


def _other_loader(program: Program, name: str) -> str | None:
    for earlier, _ in _origins(program):
        for reader in earlier._readers:
            if name in reader._names and reader._running is not None and reader not in program._readers:
                return (
                    "a loader that was started gives it, but belongs to the program that this one was cloned from: "
                    "make the loader before clone(), or another one, or feed it"
                )
    return None


__all__ = ["Fetch", "Group", "PerDevice", "Replicate"]
