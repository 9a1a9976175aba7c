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

from phalanx.graph import unique_name
from phalanx.graph._adding import append, hand_on, outside, program_of
from phalanx.graph._operators import as_alike, at_once, scaled
from phalanx.graph._refused import IN_PLACE, refuse, whole
from phalanx.graph._site import caller
from phalanx.graph.errors import ProgramError
from phalanx.graph.program import Program, Variable, default_startup_program, program_guard


def while_loop(
    cond: Callable[..., Variable],
    body: Callable[..., Any],
    loop_vars: Sequence[Variable],
    is_test: bool = False,
    name: str | None = None,
    *,
    maximum_trip_count: int | None = None,
) -> list[Variable]:
    """Repeats ``body``, which computes the next values of ``loop_vars``, while ``cond`` of them is true.

    Returns the last values. A run that would take more than ``maximum_trip_count`` rounds fails with an
    :class:`~phalanx.graph.errors.OpError`: the inputs of every round are kept for the gradients, so their number must be
    bounded.
    """
    if isinstance(loop_vars, Variable) or not loop_vars or not callable(cond) or not callable(body):
        raise TypeError("while_loop takes two functions and a list of at least one variable")
    if maximum_trip_count is None:
        raise ProgramError(
            "while_loop: maximum_trip_count is missing: how many rounds there are at most, because the inputs of every "
            "round are kept for gradients; pass maximum_trip_count=100",
            op="while",
        )
    if whole("while_loop", "maximum_trip_count", maximum_trip_count) < 1:
        raise ProgramError(f"while_loop: maximum_trip_count is {maximum_trip_count}; it must be at least 1", op="while")
    program, at = program_of(loop_vars, "while_loop"), caller()
    with _writing(program):
        first = [_one(cond(*loop_vars), program, "cond"), *loop_vars]
        begin = program._graph.n_ops
        known = _declared(program)
        given = program._graph.placeholders(_names(first), at)
        for x, inside in zip(first, given, strict=True):
            hand_on(program, [x], program.var(inside))
        following = _listed(body(*(program.var(v) for v in given[1:])), program, "body")
        if len(following) != len(loop_vars):
            raise ProgramError(
                f"while_loop at {at[0]}:{at[1]}: body returns {len(following)} values instead of {len(loop_vars)}",
                op="while",
                site=f"{at[0]}:{at[1]}",
                wanted=str(len(loop_vars)),
                got=str(len(following)),
            )
        following = [as_alike(x, of.shape) for x, of in zip(following, loop_vars, strict=True)]
        gives = [as_alike(_one(cond(*following), program, "cond"), first[0].shape), *following]
        inner = _declared(program) - known
        made = program._graph.append_loop(begin, maximum_trip_count, _names(first), given, _names(gives), at)
        outputs = [program.var(v) for v in made]
        for y, begun, ended in zip(outputs, loop_vars, following, strict=True):
            hand_on(program, [begun, ended], y)
        _inside(program, inner, f"while_loop at {at[0]}:{at[1]}")
    return outputs


