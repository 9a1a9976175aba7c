"""Layers with parameters.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     words = graph.data("words", [None, 8], "int64")
...     graph.layers.embedding(words, size=[1000, 16], is_sparse=True).shape
(-1, 8, 16)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from phalanx.graph import _lengths
from phalanx.graph._site import caller
from phalanx.graph.errors import ProgramError
from phalanx.graph.initializer import MSRA, Constant, Initializer, Normal, Xavier
from phalanx.graph.layers import arithmetic, shaping
from phalanx.graph.param_attr import ParamAttr, parameter
from phalanx.graph.program import Program, Variable, append, declare

# Far below any score, yet finite: a row of nothing else still has a softmax.
MASKED = -1e9


class Layer:
    """One call of a layer: where its parameters are declared, and what they are called."""

    def __init__(self, kind: str, x: Variable, name: str | None) -> None:
        if not isinstance(x, Variable):
            raise TypeError(f"{kind} takes a variable, got {type(x).__name__}")
        self.kind = kind
        self.x = x
        self.name = name
        self.program: Program = x.program
        self.prefix = name or x.program._prefix(kind)

    def parameter(self, given: Any, suffix: str, shape: Sequence[int], begin: Initializer) -> Variable:
        # A layer of this name in another program has parameters of its own.
        called = self.program._fresh(f"{self.prefix}.{suffix}") if ParamAttr._of(given).name is None else ""
        return parameter(self.program, given, called, self.x.dtype, shape, begin)

    def op(self, kind: str, attrs: Any, inputs: Sequence[Variable], *, last: bool = False) -> Variable:
        return append(kind, attrs, inputs, self.kind, self.name if last else None, self.prefix)

    def fixed(self, x: Variable, axis: int) -> int:
        """The size of a dimension that a parameter depends on."""
        if not -len(x.shape) <= axis < len(x.shape):
            raise ProgramError(f"{self.kind}: {x!r} has no axis {axis}", op=self.kind, var=x.name)
        if x.shape[axis] < 0:
            raise ProgramError(
                f"{self.kind}: axis {axis} of {x!r} depends on the batch; it must have a fixed size",
                op=self.kind,
                var=x.name,
            )
        return x.shape[axis]


def _pair(value: int | Sequence[int]) -> list[int]:
    both = [value, value] if isinstance(value, int) else list(value)
    if len(both) != 2:
        raise ProgramError(f"expected one number or two, got {value!r}")
    return [int(v) for v in both]


def fc(
    input: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """A fully connected layer. Dimensions from ``num_flatten_dims`` on are flattened.

    For sequences (``lod_level=1``) it is applied to each element, as in Paddle.
    """
    inputs = [input] if isinstance(input, Variable) else list(input)
    if not inputs:
        raise ProgramError("fc needs an input", op="fc")
    layer = Layer("fc", inputs[0], name)
    has_bias = bias_attr is not False
    parts = []
    # Time is a dimension of its own here, which Paddle's scripts do not count.
    num_flatten_dims = 2 if num_flatten_dims == 1 and any(x.lod_level for x in inputs) else num_flatten_dims
    for x in inputs:
        outer = x.shape[:num_flatten_dims]
        if len(x.shape) <= num_flatten_dims:
            raise ProgramError(f"fc: {x!r} has no dimension {num_flatten_dims} to take from", op="fc", var=x.name)
        width = math.prod(layer.fixed(x, axis) for axis in range(num_flatten_dims, len(x.shape)))
        if len(x.shape) != num_flatten_dims + 1:
            x = layer.op("Reshape", {"shape": shaping.dims([*outer, width])}, [x])
        w = layer.parameter(param_attr, "w", [width, size], Xavier())
        last = len(inputs) == 1 and not has_bias and act is None
        parts.append(layer.op("MatMul", {"trans_a": False, "trans_b": False}, [x, w], last=last))
    y = parts[0] if len(parts) == 1 else layer.op("Sum", None, parts, last=not has_bias and act is None)
    if has_bias:
        b = layer.parameter(bias_attr, "b", [size], Constant(0.0))
        y = layer.op("Binary", {"op": "Add", "axis": len(y.shape) - 1}, [y, b], last=act is None)
    return arithmetic.activate(y, act, name)


def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Filters over images ``[n, c, h, w]``.

    They are initialized around zero with a standard deviation of ``sqrt(2 / (c * filter height * filter width))``, also
    with groups.
    """
    _images("conv2d", data_format)
    layer = Layer("conv2d", input, name)
    n_groups = groups or 1
    channels = layer.fixed(input, 1)
    if n_groups < 1 or channels % n_groups or num_filters % n_groups:
        raise ProgramError(
            f"conv2d: {channels} channels and {num_filters} filters cannot be divided into {n_groups} groups",
            op="conv2d",
        )
    size = _pair(filter_size)
    # As Paddle's: filters of groups begin as those that see all channels do.
    begin = MSRA() if n_groups == 1 else Normal(0.0, math.sqrt(2.0 / max(channels * math.prod(size), 1)))
    w = layer.parameter(param_attr, "w", [num_filters, channels // n_groups, *size], begin)
    form = {"stride": _pair(stride), "padding": _pair(padding), "dilation": _pair(dilation), "groups": n_groups}
    has_bias = bias_attr is not False
    y = layer.op("Conv2d", form, [input, w], last=not has_bias and act is None)
    if has_bias:
        b = layer.parameter(bias_attr, "b", [num_filters], Constant(0.0))
        y = layer.op("Binary", {"op": "Add", "axis": 1}, [y, b], last=act is None)
    return arithmetic.activate(y, act, name)


def _images(op: str, data_format: str) -> None:
    if data_format != "NCHW":
        raise ProgramError(f"{op} takes images as NCHW, not {data_format}", op=op)


def pool2d(
    input: Variable,
    pool_size: int | Sequence[int] = -1,
    pool_type: str = "max",
    pool_stride: int | Sequence[int] = 1,
    pool_padding: int | Sequence[int] = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """The highest, or the mean, of each window of images ``[n, c, h, w]``."""
    _images("pool2d", data_format)
    layer = Layer("pool2d", input, name)
    ops = {"max": "Max", "avg": "Mean"}
    if pool_type not in ops or ceil_mode or not exclusive:
        text = f"pool_type={pool_type!r}, ceil_mode={ceil_mode}, exclusive={exclusive}"
        raise ProgramError(
            f"pool2d takes pool_type max or avg, ceil_mode=False and exclusive=True; got {text}", op="pool2d"
        )
    kernel, stride, padding = _pair(pool_size), _pair(pool_stride), _pair(pool_padding)
    if global_pooling:
        kernel, stride, padding = [layer.fixed(input, 2), layer.fixed(input, 3)], [1, 1], [0, 0]
    if min(kernel) < 1:
        raise ProgramError(f"pool2d needs pool_size, or global_pooling=True; got {pool_size}", op="pool2d")
    form = {"op": ops[pool_type], "kernel": kernel, "stride": stride, "padding": padding}
    return layer.op("Pool2d", form, [input], last=True)


def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    use_global_stats: bool = False,
) -> Variable:
    """Normalises each channel (axis 1) over the batch; in a program for testing, by the learned statistics."""
    _images("batch_norm", data_layout)
    layer = Layer("batch_norm", input, name)
    program, channels = layer.program, [layer.fixed(input, 1)]
    scale = layer.parameter(param_attr, "w", channels, Constant(1.0))
    shift = layer.parameter(bias_attr, "b", channels, Constant(0.0))

    def state(given: str | None, suffix: str, value: float) -> Variable:
        if given is not None and program._graph.var(given) is not None:
            return program.var(given)
        called = given or (program._fresh(f"{layer.prefix}.{suffix}") if name else f"{layer.prefix}.{suffix}")
        return declare(program, called, input.dtype, channels, {"State": {"Constant": value}})

    mean, var = state(moving_mean_name, "mean", 0.0), state(moving_variance_name, "variance", 1.0)
    if is_test or use_global_stats:
        y = layer.op("BatchNormFixed", {"epsilon": epsilon}, [input, scale, shift, mean, var], last=act is None)
        return arithmetic.activate(y, act, name)

    _lengths.check("BatchNorm", None, [input], program._lengths, "batch_norm", "{}:{}".format(*caller()))

    def temporary(called: str, shape: Sequence[int]) -> Variable:
        return declare(program, program._graph.fresh(called), input.dtype, shape, "Temp")

    y = temporary(name if name is not None and act is None else f"{layer.prefix}.tmp_0", input.shape)
    outputs = [
        y,
        mean,
        var,
        temporary(f"{layer.prefix}.batch_mean", channels),
        temporary(f"{layer.prefix}.batch_inv", channels),
    ]
    form = {"BatchNorm": {"epsilon": float(epsilon), "momentum": float(momentum)}}
    program._append_to(form, [input, scale, shift, mean, var], outputs)
    return arithmetic.activate(y, act, name)


def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Normalises everything from ``begin_norm_axis`` on."""
    layer = Layer("layer_norm", input, name)
    inner = [layer.fixed(input, axis) for axis in range(begin_norm_axis, len(input.shape))]
    fixed = ParamAttr(trainable=False)
    w = layer.parameter(param_attr if scale else fixed, "w", inner, Constant(1.0))
    b = layer.parameter(bias_attr if shift else fixed, "b", inner, Constant(0.0))
    form = {"axis": begin_norm_axis, "epsilon": float(epsilon)}
    return arithmetic.activate(layer.op("LayerNorm", form, [input, w, b], last=act is None), act, name)


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: str = "float32",
    name: str | None = None,
) -> Variable:
    """Rows of a trainable table ``[height, width]``, by number. With ``is_sparse`` only the rows that were used are updated."""
    if is_distributed:
        raise ProgramError(
            "embedding: is_distributed=True is not supported: a table is not spread over processes; leave it out"
        )
    height, width = size
    layer = Layer("embedding", input, name)
    ids = input
    if len(ids.shape) > 1 and ids.shape[-1] == 1:
        ids = layer.op("Reshape", {"shape": shaping.dims(ids.shape[:-1])}, [ids])
    padding = None if padding_idx is None else padding_idx + height if padding_idx < 0 else padding_idx
    begin = Normal(0.0, 0.05)
    called = layer.program._fresh(f"{layer.prefix}.w") if ParamAttr._of(param_attr).name is None else ""
    table = parameter(layer.program, param_attr, called, dtype, [height, width], begin)
    return layer.op("Embedding", {"sparse": is_sparse, "padding": padding}, [table, ids], last=True)


def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: bool = False,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """Zeroes elements with a probability from 0 to 1; with 1 all elements and gradients are zero.

    ``downgrade_in_infer`` scales by ``1 - p`` when testing, ``upscale_in_train`` divides by it when training. The seed
    of the scope decides which elements are zeroed; the number of devices does not matter.
    """
    if seed:
        raise ProgramError(
            f"dropout: random numbers come from the seed of the scope; seed={seed} is not supported", op="dropout"
        )
    if dropout_implementation not in ("downgrade_in_infer", "upscale_in_train"):
        raise ProgramError(f"dropout: there is no implementation {dropout_implementation!r}", op="dropout")
    layer = Layer("dropout", x, name)
    down = dropout_implementation == "downgrade_in_infer"
    form = {"probability": float(dropout_prob), "stream": shaping.stream(x.program), "samples": shaping.samples(x)}
    kept = {"Scale": {"a": 1.0 - float(dropout_prob), "b": 0.0}}
    if is_test:
        return layer.op("Unary", kept, [x], last=True) if down else layer.op("Assign", None, [x], last=True)
    y = layer.op("Dropout", form, [x], last=not down)
    return layer.op("Unary", kept, [y], last=True) if down else y


def attention(
    input: Variable, num_heads: int, mask: Variable | None = None, param_attr: Any = None, name: str | None = None
) -> Variable:
    """Attention of ``[n, t, width]`` to itself; the mask is added to the scores.

    Padding after the end of a sequence gets no attention.
    """
    layer = Layer("attention", input, name)
    if len(input.shape) != 3:
        raise ProgramError(f"attention takes [n, t, width], got {input!r}", op="attention", var=input.name)
    n, time, width = input.shape[0], layer.fixed(input, 1), layer.fixed(input, 2)
    if num_heads < 1 or width % num_heads:
        raise ProgramError(
            f"attention: a width of {width} cannot be divided into {num_heads} heads", op="attention", var=input.name
        )
    if ParamAttr._of(param_attr).name is not None:
        raise ProgramError("attention: its four layers cannot share one parameter; leave the name out", op="attention")
    each = width // num_heads

    def part() -> Variable:
        y = fc(input, width, num_flatten_dims=2, param_attr=param_attr)
        y = shaping.dims_as(y, [n, time, num_heads, each])
        return shaping.transpose(y, [0, 2, 1, 3])

    q, k, v = part(), part(), part()
    scores = arithmetic.matmul(q, k, transpose_y=True, alpha=1.0 / math.sqrt(each))
    if mask is not None:
        scores = scores + mask
    if input.lengths is not None:
        # It replaces scores and does not add to them: whatever lies behind an end, it must not show.
        form = {"causal": False, "ragged": True, "value": MASKED}
        scores = append("MaskScores", form, [scores, input.lengths], "attention")
    mixed = arithmetic.matmul(arithmetic.weights(scores), v)
    mixed = shaping.dims_as(shaping.transpose(mixed, [0, 2, 1, 3]), [n, time, width])
    out = fc(mixed, width, num_flatten_dims=2, param_attr=param_attr, name=name)
    if input.lengths is not None:
        out.program._lengths[out.name] = input.lengths.name
    return out


__all__ = ["attention", "batch_norm", "conv2d", "dropout", "embedding", "fc", "layer_norm", "pool2d"]
