"""Small networks that scripts use as one layer.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     image = graph.layers.data("image", [1, 28, 28])
...     simple_img_conv_pool(image, filter_size=5, num_filters=20, pool_size=2, pool_stride=2, act="relu").shape
(-1, 20, 12, 12)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.graph import layers
from phalanx.graph._adding import alike, append
from phalanx.graph.errors import ProgramError
from phalanx.graph.program import Variable


def simple_img_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: Any,
    pool_size: Any,
    pool_stride: Any,
    pool_padding: Any = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Any = 1,
    conv_padding: Any = 0,
    conv_dilation: Any = 1,
    conv_groups: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    use_cudnn: bool = True,
) -> Variable:
    """A convolution and a pool."""
    out = layers.conv2d(
        input,
        num_filters,
        filter_size,
        conv_stride,
        conv_padding,
        conv_dilation,
        conv_groups,
        param_attr,
        bias_attr,
        act=act,
    )
    return layers.pool2d(out, pool_size, pool_type, pool_stride, pool_padding, global_pooling)


def img_conv_group(
    input: Variable,
    conv_num_filter: Sequence[int],
    pool_size: Any,
    conv_padding: Any = 1,
    conv_filter_size: Any = 3,
    conv_act: str | None = None,
    param_attr: Any = None,
    conv_with_batchnorm: Any = False,
    conv_batchnorm_drop_rate: Any = 0.0,
    pool_stride: Any = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
) -> Variable:
    """Convolutions one after the other, each with batch norm and dropout if asked for, and a pool."""
    n = len(conv_num_filter)

    def each(what: str, value: Any) -> list[Any]:
        if isinstance(value, (list, tuple)):
            if len(value) != n:
                raise ProgramError(f"img_conv_group: {what} has {len(value)} values for {n} convolutions")
            return list(value)
        return [value] * n

    paddings, sizes = each("conv_padding", conv_padding), each("conv_filter_size", conv_filter_size)
    attrs, norms = each("param_attr", param_attr), each("conv_with_batchnorm", conv_with_batchnorm)
    rates = each("conv_batchnorm_drop_rate", conv_batchnorm_drop_rate)
    out = input
    for i in range(n):
        act = None if norms[i] else conv_act
        out = layers.conv2d(out, conv_num_filter[i], sizes[i], padding=paddings[i], param_attr=attrs[i], act=act)
        if norms[i]:
            out = layers.batch_norm(out, act=conv_act)
            if abs(rates[i]) > 1e-5:
                out = layers.dropout(out, rates[i])
    return layers.pool2d(out, pool_size, pool_type, pool_stride)


def sequence_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: int,
    param_attr: Any = None,
    act: str | None = "sigmoid",
    pool_type: str = "max",
    bias_attr: Any = None,
) -> Variable:
    """A convolution over time and a pool over each sequence."""
    out = layers.sequence_conv(input, num_filters, filter_size, param_attr=param_attr, bias_attr=bias_attr, act=act)
    return layers.sequence_pool(out, pool_type)


def glu(input: Variable, dim: int = -1) -> Variable:
    """One half times the sigmoid of the other."""
    a, b = layers.split(input, 2, dim)
    return a * layers.sigmoid(b)


def scaled_dot_product_attention(
    queries: Variable, keys: Variable, values: Variable, num_heads: int = 1, dropout_rate: float = 0.0
) -> Variable:
    """Attention of ``[n, time, width]``. Several heads have fully connected layers for queries, keys and values.

    Padding after the end of a sequence gets no attention.
    """
    for what, x in (("queries", queries), ("keys", keys), ("values", values)):
        if len(x.shape) != 3 or x.shape[2] % num_heads:
            raise ProgramError(f"{what} must be [n, time, width] with a width of {num_heads} equal parts, got {x!r}")

    def heads(x: Variable) -> Variable:
        # What is behind the ends is told by the lengths below.
        plain = layers.sequence_pad(x, 0.0)[0] if x.lod_level else x
        parts = layers.reshape(plain, [0, 0, num_heads, x.shape[2] // num_heads])
        return layers.transpose(parts, [0, 2, 1, 3])

    alike(queries.program, [x for x in (keys, values) if x.lod_level])
    ends, own = keys.lengths if keys.lengths is not None else values.lengths, queries.lengths
    if num_heads > 1:
        queries, keys, values = (layers.fc(x, x.shape[2], num_flatten_dims=2) for x in (queries, keys, values))
    q, k, v = heads(queries), heads(keys), heads(values)
    scores = layers.matmul(layers.scale(q, (queries.shape[2] // num_heads) ** -0.5), k, transpose_y=True)
    if ends is not None:
        form = {"causal": False, "ragged": True, "value": -1e9}
        scores = append("MaskScores", form, [scores, ends], "attention")
    weights = layers.softmax(scores) if ends is None else append("Softmax", {"log": False}, [scores], "softmax")
    if dropout_rate:
        weights = layers.dropout(weights, dropout_rate)
    out = layers.transpose(layers.matmul(weights, v), [0, 2, 1, 3])
    out = layers.reshape(out, [0, 0, values.shape[2]])
    return out if own is None else layers.sequence_unpad(out, own)


__all__ = ["glu", "img_conv_group", "scaled_dot_product_attention", "sequence_conv_pool", "simple_img_conv_pool"]
