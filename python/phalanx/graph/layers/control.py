"""Loops and branches. Their functions may use any variable of the program.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     i = graph.layers.fill_constant([1], "int64", 0)
...     limit = graph.layers.fill_constant([1], "int64", 10)
...     last, = graph.layers.while_loop(
...         lambda i: graph.layers.less_than(i, limit),
...         lambda i: graph.layers.increment(i, 3, in_place=False),
...         [i], maximum_trip_count=10)
...     last.shape, last.dtype
((1,), 'int64')
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from phalanx.graph._site import caller
from phalanx.graph.errors import ProgramError
from phalanx.graph.program import Program, Variable, _program_of, append, hand_on, program_guard


def while_loop(
    cond: Callable[..., Variable],
    body: Callable[..., Any],
    loop_vars: Sequence[Variable],
    is_test: bool = False,
    name: str | None = None,
    *,
    maximum_trip_count: int,
) -> list[Variable]:
    """Repeats ``body``, which makes the next values from ``loop_vars``, as long as ``cond`` says so of them.

    Gives the last values. A run that would take more than ``maximum_trip_count`` rounds fails with an
    :class:`~phalanx.graph.errors.OpError`: what rounds begin with is kept for the gradients, so the program must know how
    many there can be.
    """
    if not loop_vars or not callable(cond) or not callable(body):
        raise TypeError("while_loop takes two functions and at least one variable")
    if maximum_trip_count < 1:
        raise ProgramError(f"while_loop: maximum_trip_count is {maximum_trip_count}, wants at least 1", op="while")
    program, at = _program_of(loop_vars, "while_loop"), caller()
    with _writing(program):
        first = [_one(cond(*loop_vars), program, "cond"), *loop_vars]
        begin = program._graph.n_ops
        given = program._graph.placeholders(_names(first), at)
        for x, inside in zip(first, given, strict=True):
            hand_on(program, [x], program.var(inside))
        following = _listed(body(*(program.var(v) for v in given[1:])), program, "body")
        if len(following) != len(loop_vars):
            raise ProgramError(
                f"while_loop at {at[0]}:{at[1]}: body gives {len(following)} values, wants {len(loop_vars)}",
                op="while",
                site=f"{at[0]}:{at[1]}",
                wanted=str(len(loop_vars)),
                got=str(len(following)),
            )
        gives = [_one(cond(*following), program, "cond"), *following]
        made = program._graph.append_loop(begin, maximum_trip_count, _names(first), given, _names(gives), at)
        outputs = [program.var(v) for v in made]
        for y, begun, ended in zip(outputs, loop_vars, following, strict=True):
            hand_on(program, [begun, ended], y)
    return outputs


def cond(
    pred: Variable, true_fn: Callable[[], Any], false_fn: Callable[[], Any], name: str | None = None
) -> Variable | list[Variable]:
    """What ``true_fn`` gives where ``pred`` holds, else what ``false_fn`` gives; only that one runs.

    >>> from phalanx import graph
    >>> with graph.program_guard(graph.Program(), graph.Program()):
    ...     x = graph.data("x", [None, 4])
    ...     small = graph.layers.less_than(graph.layers.mean(x), graph.layers.fill_constant([], "float32", 0.5))
    ...     graph.layers.cond(small, lambda: x * 2.0, lambda: x).shape
    (-1, 4)
    """
    program, at = _program_of([pred], "cond"), caller()
    with _writing(program):
        begin = program._graph.n_ops
        then = true_fn()
        thens, middle = _listed(then, program, "true_fn"), program._graph.n_ops
        others = _listed(false_fn(), program, "false_fn")
        made = program._graph.append_branch(begin, middle, pred.name, _names(thens), _names(others), at)
        outputs = [program.var(v) for v in made]
        for y, either, other in zip(outputs, thens, others, strict=True):
            hand_on(program, [either, other], y)
    return outputs[0] if isinstance(then, Variable) else outputs


def increment(x: Variable, value: int = 1, in_place: bool = False) -> Variable:
    """A counter's number and ``value`` more, as a new variable: nothing here is changed in place."""
    if in_place:
        raise ProgramError(f"increment: `{x.name}` cannot be changed in place; use what is given back", var=x.name)
    if int(value) != value:
        raise ProgramError(f"increment: counters grow by whole numbers, not by {value}", var=x.name)
    return append("Increment", {"by": int(value)}, [x], "increment")


def _logical(name: str, op: str) -> Callable[..., Variable]:
    def function(x: Variable, y: Variable, name: str | None = None) -> Variable:
        return append("Logical", op, [x, y], layer, name)

    layer = name
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"``x`` {op.lower()} ``y``, for each pair of booleans."
    return function


logical_and = _logical("logical_and", "And")
logical_or = _logical("logical_or", "Or")
logical_xor = _logical("logical_xor", "Xor")


def logical_not(x: Variable, name: str | None = None) -> Variable:
    """The opposite of each boolean."""
    return append("Logical", "Not", [x], "logical_not", name)


@contextmanager
def _writing(program: Program) -> Iterator[None]:
    """What is appended within it stays only if all of it could be."""
    before, lengths, alike = program._graph.copy(), dict(program._lengths), set(program._alike)
    try:
        with program_guard(program):
            yield
    except BaseException:
        program._graph.restore(before)
        program._lengths, program._alike = lengths, alike
        raise


def _names(variables: Sequence[Variable]) -> list[str]:
    return [v.name for v in variables]


def _listed(given: Any, program: Program, what: str) -> list[Variable]:
    return [_one(v, program, what) for v in (given if isinstance(given, (list, tuple)) else [given])]


def _one(given: Any, program: Program, what: str) -> Variable:
    if not isinstance(given, Variable):
        raise TypeError(f"{what} must give variables, got {type(given).__name__}")
    if given.program is not program:
        raise ProgramError(f"{what} gives `{given.name}`, which is of another program", var=given.name)
    return given


__all__ = [
    "cond",
    "increment",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "while_loop",
]
