"""Python's operators on variables: each adds an operation, or is an error that shows the replacement."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from phalanx.graph import _adding, _values, program
from phalanx.graph._site import caller
from phalanx.graph.errors import ProgramError

if TYPE_CHECKING:
    from phalanx.graph.program import Variable

NUMBERS = (bool, int, float, np.generic, np.ndarray)
MOST = 2**63
_REAL = ("float32", "float64")
WHOLE = ("int32", "int64")
_LAYERS = {"Less": "less_than", "LessEqual": "less_equal", "Greater": "greater_than", "GreaterEqual": "greater_equal"}


def no_truth(x: Variable) -> NoReturn:
    """Refuses ``bool(x)`` and names the layers that test a value in a run."""
    raise TypeError(
        f"`{x.name}` has no truth value while the program is built, only in a run: use layers.cond instead of `if`, "
        "layers.while_loop instead of `while`, layers.logical_and, logical_or and logical_not of conditions"
    )


def no_equality(x: Variable) -> NoReturn:
    """Between variables, ``==`` says whether they are the same, as lists need it; of a number it would never hold."""
    raise TypeError(f"`{x.name}` cannot be compared with a number by ==: use layers.equal(x, fill_constant(…))")


def no_array(x: Variable) -> NoReturn:
    """Functions of numpy's need values."""
    raise TypeError(
        f"`{x.name}` is a variable of a program and has no value for numpy: use a function of "
        "phalanx.graph.layers, or fetch it and take the array"
    )


@contextmanager
def at_once(inputs: Sequence[Variable]) -> Iterator[None]:
    """A context in which either all operations are appended or none."""
    # Of inputs that are alike and no scalars, nothing is made before the one operation.
    shapes = {x.shape for x in inputs}
    if len(shapes) < 2 and () not in shapes:
        yield
        return
    graph = inputs[0].program._graph
    before = graph.copy()
    try:
        yield
    except BaseException:
        graph.restore(before)
        raise


def number(y: Any, what: str) -> int | float:
    """One number, of Python's or numpy's; whole ones stay exact."""
    if isinstance(y, NUMBERS) and np.size(y) == 1:
        found: int | float = y if isinstance(y, (int, float)) else y.item()
        return found
    got = f"an array {list(y.shape)}" if isinstance(y, np.ndarray) else type(y).__name__
    raise TypeError(f"{what} takes variables and numbers, got {got}; feed it, or use fill_constant")


def as_alike(x: Variable, shape: Sequence[int]) -> Variable:
    """Under this shape, if both are of one number: Paddle's scalars are ``[1]``, ours ``[]``."""
    is_same = x.shape == tuple(shape)
    return x if is_same or any(d != 1 for d in (*x.shape, *shape)) else reshaped(x, shape)


def widened(x: Variable, y: Variable) -> Variable:
    """The same, if the first has fewer dimensions; the second is stretched over it anyway."""
    return as_alike(x, y.shape) if len(x.shape) < len(y.shape) else x


def reshaped(x: Variable, shape: Sequence[int]) -> Variable:
    """Under exactly this shape."""
    dims = [{"Batch": -d} if d < 0 else {"Fixed": d} for d in shape]
    return _adding.append("Reshape", {"shape": dims}, [x], "reshape")


def check_real(layer: str, x: Variable, y: Variable | None = None) -> None:
    """Arithmetic is for floating-point numbers of one type."""
    _adding.program_of([x] if y is None else [x, y], layer)
    if x.dtype in _REAL and (y is None or y.dtype == x.dtype):
        return
    at = "{}:{}".format(*caller())
    if y is not None and y.dtype != x.dtype:
        text = f"`{x.name}` is {x.dtype} and `{y.name}` {y.dtype}; layers.cast one of them"
    else:
        counts = ", and `+` and `-` of whole numbers and layers.increment are for int64" if x.dtype != "bool" else ""
        text = f'`{x.name}` is {x.dtype}; layers.cast(x, "float32") before{counts}'
    raise ProgramError(f"{layer} at {at} wants float32 or float64: {text}", op=layer, var=x.name, site=at, got=x.dtype)


