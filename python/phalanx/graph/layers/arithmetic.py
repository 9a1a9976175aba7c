"""Functions of elements, arithmetic and reductions.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program()):
...     x = graph.data("x", [None, 3])
...     graph.layers.reduce_sum(graph.layers.relu(x), dim=1).shape
(-1,)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from phalanx.graph import _values
from phalanx.graph._layer import expand
from phalanx.graph._operators import as_alike, at_once, check_compared, check_real, widened
from phalanx.graph.errors import ProgramError
from phalanx.graph.program import Variable, _program_of, append


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
gelu = _function("gelu", "Gelu")
softplus = _function("softplus", "Softplus")
softsign = _function("softsign", "Softsign")
swish = _function("swish", "Swish")
hard_sigmoid = _function("hard_sigmoid", "HardSigmoid")
relu6 = _function("relu6", "Relu6")
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
round = _function("round", "Round")


def leaky_relu(x: Variable, alpha: float = 0.02, name: str | None = None) -> Variable:
    """``x`` where it is positive, ``alpha * x`` elsewhere."""
    return append("Unary", {"LeakyRelu": {"slope": float(alpha)}}, [x], "leaky_relu", name)


def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """``x`` where it is positive, ``alpha * (exp(x) - 1)`` elsewhere."""
    return append("Unary", {"Elu": {"alpha": float(alpha)}}, [x], "elu", name)


def pow(x: Variable, factor: float = 1.0, name: str | None = None) -> Variable:
    """``x ** factor``."""
    return append("Unary", {"Pow": {"by": float(factor)}}, [x], "pow", name)


def clip(x: Variable, min: float, max: float, name: str | None = None) -> Variable:
    """``x``, but not below ``min`` and not above ``max``."""
    return append("Unary", {"Clip": {"low": float(min), "high": float(max)}}, [x], "clip", name)


def scale(
    x: Variable,
    scale: float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """``scale * x + bias``, or ``scale * (x + bias)``."""
    b = float(bias) if bias_after_scale else float(scale) * float(bias)
    check_real("scale", x)
    form = {"Scale": {"a": float(scale), "b": b}}
    return activate(append("Unary", form, [x], "scale", None if act else name), act, name)


def activation(act: Any) -> str | None:
    """The name of an activation; the compiled module knows which there are."""
    return act if act is None or isinstance(act, str) else repr(act)


def activate(x: Variable, act: str | None, name: str | None = None) -> Variable:
    """Applies an activation after a layer."""
    return x if act is None else expand(str(act), {"Activation": {"act": activation(act)}}, [x], name)


def softmax(input: Variable, use_cudnn: bool = False, name: str | None = None, axis: int = -1) -> Variable:
    """Softmax over the last axis.

    No probability is zero, as in Paddle: a number more than 64 below the largest counts as 64 below it, so that
    ``cross_entropy`` has a gradient everywhere.
    """
    _last(input, axis, "softmax")
    return append("BoundedSoftmax", None, [input], "softmax", name)


def log_softmax(input: Variable, axis: int = -1, name: str | None = None) -> Variable:
    """The logarithm of the softmax over the last axis."""
    _last(input, axis, "log_softmax")
    return append("Softmax", {"log": True}, [input], "log_softmax", name)


def _last(x: Variable, axis: int, op: str) -> None:
    if axis not in (-1, len(x.shape) - 1):
        raise ProgramError(f"{op} supports only the last axis, not axis {axis} of {x!r}; transpose it", op=op)


def _elementwise(name: str, op: str) -> Callable[..., Variable]:
    def function(x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None) -> Variable:
        check_real(layer, x, y)
        with at_once([x, y] if len(x.shape) < len(y.shape) else []):
            x = widened(x, y)
            begin = len(x.shape) - len(y.shape) if axis == -1 else axis
            made = append("Binary", {"op": op, "axis": max(begin, 0)}, [x, y], layer, None if act else name)
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


def _comparison(name: str, op: str) -> Callable[[Variable, Variable], Variable]:
    def function(x: Variable, y: Variable) -> Variable:
        check_compared(name, x, y)
        x = widened(x, y)
        axis = max(len(x.shape) - len(y.shape), 0)
        return append("Compare", {"op": op, "axis": axis}, [x, y], name)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Whether ``x`` is {name.replace('_', ' ')} ``y``, for each pair of elements."
    return function


equal = _comparison("equal", "Equal")
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
    """``alpha * x @ y`` over the last two axes."""
    form = {"trans_a": transpose_x, "trans_b": transpose_y}
    made = append("MatMul", form, [x, y], "matmul", name if alpha == 1.0 else None)
    return made if alpha == 1.0 else scale(made, alpha, name=name)


def _reduction(name: str, op: str) -> Callable[..., Variable]:
    def function(
        input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
    ) -> Variable:
        rank = len(input.shape)
        dims = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
        axes = sorted({d + rank if d < 0 else d for d in dims})
        if any(not 0 <= axis < rank for axis in axes):
            raise ProgramError(f"{layer}: {input!r} has no axis {dim}", op=layer, var=input.name)
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


def sums(input: Sequence[Variable], name: str | None = None) -> Variable:
    """The sum of variables of the same type and shape."""
    given = list(input)
    _program_of(given, "sum")
    with at_once(given):
        return append("Sum", None, [as_alike(x, given[0].shape) for x in given], "sum", name)


def cast(x: Variable, dtype: Any, name: str | None = None) -> Variable:
    """Converted to another element type."""
    return append("Cast", {"to": _values.kind(dtype)}, [x], "cast", name)


__all__ = [
    "abs",
    "cast",
    "ceil",
    "clip",
    "cos",
    "elementwise_add",
    "elementwise_div",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mul",
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
