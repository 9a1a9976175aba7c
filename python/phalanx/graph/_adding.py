"""How operations and variables join a program: names, places, lengths of sequences, first values that programs share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx.graph import _lengths, _values
from phalanx.graph import program as programs
from phalanx.graph import variable as variables
from phalanx.graph._site import caller
from phalanx.graph.errors import ProgramError

if TYPE_CHECKING:
    from phalanx.graph.program import Program
    from phalanx.graph.variable import Variable


def program_of(inputs: Sequence[Variable], what: str) -> Program:
    for x in inputs:
        if not isinstance(x, variables.Variable):
            raise TypeError(f"{what} takes variables, got {type(x).__name__}; feed it, or use fill_constant")
        if x.program is not inputs[0].program:
            raise ProgramError(f"{what}: `{inputs[0].name}` and `{x.name}` are of different programs", var=x.name)
        outside(x, what)
    return inputs[0].program if inputs else programs.default_main_program()


def outside(x: Variable, what: str) -> None:
    """Refuses a variable of a finished body, which no other code can use."""
    if x.name in x.program._inside:
        at = "{}:{}".format(*caller())
        text = f"{what} at {at}: `{x.name}` exists only inside the {x.program._inside[x.name]}"
        raise ProgramError(f"{text}; return it from that function, and use the result", var=x.name, site=at)


def append_all(
    kind: str,
    attrs: Any,
    inputs: Sequence[Variable],
    layer: str,
    name: str | None = None,
    prefix: str | None = None,
    *,
    knows_ends: bool = False,
) -> list[Variable]:
    """Appends an operation; gives its outputs, called ``name``, or named after ``prefix`` or the layer.

    A layer that ``knows_ends`` of sequences itself may do anything with them.
    """
    program = program_of(inputs, layer)
    at = caller()
    if name is not None and program._graph.var(name) is not None:
        raise ProgramError(
            f"`{name}` at {at[0]}:{at[1]} is declared twice; give one of them another name",
            var=name,
            site=f"{at[0]}:{at[1]}",
        )
    if program._lengths and not knows_ends:
        _lengths.check(kind, attrs, inputs, program, layer, f"{at[0]}:{at[1]}")
    outputs = name if name is not None else f"{prefix or program._prefix(layer)}.tmp_0"
    made = program._graph.append(written({kind: attrs}, layer), [x.name for x in inputs], outputs, at)
    found = [variables.Variable(program, output) for output in made]
    if program._lengths:
        for y in found:
            hand_on(program, _lengths.kept(kind, attrs, inputs, y), y)
            of = None if knows_ends else _lengths.across(kind, attrs, inputs, y, program)
            if of is not None:
                program._across[y.name] = of
    return found


def hand_on(program: Program, sources: Sequence[_lengths.Shaped], y: Variable) -> None:
    """What is computed from these, row by row, has their lengths. All that have some must have the same."""
    ragged = [x for x in sources if x.name in program._lengths]
    if ragged:
        program._lengths[y.name] = program._lengths[ragged[0].name]
        alike(program, ragged)


def alike(program: Program, ragged: Sequence[_lengths.Shaped]) -> None:
    """The lengths of these sequences must be equal in every feed."""
    names = [program._lengths[x.name] for x in ragged if x.name in program._lengths]
    program._alike.update((names[0], other) for other in names[1:] if other != names[0])


def append(
    kind: str, attrs: Any, inputs: Sequence[Variable], layer: str, name: str | None = None, prefix: str | None = None
) -> Variable:
    """The same where only the first output is of interest."""
    return append_all(kind, attrs, inputs, layer, name, prefix)[0]


def converted(x: Variable, dtype: Any, name: str | None = None) -> Variable:
    """As another type; of the same type, a copy."""
    program_of([x], "cast")
    if x.dtype == _values.name(_values.code(dtype)):
        return append("Assign", None, [x], "cast", name)
    return append("Cast", {"to": _values.kind(dtype)}, [x], "cast", name)


def written(form: Any, what: str) -> str:
    """As JSON, which has no infinite numbers."""
    try:
        return json.dumps(form, allow_nan=False)
    except ValueError:
        at = "{}:{}".format(*caller())
        raise ProgramError(
            f"{what} at {at} has an infinite number, or NaN, which cannot be written in a program; use a finite one",
            op=what,
            site=at,
        ) from None


def declare(program: Program, name: str, dtype: Any, shape: Sequence[int], kind: Any) -> Variable:
    """Declares a variable in the form in which programs are written down."""
    is_stored = not (kind == "Feed" or kind == "Temp")
    if is_stored:
        _same_begin(name, dtype, shape, kind)
    program._graph.declare(name, _values.code(dtype), list(shape), written(kind, f"`{name}`"), caller())
    if is_stored:
        programs.default_startup_program()._graph.adopt(program._graph)
    return program.var(name)


def _same_begin(name: str, dtype: Any, shape: Sequence[int], kind: Any) -> None:
    """Programs that share a variable, by one startup program, share its type, its shape and its first value."""
    startup = programs.default_startup_program()._graph
    known = startup.var(name)
    if known is None:
        return
    was, wants = (_values.name(known[0]), list(known[1])), (_values.name(_values.code(dtype)), list(shape))
    had, begins = _begin(json.loads(startup.kind(name))), _begin(kind)
    if was == wants and had == begins:
        return
    at = "{}:{}".format(*caller())
    before, now = (f"{was[0]}{was[1]}, {had}", f"{wants[0]}{wants[1]}, {begins}")
    raise ProgramError(
        f"`{name}` at {at} is declared as {now}, but {known[3]} has declared it as {before}; programs that share it "
        "must agree, so give it another name, or declare it in the same way",
        var=name,
        site=at,
        wanted=before,
        got=now,
    )


def _begin(kind: dict[str, Any]) -> Any:
    """How a variable begins, as it is written."""
    ((which, form),) = kind.items()
    return form["init"] if which == "Parameter" else form