def check_compared(layer: str, x: Variable, y: Variable | None = None) -> None:
    """Comparisons are for numbers of one type."""
    _adding.program_of([x] if y is None else [x, y], layer)
    for each in (x,) if y is None else (x, y):
        if each.dtype not in (*_REAL, *WHOLE) or each.dtype != x.dtype:
            text = f"`{x.name}` is {x.dtype}" + ("" if y is None else f" and `{y.name}` {y.dtype}")
            raise ProgramError(
                f"{layer} wants float32, float64, int64 or int32, and the same on both sides: {text}; layers.cast it",
                op=layer,
                var=each.name,
                site="{}:{}".format(*caller()),
                got=each.dtype,
            )


def _is_whole(n: float) -> bool:
    return float(n).is_integer()


def scaled(x: Variable, a: float, b: float) -> Variable:
    """``a * x + b``. Of a counter, only what is exact."""
    if x.dtype == "int64" and a == 1.0 and _is_whole(b) and -MOST <= b < MOST:
        return _adding.append("Increment", {"by": int(b)}, [x], "increment")
    check_real("scale", x)
    return _adding.append("Unary", {"Scale": {"a": float(a), "b": float(b)}}, [x], "scale")


def arith(op: str, x: Variable, y: Any) -> Variable:
    """``x op y``, of two variables or a variable and a number."""
    layer = f"elementwise_{op.lower()}"
    if x.dtype in WHOLE and op != "Div" and (isinstance(y, program.Variable) or op == "Mul" or x.dtype == "int32"):
        return _whole(op, x, y, layer)
    if isinstance(y, program.Variable):
        check_real(layer, x, y)
        x = widened(x, y)
        axis = max(len(x.shape) - len(y.shape), 0)
        return _adding.append("Binary", {"op": op, "axis": axis}, [x, y], layer)
    n = number(y, layer)
    if op in ("Add", "Sub"):
        return scaled(x, 1.0, n if op == "Add" else -n)
    check_real(layer, x)
    return scaled(x, n if op == "Mul" else 1.0 / n, 0.0)


def _whole(op: str, x: Variable, y: Any, layer: str, axis: int = -1, name: str | None = None) -> Variable:
    """The same of whole numbers."""
    if not isinstance(y, program.Variable):
        n = number(y, layer)
        limits = np.iinfo(x.dtype)
        if not _is_whole(n) or not limits.min <= n <= limits.max or int(float(n)) != n:
            raise ProgramError(
                f'{layer}: `{x.name}` is {x.dtype} and {n} is not, or is too large; layers.cast(x, "float32") before',
                op=layer,
                var=x.name,
                got=repr(n),
            )
        y = _constant(x, n)
    if x.dtype != y.dtype:
        check_real(layer, x, y)
    x = widened(x, y)
    begin = max(len(x.shape) - len(y.shape), 0) if axis == -1 else axis
    return _adding.append("Whole", {"op": op, "axis": begin}, [x, y], layer, name)


def _constant(x: Variable, n: float) -> Variable:
    """One number of the same type and program."""
    with program.program_guard(x.program):
        form = {"dtype": _values.kind(x.dtype), "shape": [], "value": float(n)}
        return _adding.append("Fill", form, [], "fill_constant")


def floor_quotient(x: Variable, y: Any, axis: int = -1, name: str | None = None) -> Variable:
    """``x // y``."""
    layer = "elementwise_floordiv"
    _adding.program_of([v for v in (x, y) if isinstance(v, program.Variable)], layer)
    if x.dtype in WHOLE:
        return _whole("FloorDiv", x, y, layer, axis, name)
    y = y if isinstance(y, program.Variable) else _constant(x, number(y, layer))
    check_real(layer, x, y)
    begin = max(len(x.shape) - len(y.shape), 0) if axis == -1 else axis
    quotient = _adding.append("Binary", {"op": "Div", "axis": begin}, [x, y], layer)
    return _adding.append("Unary", "Floor", [quotient], layer, name)


def remainder(x: Variable, y: Any, axis: int = -1, name: str | None = None) -> Variable:
    """``x % y``, with the sign of ``y`` as in Python."""
    layer = "elementwise_mod"
    _adding.program_of([v for v in (x, y) if isinstance(v, program.Variable)], layer)
    if x.dtype in WHOLE:
        return _whole("Mod", x, y, layer, axis, name)
    y = y if isinstance(y, program.Variable) else _constant(x, number(y, layer))
    below = floor_quotient(x, y, axis)
    begin = max(len(x.shape) - len(y.shape), 0) if axis == -1 else axis
    whole = _adding.append("Binary", {"op": "Mul", "axis": begin}, [below, y], layer)
    return _adding.append("Binary", {"op": "Sub", "axis": 0}, [x, whole], layer, name)


