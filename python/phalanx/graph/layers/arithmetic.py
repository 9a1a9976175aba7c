"""Functions of elements, arithmetic and reductions.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program()):
...     x = graph.data("x", [None, 3])
...     graph.layers.reduce_sum(graph.layers.relu(x), dim=1).shape
(-1,)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from phalanx.graph import _values
from phalanx.graph._adding import append, converted, program_of
from phalanx.graph._layer import expand
from phalanx.graph._operators import (
    WHOLE,
    as_alike,
    at_once,
    check_compared,
    check_real,
    floor_quotient,
    remainder,
    reshaped,
    widened,
)
from phalanx.graph._refused import IN_PLACE, number, refuse
from phalanx.graph._site import caller
from phalanx.graph.errors import ProgramError
from phalanx.graph.program import Variable, program_guard


def _function(name: str, form: Any) -> Callable[..., Variable]:
    def function(x: Variable, name: str | None = None) -> Variable:
        return append("Unary", form, [x], layer, name)

    layer = name
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"``{name}`` of each element."
    return function


relu = _function("relu", "Relu")
tanh = _function("tanh", "Tanh")
sigmoid = _function("sigmoid", "Sigmoid")
softplus = _function("softplus", "Softplus")
softsign = _function("softsign", "Softsign")
exp = _function("exp", "Exp")
log = _function("log", "Log")
sqrt = _function("sqrt", "Sqrt")
rsqrt = _function("rsqrt", "Rsqrt")
square = _function("square", "Square")
abs = _function("abs", "Abs")
sign = _function("sign", "Sign")
reciprocal = _function("reciprocal", "Reciprocal")
sin = _function("sin", "Sin")
cos = _function("cos", "Cos")
floor = _function("floor", "Floor")
ceil = _function("ceil", "Ceil")


def round(x: Variable, name: str | None = None) -> Variable:
    """The nearest whole number of each element; halves go away from zero, as in Paddle: 0.5 becomes 1, -2.5 becomes -3."""
    check_real("round", x)
    # The operation takes halves to the even number.
    near, half = append("Unary", "Round", [x], "round"), _scalar(x, 0.5)
    is_half = append("Compare", {"op": "Equal", "axis": len(x.shape)}, [abs(x - near), half], "equal")
    return append("Where", None, [is_half, sign(x) * ceil(abs(x)), near], "round", name)


def relu6(x: Variable, threshold: float = 6.0, name: str | None = None) -> Variable:
    """``x``, but not below 0 and not above ``threshold``."""
    if threshold == 6.0:
        return append("Unary", "Relu6", [x], "relu6", name)
    return clip(x, 0.0, threshold, name)


def swish(x: Variable, beta: float = 1.0, name: str | None = None) -> Variable:
    """``x * sigmoid(beta * x)``."""
    if beta == 1.0:
        return append("Unary", "Swish", [x], "swish", name)
    return elementwise_mul(x, sigmoid(scale(x, beta)), name=name)


def hard_sigmoid(x: Variable, slope: float = 0.2, offset: float = 0.5, name: str | None = None) -> Variable:
    """``slope * x + offset``, but not below 0 and not above 1."""
    if (slope, offset) == (0.2, 0.5):
        return append("Unary", "HardSigmoid", [x], "hard_sigmoid", name)
    return clip(scale(x, slope, offset), 0.0, 1.0, name)


def gelu(x: Variable, approximate: bool = False, name: str | None = None) -> Variable:
    """``x`` times the normal distribution of it; ``approximate`` computes that by ``tanh``."""
    if isinstance(approximate, str):
        # The name was the second argument before.
        approximate, name = False, approximate
    if not approximate:
        return append("Unary", "Gelu", [x], "gelu", name)
    bent = tanh(scale(x + scale(x * x * x, 0.044715), math.sqrt(2.0 / math.pi)))
    return elementwise_mul(x, scale(bent, 0.5, 0.5), name=name)


def leaky_relu(x: Variable, alpha: float = 0.02, name: str | None = None) -> Variable:
    """``x`` where it is positive, ``alpha * x`` elsewhere."""
    return append("Unary", {"LeakyRelu": {"slope": number("leaky_relu", "alpha", alpha)}}, [x], "leaky_relu", name)


def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """``x`` where it is positive, ``alpha * (exp(x) - 1)`` elsewhere."""
    return append("Unary", {"Elu": {"alpha": number("elu", "alpha", alpha)}}, [x], "elu", name)


def pow(x: Variable, factor: float = 1.0, name: str | None = None) -> Variable:
    """``x ** factor``."""
    return append("Unary", {"Pow": {"by": number("pow", "factor", factor)}}, [x], "pow", name)


def clip(x: Variable, min: float, max: float, name: str | None = None) -> Variable:
    """``x``, but not below ``min`` and not above ``max``."""
    low = number("clip", "min", min)
    form = {"low": low, "high": number("clip", "max", max, least=low)}
    return append("Unary", {"Clip": form}, [x], "clip", name)


def scale(
    x: Variable,
    scale: float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """``scale * x + bias``, or ``scale * (x + bias)``."""
    a, b = number("scale", "scale", scale), number("scale", "bias", bias)
    check_real("scale", x)
    form = {"Scale": {"a": a, "b": b if bias_after_scale else a * b}}
    return activate(append("Unary", form, [x], "scale", None if act else name), act, name)


def activation(act: Any) -> str | None:
    """The name of an activation; the compiled module knows which there are."""
    return act if act is None or isinstance(act, str) else repr(act)


def activate(x: Variable, act: str | None, name: str | None = None) -> Variable:
    """Applies an activation after a layer."""
    return x if act is None else expand(str(act), {"Activation": {"act": activation(act)}}, [x], name)


def swapped(rank: int, axis: int) -> list[int] | None:
    """The order of axes in which this one and the last have changed places, if it is not the last."""
    if axis == rank - 1:
        return None
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return order


def along_last(x: Variable, axis: int, op: str, of: Callable[[Variable, str | None], Variable], name: Any) -> Variable:
    """A function of the last axis, for any axis."""
    program_of([x], op)
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise ProgramError(f"{op}: {x!r} has no axis {axis}", op=op, var=x.name)
    check_time(op, x, axis % rank, "take sequence_softmax of sequences of numbers")
    order = swapped(rank, axis % rank)
    if order is None:
        return of(x, name)
    turned = append("Transpose", {"order": order}, [x], "transpose")
    return append("Transpose", {"order": order}, [of(turned, None)], op, name)


def check_time(op: str, x: Variable, axis: int, remedy: str) -> None:
    """Refuses an axis along which padding lies behind elements."""
    if x.lod_level and axis < 2 and len(x.shape) > axis + 1:
        at = "{}:{}".format(*caller())
        text = f"{op} at {at}: {x!r} holds padded sequences, and the padding would count along axis {axis}; {remedy}"
        raise ProgramError(text, op=op, var=x.name, site=at)


def softmax(input: Variable, use_cudnn: bool = False, name: str | None = None, axis: int = -1) -> Variable:
    """Softmax over an axis.

    No probability is zero, as in Paddle: a number more than 64 below the largest counts as 64 below it, so that
    ``cross_entropy`` has a gradient everywhere.
    """
    return along_last(
        input, axis, "softmax", lambda x, name: append("BoundedSoftmax", None, [x], "softmax", name), name
    )


def log_softmax(input: Variable, axis: int = -1, name: str | None = None) -> Variable:
    """The logarithm of the softmax over an axis."""
    return along_last(
        input, axis, "log_softmax", lambda x, name: append("Softmax", {"log": True}, [x], "log_softmax", name), name
    )


def _elementwise(name: str, op: str) -> Callable[..., Variable]:
    def function(x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None) -> Variable:
        if x.dtype not in WHOLE or op == "Div":
            check_real(layer, x, y)
        with at_once([x, y] if len(x.shape) < len(y.shape) else []):
            x = widened(x, y)
            begin = len(x.shape) - len(y.shape) if axis == -1 else axis
            form = {"op": op, "axis": max(begin, 0)}
            made = append("Whole" if x.dtype in WHOLE else "Binary", form, [x, y], layer, None if act else name)
        return activate(made, act, name)

    layer = name
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"``{op.lower()}`` of each pair of elements; ``y`` is stretched over ``x`` from ``axis`` on."
    return function


elementwise_add = _elementwise("elementwise_add", "Add")
elementwise_sub = _elementwise("elementwise_sub", "Sub")
elementwise_mul = _elementwise("elementwise_mul", "Mul")
elementwise_div = _elementwise("elementwise_div", "Div")
elementwise_max = _elementwise("elementwise_max", "Max")
elementwise_min = _elementwise("elementwise_min", "Min")


def elementwise_mod(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """The rest of a division, with the sign of the divisor; of whole numbers or fractions."""
    return activate(remainder(x, y, axis, None if act else name), act, name)


def elementwise_floordiv(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """A quotient, rounded down; of whole numbers or fractions."""
    return activate(floor_quotient(x, y, axis, None if act else name), act, name)


def elementwise_pow(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """``x ** y``. Below zero the exponent must be a whole number, else the result is NaN, as in numpy."""
    check_real("elementwise_pow", x, y)
    x = widened(x, y)
    if y.shape != x.shape:
        y = elementwise_add(_filled(x, 0.0), y, axis)
    return activate(_power(x, y, None if act else name), act, name)


def _scalar(x: Variable, value: float) -> Variable:
    """One number of the type of a variable."""
    with program_guard(x.program):
        return append("Fill", {"dtype": _values.kind(x.dtype), "shape": [], "value": value}, [], "fill_constant")


def _filled(x: Variable, value: float) -> Variable:
    """One value in the shape of a variable."""
    shape = [{"Batch": -d} if d < 0 else {"Fixed": d} for d in x.shape]
    with program_guard(x.program):
        return append("Fill", {"dtype": _values.kind(x.dtype), "shape": shape, "value": value}, [], "fill_constant")


def _power(x: Variable, y: Variable, name: str | None) -> Variable:
    """Of the logarithm of the size; sign, zero and NaN are added where they belong."""
    zero, one = _filled(x, 0.0), _filled(x, 1.0)
    is_zero, is_below, is_odd = equal(x, zero), less_than(x, zero), not_equal(floor(y * 0.5) * 2.0, y)

    def pick(condition: Variable, a: Variable, b: Variable) -> Variable:
        return append("Where", None, [condition, a, b], "where")

    def both(a: Variable, b: Variable) -> Variable:
        return append("Logical", "And", [a, b], "logical_and")

    size = exp(y * log(abs(pick(is_zero, one, x))))
    sign = pick(both(is_below, is_odd), one * -1.0, one)
    # Near zero the first power is the number itself, with its gradient.
    at_zero = pick(equal(y, one), x, pick(equal(y, zero), one, zero))
    value = pick(is_zero, at_zero, size * sign)
    fraction, falls = not_equal(floor(y), y), less_than(y, zero)
    none = log(pick(both(is_below, fraction), one * -1.0, one))
    endless = reciprocal(pick(both(is_zero, falls), zero, one)) - 1.0
    return elementwise_add(value + none, endless, name=name)


def _comparison(name: str, op: str) -> Callable[..., Variable]:
    def function(x: Variable, y: Variable, cond: Any = None, force_cpu: bool | None = None) -> Variable:
        if isinstance(cond, bool) or not (force_cpu is None or isinstance(force_cpu, bool)):
            # Paddle's ``less_than`` has them the other way round.
            cond, force_cpu = force_cpu, cond
        refuse(name, IN_PLACE, cond=cond)
        check_compared(name, x, y)
        x = widened(x, y)
        axis = max(len(x.shape) - len(y.shape), 0)
        return append("Compare", {"op": op, "axis": axis}, [x, y], name)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Whether ``x`` is {name.replace('_', ' ')} ``y``, for each pair of elements."
    return function


equal = _comparison("equal", "Equal")
not_equal = _comparison("not_equal", "NotEqual")
less_than = _comparison("less_than", "Less")
less_equal = _comparison("less_equal", "LessEqual")
greater_than = _comparison("greater_than", "Greater")
greater_equal = _comparison("greater_equal", "GreaterEqual")


def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Variable:
    """``alpha * x @ y`` over the last two axes; the others are repeated where one has fewer of them or 1.

    One axis is a row on the left and a column on the right, and is not in the result.
    """
    program_of([x, y], "matmul")
    with at_once([x, y]):
        return _product(x, y, bool(transpose_x), bool(transpose_y), number("matmul", "alpha", alpha), name)


def _product(
    x: Variable, y: Variable, transpose_x: bool, transpose_y: bool, alpha: float, name: str | None
) -> Variable:
    if not x.shape or not y.shape:
        raise ProgramError(f"matmul takes at least one axis each, got {x!r} and {y!r}", op="matmul")
    row, column = len(x.shape) == 1, len(y.shape) == 1
    # An axis alone is not turned, as in Paddle.
    a = reshaped(x, [1, *x.shape]) if row else x
    b = reshaped(y, [*y.shape, 1]) if column else y
    form = {"trans_a": transpose_x and not row, "trans_b": transpose_y and not column}
    a, b = _repeated(a, b)
    if b.lod_level and len(b.shape) == 3 and not form["trans_b"]:
        from phalanx.graph.layers.sequence import blank

        # The sum goes over time: what is behind the ends does not count.
        b = blank(b, 0.0)
    last = alpha == 1.0 and not row and not column
    made = append("MatMul", form, [a, b], "matmul", name if last else None)
    if row or column:
        kept = [d for d, gone in zip(made.shape[-2:], (row, column), strict=True) if not gone]
        made = reshaped(made, [*made.shape[:-2], *kept])
    return made if last else scale(made, alpha, name=name)


def _repeated(a: Variable, b: Variable) -> tuple[Variable, Variable]:
    """With the same axes before the last two. The right one may have none at all."""
    outer, other = a.shape[:-2], b.shape[:-2]
    if outer == other or not other:
        return a, b
    rank = max(len(outer), len(other))
    both = zip([1] * (rank - len(outer)) + list(outer), [1] * (rank - len(other)) + list(other), strict=True)
    wide = [m if n == 1 else n for n, m in both]
    return _wide(a, wide), _wide(b, wide)


def _wide(x: Variable, outer: list[int]) -> Variable:
    whole = [*outer, *x.shape[-2:]]
    if list(x.shape) == whole:
        return x
    form = {"shape": [{"Batch": -d} if d < 0 else {"Fixed": d} for d in whole], "axis": len(whole) - len(x.shape)}
    return append("Expand", form, [x], "expand")


def axes_of(input: Variable, dim: int | Sequence[int] | None, layer: str) -> list[int]:
    """The axes that are meant, ascending; none means all."""
    program_of([input], layer)
    rank = len(input.shape)
    dims = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
    axes = sorted({d + rank if d < 0 else d for d in dims})
    if any(not 0 <= axis < rank for axis in axes):
        raise ProgramError(f"{layer}: {input!r} has no axis {dim}", op=layer, var=input.name)
    return axes


def _reduction(name: str, op: str) -> Callable[..., Variable]:
    def function(
        input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
    ) -> Variable:
        axes = axes_of(input, dim, layer)
        return append("Reduce", {"op": op, "axes": axes, "keep": keep_dim}, [input], layer, name)

    layer = name
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {op.lower()} along axes, or of everything."
    return function


reduce_sum = _reduction("reduce_sum", "Sum")
reduce_mean = _reduction("reduce_mean", "Mean")
reduce_max = _reduction("reduce_max", "Max")
reduce_min = _reduction("reduce_min", "Min")


def mean(x: Variable, name: str | None = None) -> Variable:
    """The mean of all elements."""
    return append("Reduce", {"op": "Mean", "axes": [], "keep": False}, [x], "mean", name)


def sums(input: Sequence[Variable], out: Variable | str | None = None, name: str | None = None) -> Variable:
    """The sum of variables of the same type and shape."""
    if isinstance(out, str):
        # The name was the second argument before.
        out, name = None, out
    refuse("sums", IN_PLACE, out=out)
    given = list(input)
    program_of(given, "sum")
    with at_once(given):
        return append("Sum", None, [as_alike(x, given[0].shape) for x in given], "sum", name)


def cast(x: Variable, dtype: Any, name: str | None = None) -> Variable:
    """Converted to another element type."""
    return converted(x, dtype, name)


__all__ = [
    "abs",
    "cast",
    "ceil",
    "clip",
    "cos",
    "elementwise_add",
    "elementwise_div",
    "elementwise_floordiv",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mod",
    "elementwise_mul",
    "elementwise_pow",
    "elementwise_sub",
    "elu",
    "equal",
    "exp",
    "floor",
    "gelu",
    "greater_equal",
    "greater_than",
    "hard_sigmoid",
    "leaky_relu",
    "less_equal",
    "less_than",
    "log",
    "log_softmax",
    "matmul",
    "mean",
    "not_equal",
    "pow",
    "reciprocal",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "scale",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "sums",
    "swish",
    "tanh",
]
