"""Data, constants, and layers that move elements without computing.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program()):
...     x = graph.layers.data("x", [4, 6])
...     [piece.shape for piece in graph.layers.split(x, 3, dim=2)]
[(-1, 4, 2), (-1, 4, 2), (-1, 4, 2)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from phalanx.graph import _data, _values, unique_name
from phalanx.graph._adding import append, declare, program_of
from phalanx.graph._layer import expand
from phalanx.graph._operators import at_once
from phalanx.graph._refused import number, refuse, whole, wholes
from phalanx.graph.errors import ProgramError
from phalanx.graph.initializer import Constant, Initializer, Xavier
from phalanx.graph.layers.arithmetic import activate
from phalanx.graph.param_attr import ParamAttr, parameter
from phalanx.graph.program import Parameter, Program, Variable, default_main_program


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: Any = None,
    stop_gradient: bool = True,
    *,
    max_length: int | None = None,
) -> Variable:
    """Declares a variable that is fed; the shape is that of a sample, or with ``lod_level=1`` that of an element.

    A shape with a ``-1`` or ``None`` already has its batch dimension, so none is added. With
    ``append_batch_size=False`` executors also take other sizes than those, as in Paddle; ``fluid.data`` checks them.
    """
    if type is not None:
        raise ProgramError(f"data({name!r}): type={type!r} is not supported, all tensors are dense: leave it out")
    _data.check(name, shape)
    has_batch = not append_batch_size or any(d is None or d < 0 for d in shape)
    whole = shape if has_batch else [-1, *shape]
    made = _data.data(name, whole, dtype, lod_level, max_length=max_length, stop_gradient=stop_gradient)
    if min(made.shape, default=0) > 0 and not lod_level:
        made.program._unchecked.add(name)
    return made


def create_parameter(
    shape: Sequence[int],
    dtype: Any = "float32",
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Initializer | None = None,
) -> Parameter:
    """A parameter that belongs to no layer."""
    main, shape = default_main_program(), wholes("create_parameter", "shape", shape)
    given = ParamAttr._of(attr)
    if given.name is None and name is not None:
        given = replace(given, name=name)
    # A default says nothing about a parameter that an attribute shares.
    is_shared = attr is not None and given.name is not None and main._graph.var(given.name) is not None
    if given.initializer is None and not is_shared:
        given = replace(given, initializer=default_initializer)
    begin = Constant(0.0) if is_bias else Xavier()
    fallback = given.name or f"{main._prefix('create_parameter')}.w_0"
    return parameter(main, given, fallback, _values.name(_values.code(dtype)), shape, begin._form())


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = True,
    force_cpu: bool | str = False,
    name: str | None = None,
) -> Variable:
    """A variable in the scope that is not trainable; it can be set there, and fed. All variables are on the CPU."""
    if isinstance(force_cpu, str):
        # The name was the fifth argument before.
        name, force_cpu = force_cpu, False
    shape = wholes("create_global_var", "shape", shape)
    if not persistable:
        return fill_constant(shape, dtype, value, name=name)
    main = default_main_program()
    called = name or unique_name.generate("global_var")
    number = _values.constant(value, dtype, "create_global_var")
    if _values.kind(dtype) == "Bool":
        number = float(bool(value))
    return declare(main, called, dtype, shape, {"State": {"Constant": number}})


def dims(shape: Sequence[int]) -> list[dict[str, int]]:
    """A shape as it is written in programs."""
    return [{"Batch": -d} if d < 0 else {"Fixed": d} for d in shape]


def fill_constant(
    shape: Sequence[int], dtype: Any, value: float, force_cpu: bool = False, out: Any = None, name: str | None = None
) -> Variable:
    """One value everywhere."""
    shape = wholes("fill_constant", "shape", shape)
    if isinstance(force_cpu, str):
        # The name was the fourth argument before.
        force_cpu, name = False, force_cpu
    if out is not None:
        raise ProgramError("fill_constant: variables are not written in place; leave out=… out and take the result")
    if _values.kind(dtype) == "Bool":
        form = {"dtype": "F32", "shape": dims(shape), "value": float(bool(value))}
        return append("Cast", {"to": "Bool"}, [append("Fill", form, [], "fill_constant")], "fill_constant", name)
    number = _values.constant(value, dtype, "fill_constant")
    form = {"dtype": _values.kind(dtype), "shape": dims(shape), "value": number}
    return append("Fill", form, [], "fill_constant", name)


def zeros(shape: Sequence[int], dtype: Any = "float32", force_cpu: bool = False) -> Variable:
    """Zero everywhere."""
    return fill_constant(shape, dtype, 0.0)


def ones(shape: Sequence[int], dtype: Any = "float32", force_cpu: bool = False) -> Variable:
    """One everywhere."""
    return fill_constant(shape, dtype, 1.0)


def stream(of: Program) -> int:
    """A number for the next operation of a program that draws random ones."""
    return sum(kind in ("Dropout", "Random") for _, kind, *_ in of._graph.ops())


def _random(
    shape: Sequence[int], dtype: Any, normal: bool, a: float, b: float, seed: int, name: str | None
) -> Variable:
    op = "gaussian_random" if normal else "uniform_random"
    refuse(op, "random numbers come from Program.random_seed, or from the seed of the scope", seed=seed or None)
    form = {"dtype": _values.kind(dtype), "shape": dims(shape), "normal": normal, "a": a, "b": b}
    form["stream"] = stream(default_main_program())
    return append("Random", form, [], op, name)


def uniform_random(
    shape: Sequence[int],
    dtype: Any = "float32",
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
    name: str | None = None,
) -> Variable:
    """Uniformly distributed random numbers, new in every run."""
    low = number("uniform_random", "min", min)
    high = number("uniform_random", "max", max, least=low)
    return _random(shape, dtype, False, low, high, seed, name)


def gaussian_random(
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """Normally distributed random numbers, new in every run."""
    if isinstance(seed, str):
        # The type was the fourth argument before.
        seed, dtype = 0, seed
    middle, width = number("gaussian_random", "mean", mean), number("gaussian_random", "std", std, least=0.0)
    return _random(shape, dtype, True, middle, width, seed, name)


def assign(input: Any, output: Variable | str | None = None, name: str | None = None) -> Variable:
    """A copy; with ``output``, a variable in the scope that is given the value. Arrays become constants."""
    if isinstance(output, str):
        # The name was the second argument before.
        output, name = None, output
    value = input if isinstance(input, Variable) else _constant(input)
    if output is None:
        return append("Assign", None, [value], "assign", name)
    if not output.persistable:
        raise ProgramError(
            f"assign: `{output.name}` is computed in each run and is not written in place; take what assign returns, "
            "or make it with create_global_var",
            op="assign",
            var=output.name,
        )
    program_of([value, output], "assign")
    output.program._append_to({"Assign": None}, [value], [output])
    return output


def _constant(given: Any) -> Variable:
    """An array as a variable: numbers that are all equal, or a few others."""
    array = np.asarray(given)
    if array.dtype == np.float64 and not isinstance(given, np.ndarray):
        array = array.astype("float32")
    if array.dtype.name not in ("float32", "float64", "int32", "int64"):
        raise TypeError(f"assign takes a variable or numbers, got an array of {array.dtype}")
    if array.size and (array == array.flat[0]).all():
        return fill_constant(list(array.shape), array.dtype, array.flat[0].item())
    if array.size > 1024:
        raise ProgramError(
            f"assign: an array of {array.size} numbers is too large for a constant of a program; feed it, or use "
            "create_parameter with NumpyArrayInitializer",
            op="assign",
        )
    parts = [fill_constant([1], array.dtype, each.item()) for each in array.ravel()]
    return exactly(concat(parts), array.shape, "assign")


def _volume(shape: Sequence[int]) -> tuple[int, bool]:
    volume, batch = 1, False
    for d in shape:
        volume, batch = volume * (-d if d < 0 else d), batch or d < 0
    return volume, batch


def exactly(x: Variable, shape: Sequence[int], op: str, name: str | None = None) -> Variable:
    """Under exactly this shape."""
    return append("Reshape", {"shape": dims(shape)}, [x], op, name)


def as_whole(x: Variable) -> Variable:
    """As numbers of int64, which all layers take that look something up."""
    return append("Cast", {"to": "I64"}, [x], "cast") if x.dtype == "int32" else x


def as_ids(x: Variable) -> Variable:
    """The same, ``[n]`` where it is ``[n, 1]``."""
    whole = as_whole(x)
    is_column = len(whole.shape) == 2 and whole.shape[1] == 1
    return exactly(whole, whole.shape[:1], "reshape") if is_column else whole


def reshape(
    x: Variable,
    shape: Sequence[int],
    actual_shape: Any = None,
    act: str | None = None,
    inplace: bool = False,
    name: str | None = None,
) -> Variable:
    """Changes the shape. ``0`` keeps the dimension at this place; one ``-1`` is computed from the rest.

    >>> from phalanx import graph
    >>> with graph.program_guard(graph.Program()):
    ...     x = graph.data("x", [None, 4, 6])
    ...     reshape(x, [0, -1]).shape, reshape(x, [-1, 6]).shape
    ((-1, 24), (-4, 6))
    """
    if isinstance(actual_shape, str):
        # The activation was the third argument before.
        actual_shape, act = None, actual_shape
    if actual_shape is not None:
        raise ProgramError(
            "reshape: a shape that is computed in a run is not supported; pass the numbers as shape", op="reshape"
        )
    wanted: list[int | None] = []
    for i, d in enumerate(shape):
        if d == 0 and i >= len(x.shape):
            raise ProgramError(f"reshape: {x!r} has no dimension {i} to keep", op="reshape", var=x.name)
        wanted.append(x.shape[i] if d == 0 else None if d == -1 else d)
    if wanted.count(None) > 1:
        raise ProgramError(f"reshape: only one dimension of {list(shape)} may be -1", op="reshape", var=x.name)
    known = [d for d in wanted if d is not None]
    (whole, has_batch), (rest, used_batch) = _volume(x.shape), _volume(known)
    if None in wanted:
        left = whole // rest if rest and whole % rest == 0 else 0
        if left == 0 and whole != 0:
            raise ProgramError(f"reshape: {x!r} cannot be {list(shape)}", op="reshape", var=x.name)
        wanted[wanted.index(None)] = -left if has_batch and not used_batch else left
    form = {"shape": dims([d for d in wanted if d is not None])}
    return activate(append("Reshape", form, [x], "reshape", None if act else name), act, name)


def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """All dimensions before ``axis`` as one, and all from there on."""
    (outer, has_batch), (inner, inner_batch) = _volume(x.shape[:axis]), _volume(x.shape[axis:])
    shape = [-outer if has_batch else outer, -inner if inner_batch else inner]
    return append("Reshape", {"shape": dims(shape)}, [x], "flatten", name)


def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """With the axes in another order."""
    return append("Transpose", {"order": wholes("transpose", "perm", perm)}, [x], "transpose", name)


def _axis(x: Variable, axis: int, op: str, extra: int = 0) -> int:
    axis = whole(op, "axis", axis)
    rank = len(x.shape) + extra
    if not -rank <= axis < rank:
        raise ProgramError(f"{op}: {x!r} has no axis {axis}", op=op, var=x.name)
    return axis % rank


def concat(input: Sequence[Variable], axis: int = 0, name: str | None = None) -> Variable:
    """Concatenates along an axis; a number counts as an array of one element."""
    given = list(input)
    program_of(given, "concat")
    with at_once(given):
        inputs = [unsqueeze(x, [0]) if x.shape == () else x for x in given]
        return append("Concat", {"axis": _axis(inputs[0], axis, "concat") if inputs else 0}, inputs, "concat", name)


def unsqueeze(input: Variable, axes: int | Sequence[int], name: str | None = None) -> Variable:
    """Inserts axes of size 1 at these places, one after another; -1 is after the last.

    >>> from phalanx import graph
    >>> with graph.program_guard(graph.Program()):
    ...     x = graph.data("x", [None, 4])
    ...     unsqueeze(x, [-1]).shape, unsqueeze(x, [1, -1]).shape
    ((-1, 4, 1), (-1, 1, 4, 1))
    """
    shape = list(input.shape)
    for axis in [axes] if isinstance(axes, int) else axes:
        places = len(shape) + 1
        if not -places <= axis < places:
            raise ProgramError(
                f"unsqueeze: an axis cannot be inserted at {axis} of {input!r}", op="unsqueeze", var=input.name
            )
        shape.insert(axis % places, 1)
    return append("Reshape", {"shape": dims(shape)}, [input], "unsqueeze", name)


def squeeze(input: Variable, axes: int | Sequence[int], name: str | None = None) -> Variable:
    """Removes these axes, which must have size 1; by default all axes of size 1."""
    given = [axes] if isinstance(axes, int) else list(axes)
    gone = {_axis(input, axis, "squeeze") for axis in given or [i for i, d in enumerate(input.shape) if d == 1]}
    if any(input.shape[axis] != 1 for axis in gone):
        raise ProgramError(
            f"squeeze: not all of the axes {sorted(gone)} of {input!r} are 1", op="squeeze", var=input.name
        )
    shape = [d for i, d in enumerate(input.shape) if i not in gone]
    return append("Reshape", {"shape": dims(shape)}, [input], "squeeze", name)


def stack(x: Variable | Sequence[Variable], axis: int = 0, name: str | None = None) -> Variable:
    """Stacks along a new axis."""
    inputs = [x] if isinstance(x, Variable) else list(x)
    place = _axis(inputs[0], axis, "stack", 1) if inputs else 0
    return expand("stack", {"Stack": {"axis": place}}, inputs, name)


def slice(input: Variable, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Variable:
    """From ``starts`` up to ``ends`` along these axes; negative numbers count from the end."""
    out = input
    for given, start, end in zip(axes, starts, ends, strict=True):
        axis = _axis(input, given, "slice")
        size = input.shape[axis]
        if size < 0:
            raise ProgramError(
                f"slice: axis {axis} of {input!r} is the batch, which cannot be sliced", op="slice", var=input.name
            )
        begin, stop = (min(max(n + size if n < 0 else n, 0), size) for n in (start, end))
        out = append("Slice", {"axis": axis, "begin": begin, "end": stop}, [out], "slice")
    return out


def split(
    input: Variable, num_or_sections: int | Sequence[int], dim: int = -1, name: str | None = None
) -> list[Variable]:
    """Equal pieces of an axis, or pieces of these sizes. With a name they are ``<name>_0``, ``<name>_1`` and so on."""
    axis = _axis(input, dim, "split")
    size = input.shape[axis]
    if isinstance(num_or_sections, int):
        if size < 0 or num_or_sections < 1 or size % num_or_sections:
            raise ProgramError(
                f"split: axis {axis} of {input!r} cannot be split into {num_or_sections} equal pieces",
                op="split",
                var=input.name,
            )
        sizes = [size // num_or_sections] * num_or_sections
    else:
        sizes = list(num_or_sections)
        if sum(sizes) != size:
            raise ProgramError(f"split: {sizes} do not add up to axis {axis} of {input!r}", op="split", var=input.name)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    forms = [{"axis": axis, "begin": end - n, "end": end} for n, end in zip(sizes, ends, strict=True)]
    names = [None if name is None else f"{name}_{i}" for i in range(len(forms))]
    return [append("Slice", form, [input], "split", called) for form, called in zip(forms, names, strict=True)]


def expand_to(x: Variable, shape: Sequence[int], name: str | None = None) -> Variable:
    """Broadcasts to a shape whose last dimensions are those of ``x``, or where ``x`` has 1."""
    axis = max(len(shape) - len(x.shape), 0)
    return append("Expand", {"shape": dims(shape), "axis": axis}, [x], "expand", name)


def gather(input: Variable, index: Variable, overwrite: bool = True) -> Variable:
    """Slices of the first axis by number."""
    program_of([input, index], "gather")
    return append("Gather", None, [input, as_ids(index)], "gather")


def one_hot(input: Variable, depth: int, allow_out_of_range: bool = False, *, dtype: Any = "float32") -> Variable:
    """A row with a one in the place of each number; of numbers ``[…, 1]``, rows ``[…, depth]``, as in Paddle."""
    program_of([input], "one_hot")
    depth = checked_depth(depth, allow_out_of_range)
    ids = as_whole(input)
    if len(ids.shape) > 1 and ids.shape[-1] == 1:
        ids = exactly(ids, ids.shape[:-1], "reshape")
    return rows_of(ids, depth, dtype)


def checked_depth(depth: Any, allow_out_of_range: bool) -> int:
    """The width of rows with a one, before anything is appended."""
    if allow_out_of_range:
        raise ProgramError(
            "one_hot: allow_out_of_range=True is not supported; numbers outside are errors: clip them before",
            op="one_hot",
        )
    return whole("one_hot", "depth", depth)


def rows_of(ids: Variable, depth: int, dtype: Any = "float32") -> Variable:
    """A row with a one in the place of each number."""
    return append("OneHot", {"depth": depth, "dtype": _values.kind(dtype)}, [ids], "one_hot")


__all__ = [
    "assign",
    "concat",
    "create_global_var",
    "create_parameter",
    "data",
    "expand_to",
    "fill_constant",
    "flatten",
    "gather",
    "gaussian_random",
    "one_hot",
    "ones",
    "reshape",
    "slice",
    "split",
    "squeeze",
    "stack",
    "transpose",
    "uniform_random",
    "unsqueeze",
    "zeros",
]