def cond(
    pred: Variable,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Variable | list[Variable]:
    """Returns the values of ``true_fn`` if ``pred`` is true, else those of ``false_fn``; only one runs. Both are required.

    >>> from phalanx import graph
    >>> with graph.program_guard(graph.Program(), graph.Program()):
    ...     x = graph.data("x", [None, 4])
    ...     small = graph.layers.less_than(graph.layers.mean(x), graph.layers.fill_constant([], "float32", 0.5))
    ...     graph.layers.cond(small, lambda: x * 2.0, lambda: x).shape
    (-1, 4)
    """
    program, at = program_of([pred], "cond"), caller()
    where = f"cond at {at[0]}:{at[1]}"
    if not callable(true_fn) or not callable(false_fn):
        missing = "true_fn" if not callable(true_fn) else "false_fn"
        raise TypeError(
            f"{where}: {missing} is not a function; both are required and must return variables of the same shapes: a function that "
            "changes nothing returns its inputs"
        )
    with _writing(program):
        begin, known = program._graph.n_ops, _declared(program)
        then = true_fn()
        thens, middle = _listed(then, program, "true_fn"), program._graph.n_ops
        inner = _declared(program) - known
        # The other side cannot use them, either.
        _inside(program, inner, f"true_fn of the {where}")
        others = _listed(false_fn(), program, "false_fn")
        if len(thens) == len(others):
            others = [as_alike(x, of.shape) for x, of in zip(others, thens, strict=True)]
        inner = _declared(program) - known - inner
        made = program._graph.append_branch(begin, middle, pred.name, _names(thens), _names(others), at)
        outputs = [program.var(v) for v in made]
        for y, either, other in zip(outputs, thens, others, strict=True):
            hand_on(program, [either, other], y)
        _inside(program, inner, f"false_fn of the {where}")
    return outputs[0] if isinstance(then, Variable) else outputs


def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """Adds ``value`` to a counter: in place, as in Paddle, or as a new variable.

    Only a variable in the scope (``create_global_var``) can be changed in place. For a variable that each run computes,
    write ``i = increment(i, in_place=False)``.
    """
    program = program_of([x], "increment")
    is_real = x.dtype in ("float32", "float64")
    if not is_real and int(value) != value:
        raise ProgramError(f"increment: `{x.name}` is {x.dtype} and grows by whole numbers, not by {value}", var=x.name)
    if not in_place:
        return scaled(x, 1.0, float(value)) if is_real else append("Increment", {"by": int(value)}, [x], "increment")
    if not x.persistable:
        at = "{}:{}".format(*caller())
        raise ProgramError(
            f"increment at {at}: `{x.name}` is not in the scope and cannot be changed in place; write "
            "i = increment(i, in_place=False), or make it with create_global_var",
            var=x.name,
            site=at,
        )
    if is_real:
        program._append_to({"Assign": None}, [scaled(x, 1.0, float(value))], [x])
    else:
        program._append_to({"Increment": {"by": int(value)}}, [x], [x])
    return x


def _logical(name: str, op: str) -> Callable[..., Variable]:
    def function(x: Variable, y: Variable, out: Any = None, name: str | None = None) -> Variable:
        if isinstance(out, str):
            # The name was the third argument before.
            out, name = None, out
        refuse(layer, IN_PLACE, out=out)
        program_of([x, y], layer)
        with at_once([x, y]):
            return append("Logical", op, [x, as_alike(y, x.shape)], layer, name)

    layer = name
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"``x`` {op.lower()} ``y``, for each pair of booleans."
    return function


logical_and = _logical("logical_and", "And")
logical_or = _logical("logical_or", "Or")
logical_xor = _logical("logical_xor", "Xor")


def logical_not(x: Variable, out: Any = None, name: str | None = None) -> Variable:
    """The opposite of each boolean."""
    if isinstance(out, str):
        # The name was the second argument before.
        out, name = None, out
    refuse("logical_not", IN_PLACE, out=out)
    return append("Logical", "Not", [x], "logical_not", name)


@contextmanager
def _writing(program: Program) -> Iterator[None]:
    """What is appended within it stays only if all of it could be."""
    before, inside = program._graph.copy(), dict(program._inside)
    lengths, alike, counts = dict(program._lengths), set(program._alike), unique_name._counted()
    startup = default_startup_program()
    begun = startup._graph.copy()
    try:
        with program_guard(program):
            yield
    except BaseException:
        program._graph.restore(before)
        # Parameters of layers that are gone have no first values, either, and their names are free.
        startup._graph.restore(begun)
        program._lengths, program._alike, program._inside = lengths, alike, inside
        unique_name._restore(counts)
        raise


def _declared(program: Program) -> set[str]:
    """What is computed, so far; parameters live outside of bodies wherever they are declared."""
    return {name for name, kind in program._graph.vars() if kind not in ("parameter", "state")}


def _inside(program: Program, names: set[str], what: str) -> None:
    """These variables are of a body. Those of a body within it stay that one's."""
    program._inside = {**dict.fromkeys(names, what), **program._inside}


def _names(variables: Sequence[Variable]) -> list[str]:
    return [v.name for v in variables]


def _listed(given: Any, program: Program, what: str) -> list[Variable]:
    return [_one(v, program, what) for v in (given if isinstance(given, (list, tuple)) else [given])]


def _one(given: Any, program: Program, what: str) -> Variable:
    if given is None:
        raise TypeError(
            f"{what} must return variables, got None: variables are not changed in place, so return what it computes"
        )
    if not isinstance(given, Variable):
        raise TypeError(f"{what} must return variables, got {type(given).__name__}")
    if given.program is not program:
        raise ProgramError(f"{what} returns `{given.name}`, which belongs to another program", var=given.name)
    outside(given, what)
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