def power(x: Variable, y: Any) -> Variable:
    """``x ** y``."""
    if not isinstance(y, program.Variable):
        check_real("pow", x)
        return _adding.append("Unary", {"Pow": {"by": float(number(y, "pow"))}}, [x], "pow")
    from phalanx.graph.layers.arithmetic import elementwise_pow

    return elementwise_pow(x, y)


def powered(x: Variable, base: Any) -> Variable:
    """``base ** x``."""
    n = number(base, "pow")
    if not n > 0.0:
        raise ProgramError(f"pow: {n} ** `{x.name}` has no value everywhere; the base must be above 0", op="pow")
    return _adding.append("Unary", "Exp", [scaled(x, math.log(n), 0.0)], "pow")


def divided(x: Variable, y: Any) -> Variable:
    """``y / x`` of a number."""
    check_real("elementwise_div", x)
    one = _adding.append("Unary", "Reciprocal", [x], "reciprocal")
    n = number(y, "elementwise_div")
    return one if n == 1 else scaled(one, n, 0.0)


def product(x: Any, y: Any) -> Variable:
    """``x @ y``."""
    for each in (x, y):
        if not isinstance(each, program.Variable):
            raise TypeError(f"x @ y takes two variables, got {type(each).__name__}; feed it, or use create_parameter")
    from phalanx.graph.layers.arithmetic import matmul

    return matmul(x, y)


def compare(op: str, x: Variable, y: Any) -> Variable:
    """A boolean for each pair of elements, or for each element and the number."""
    layer = _LAYERS[op]
    check_compared(layer, x, y if isinstance(y, program.Variable) else None)
    if not isinstance(y, program.Variable):
        n = number(y, layer)
        # Constants are written as floating-point numbers.
        is_held = x.dtype in _REAL or np.iinfo(x.dtype).min <= n <= np.iinfo(x.dtype).max
        if x.dtype not in _REAL and not (_is_whole(n) and int(float(n)) == n and is_held):
            raise ProgramError(
                f"{layer}: `{x.name}` is {x.dtype} and cannot be compared with {n}; layers.cast it", var=x.name
            )
        with program.program_guard(x.program):
            form = {"dtype": _values.kind(x.dtype), "shape": [], "value": float(n)}
            y = _adding.append("Fill", form, [], "fill_constant")
    x = widened(x, y)
    return _adding.append("Compare", {"op": op, "axis": max(len(x.shape) - len(y.shape), 0)}, [x, y], layer)


def item(x: Variable, key: Any) -> Variable:
    """``x[2]``, ``x[:, 1:3]``: parts along axes, without those of which one place is taken."""
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) > len(x.shape):
        raise ProgramError(f"{x!r} does not have {len(keys)} axes", op="slice", var=x.name)
    # All are looked at before anything is appended.
    parts = [_part(x, axis, one) for axis, one in enumerate(keys)]
    out, gone = x, []
    for axis, (one, (begin, end)) in enumerate(zip(keys, parts, strict=True)):
        if (begin, end) != (0, x.shape[axis]):
            out = _adding.append("Slice", {"axis": axis, "begin": begin, "end": end}, [out], "slice")
        if not isinstance(one, slice):
            gone.append(axis)
    return reshaped(out, [d for axis, d in enumerate(out.shape) if axis not in gone]) if gone else out


def _is_index(one: Any) -> bool:
    return isinstance(one, (int, np.integer)) and not isinstance(one, bool)


def _part(x: Variable, axis: int, one: Any) -> tuple[int, int]:
    size = x.shape[axis]
    if isinstance(one, slice) and one == slice(None):
        return 0, size
    ends = [one.start, one.stop] if isinstance(one, slice) and one.step in (None, 1) else [one]
    if not all((end is None and isinstance(one, slice)) or _is_index(end) for end in ends):
        raise TypeError(
            f"`{x.name}`[{one!r}]: only numbers and slices without steps are supported; use layers.gather for more"
        )
    if size < 0:
        raise ProgramError(
            f"axis {axis} of {x!r} is the batch, which cannot be sliced; fetch it and slice the array",
            op="slice",
            var=x.name,
        )
    if isinstance(one, slice):
        begin, end, _ = one.indices(size)
        return begin, max(begin, end)
    at = operator.index(one)
    if not -size <= at < size:
        raise ProgramError(f"axis {axis} of {x!r} has no place {at}", op="slice", var=x.name, got=str(at))
    return at % size, at % size + 1
