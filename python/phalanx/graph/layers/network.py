"""Layers with parameters.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     words = graph.data("words", [None, 8], "int64")
...     graph.layers.embedding(words, size=[1000, 16], is_sparse=True).shape
(-1, 8, 16)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.graph._layer import Layer
from phalanx.graph.errors import ProgramError
from phalanx.graph.layers import arithmetic, shaping
from phalanx.graph.param_attr import ParamAttr
from phalanx.graph.program import Variable


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
    # Time is a dimension of its own here, which Paddle's scripts do not count.
    flatten = 2 if num_flatten_dims == 1 and any(x.lod_level for x in inputs) else num_flatten_dims
    has_bias = bias_attr is not False
    form = {"size": int(size), "flatten": int(flatten), "bias": has_bias, "act": arithmetic.activation(act)}
    return layer.expand({"Fc": form}, inputs, {"w": param_attr, "b": bias_attr})[0]


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
    form = {
        "filters": int(num_filters),
        "kernel": _pair(filter_size),
        "stride": _pair(stride),
        "padding": _pair(padding),
        "dilation": _pair(dilation),
        "groups": int(groups or 1),
        "bias": bias_attr is not False,
        "act": arithmetic.activation(act),
    }
    return layer.expand({"Conv": form}, [input], {"w": param_attr, "b": bias_attr})[0]


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
    form: dict[str, Any] = {"op": ops[pool_type], "kernel": kernel, "stride": stride, "padding": padding}
    if global_pooling:
        form.update(kernel=None, stride=[1, 1], padding=[0, 0])
    elif min(kernel) < 1:
        raise ProgramError(f"pool2d needs pool_size, or global_pooling=True; got {pool_size}", op="pool2d")
    return layer.expand({"Pool": form}, [input])[0]


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
    form = {
        "epsilon": float(epsilon),
        "momentum": float(momentum),
        "fixed": bool(is_test or use_global_stats),
        "act": arithmetic.activation(act),
    }
    given = {"scale": param_attr, "shift": bias_attr, "mean": moving_mean_name, "var": moving_variance_name}
    return layer.expand({"BatchNorm": form}, [input], given)[0]


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
    fixed = ParamAttr(trainable=False)
    form = {"axis": int(begin_norm_axis), "epsilon": float(epsilon), "act": arithmetic.activation(act)}
    given = {"scale": param_attr if scale else fixed, "shift": bias_attr if shift else fixed}
    return layer.expand({"LayerNorm": form}, [input], given)[0]


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
    layer.dtype = dtype
    form = {
        "height": int(height),
        "width": int(width),
        "sparse": bool(is_sparse),
        "padding": None if padding_idx is None else padding_idx + height if padding_idx < 0 else padding_idx,
        "squeeze": True,
    }
    return layer.expand({"Embedding": form}, [input], {"w": param_attr})[0]


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
    form = {
        "probability": float(dropout_prob),
        "stream": shaping.stream(x.program),
        "downscale": dropout_implementation == "downgrade_in_infer",
        "testing": bool(is_test),
    }
    return layer.expand({"Dropout": form}, [x])[0]


def attention(
    input: Variable, num_heads: int, mask: Variable | None = None, param_attr: Any = None, name: str | None = None
) -> Variable:
    """Attention of ``[n, t, width]`` to itself; the mask is added to the scores.

    Padding after the end of a sequence gets no attention.
    """
    layer = Layer("attention", input, name)
    if ParamAttr._of(param_attr).name is not None:
        raise ProgramError("attention: its four layers cannot share one parameter; leave the name out", op="attention")
    lengths = input.lengths
    form = {
        "heads": int(num_heads),
        "causal": False,
        "mask": mask is not None,
        "ragged": lengths is not None,
        "dropout": None,
    }
    inputs = [input, input, *(x for x in (mask, lengths) if x is not None)]
    out = layer.expand({"Attention": form}, inputs, {"w": param_attr})[0]
    if lengths is not None:
        out.program._lengths[out.name] = lengths.name
    return out


__all__ = ["attention", "batch_norm", "conv2d", "dropout", "embedding", "fc", "layer_norm", "pool2d"]
