"""Declares what is fed.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program()):
...     graph.data("label", [None, 1], "int64")
Variable('label', int64[-1, 1])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.graph import _attributes, _values
from phalanx.graph._adding import declare
from phalanx.graph._flags import longest
from phalanx.graph._refused import whole
from phalanx.graph._site import caller
from phalanx.graph.errors import ProgramError
from phalanx.graph.lod import LEVELS, lengths_of
from phalanx.graph.program import Variable, default_main_program


def data(
    name: str,
    shape: Sequence[int | None],
    dtype: Any = "float32",
    lod_level: int = 0,
    *,
    max_length: int | None = None,
    stop_gradient: bool = True,
) -> Variable:
    """Declares a variable that is fed in every run; ``None`` or ``-1`` is the batch.

    With ``stop_gradient=False`` its gradient is computed, too, and can be fetched as ``<name>@GRAD``.

    With ``lod_level=1`` it holds sequences of ``max_length`` at most, padded to ``[n, max_length, …]``; its
    ``lengths`` are fed with it. Without ``max_length`` it is ``FLAGS_max_sequence_length``.
    """
    if lod_level not in (0, 1):
        raise ProgramError(f"`{name}`, lod_level={lod_level}: {LEVELS}", var=name)
    if lod_level == 0 and max_length is not None:
        raise ProgramError(f"`{name}`: max_length is for sequences; pass lod_level=1, too", var=name)
    check(name, shape)
    dims = [-1 if d is None else whole("data", f"shape of `{name}`", d) for d in shape]
    if any(d < -1 for d in dims):
        raise ProgramError(
            f"`{name}`: {list(shape)} has a negative dimension; only -1 or None, the batch, is allowed", var=name
        )
    if dims.count(-1) > 1:
        text = f"`{name}`: {list(shape)} has {dims.count(-1)} dimensions that are -1 or None"
        raise ProgramError(
            f"{text}; one batch dimension only: give the others a size, or lod_level=1 for sequences", var=name
        )
    if lod_level and max_length is None:
        max_length = longest(name)
    _attributes.check_flow(name, dtype, stop_gradient)
    known = default_main_program()._graph.var(name)
    if known is not None and known[2] == "feed":
        return _again(name, dims, dtype, lod_level, max_length, stop_gradient)
    made = (
        _sequences(name, dims, dtype, max_length)
        if lod_level
        else declare(default_main_program(), name, dtype, dims, "Feed")
    )
    if not stop_gradient:
        made.stop_gradient = False
    return made


def check(name: Any, shape: Any) -> None:
    """The two arguments that scripts forget or exchange."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"data: name={name!r} must be a text; the shape comes after it")
    if isinstance(shape, str) or not isinstance(shape, (list, tuple)):
        raise TypeError(f"data: shape={shape!r} of `{name}` must be a list of numbers; write [{shape}]")


def _again(
    name: str, dims: list[int], dtype: Any, lod_level: int, max_length: int | None, stop_gradient: bool
) -> Variable:
    """A feed that is declared a second time in the same way is the same one."""
    known = default_main_program().var(name)
    wants = [-1, max_length, *dims[1:]] if lod_level else dims
    same = (list(known.shape), known.dtype, known.lod_level) == (wants, _values.name(_values.code(dtype)), lod_level)
    if not same or known.stop_gradient != stop_gradient:
        at = "{}:{}".format(*caller())
        raise ProgramError(
            f"`{name}` at {at} is declared twice: {known.site} has declared it as {known!r}; declare it in the same "
            "way, or give one of them another name",
            var=name,
            site=at,
            wanted=repr(known),
            got=f"{_values.name(_values.code(dtype))}{wants}",
        )
    return known


def _sequences(name: str, dims: list[int], dtype: Any, max_length: int | None) -> Variable:
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
        text = f"`{name}`: sequences are padded here, so max_length is the length of the longest one, from 1"
        raise ProgramError(f"{text}; got {max_length!r}", var=name, got=repr(max_length))
    if not dims or dims[0] != -1 or -1 in dims[1:]:
        raise ProgramError(f"`{name}`: sequences have a shape [None, …] with one batch, not {dims}", var=name)
    main = default_main_program()
    declare(main, name, dtype, [-1, max_length, *dims[1:]], "Feed")
    declare(main, lengths_of(name), "int64", [-1], "Feed")
    main._lengths[name] = lengths_of(name)
    return main.var(name)


__all__ = ["data"]
