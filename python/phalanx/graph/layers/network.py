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

import numpy as np

from phalanx.graph import _values
from phalanx.graph._adding import append
from phalanx.graph._attributes import once
from phalanx.graph._layer import Layer
from phalanx.graph._refused import number, whole, wholes
from phalanx.graph.errors import ProgramError
from phalanx.graph.layers import arithmetic, shaping
from phalanx.graph.param_attr import ParamAttr
from phalanx.graph.program import Variable


def _pair(value: int | Sequence[int], least: int | None = None) -> list[int]:
    both: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value, value]
    if len(both) != 2 or any(isinstance(v, bool) or not isinstance(v, (int, np.integer)) for v in both):
        raise ProgramError(f"a size, stride, padding or dilation is one whole number or two, got {value!r}")
    if least is not None and min(both) < least:
        what = "padding" if least == 0 else "size, stride or dilation"
        raise ProgramError(f"a {what} must be at least {least}, got {value!r}")
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
    if not isinstance(input, (Variable, list, tuple)):
        raise TypeError(f"fc takes a variable or a list of them, got {type(input).__name__}")
    inputs = [input] if isinstance(input, Variable) else list(input)
    if not inputs:
        raise ProgramError("fc needs an input", op="fc")
    layer = Layer("fc", inputs[0], name)
    if num_flatten_dims == -1:
        num_flatten_dims = len(inputs[0].shape) - 1
    # Time is a dimension of its own here, which Paddle's scripts do not count.
    flatten = 2 if num_flatten_dims == 1 and any(x.lod_level for x in inputs) else num_flatten_dims
    has_bias = bias_attr is not False
    size, flatten = whole("fc", "size", size), whole("fc", "num_flatten_dims", flatten)
    form = {"size": size, "flatten": flatten, "bias": has_bias, "act": arithmetic.activation(act)}
    return layer.expand({"Fc": form}, inputs, {"w": param_attr, "b": bias_attr})[0]


def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[Any] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Filters over images ``[n, c, h, w]``, or ``[n, h, w, c]`` with ``data_format="NHWC"``.

    ``padding`` is one number, two, four (above, below, left, right), ``"SAME"`` or ``"VALID"``.

    They are initialized around zero with a standard deviation of ``sqrt(2 / (c * filter height * filter width))``, also
    with groups.
    """
    layer, is_last = Layer("conv2d", input, name), data_format == "NHWC"
    around = _sides(padding, data_format)
    if is_last:
        input, layer.output = _first(input), None
    else:
        _images("conv2d", data_format)
    kernel, steps, spread = _pair(filter_size, 1), _pair(stride, 1), _pair(dilation, 1)
    reach = [d * (k - 1) + 1 for d, k in zip(spread, kernel, strict=True)]
    input, around = _padded(input, around, reach, steps, "conv2d")
    form = {
        "filters": whole("conv2d", "num_filters", num_filters),
        "kernel": kernel,
        "stride": steps,
        "padding": around,
        "dilation": spread,
        "groups": whole("conv2d", "groups", groups or 1),
        "bias": bias_attr is not False,
        "act": arithmetic.activation(act),
    }
    out = layer.expand({"Conv": form}, [input], {"w": param_attr, "b": bias_attr})[0]
    return _last(out, name) if is_last else out


def _first(x: Variable) -> Variable:
    """Channels before the places."""
    if len(x.shape) != 4:
        raise ProgramError(f"NHWC images have four dimensions, got {x!r}", var=x.name)
    return shaping.transpose(x, [0, 3, 1, 2])


def _last(x: Variable, name: str | None) -> Variable:
    """Channels behind the places."""
    return shaping.transpose(x, [0, 2, 3, 1], name)


def _sides(padding: Any, data_format: str) -> Any:
    """Padding as one number, two, four, or a word."""
    if isinstance(padding, str) or not hasattr(padding, "__iter__"):
        return padding.upper() if isinstance(padding, str) else padding
    flat = list(padding)
    if flat and hasattr(flat[0], "__iter__"):
        # A pair for each dimension.
        outer = (flat[:2], flat[2:]) if data_format == "NCHW" else ([flat[0], flat[3]], flat[1:3])
        if len(flat) != 4 or any(list(pair) != [0, 0] for pair in outer[0]):
            raise ProgramError(f"padding={padding!r}: four pairs, of which only those of height and width are not 0")
        flat = [side for pair in outer[1] for side in pair]
    if len(flat) not in (1, 2, 4):
        raise ProgramError(f"padding={padding!r}; it must be one number, two, four, 'SAME' or 'VALID'")
    return flat[0] if len(flat) == 1 else flat


def _around(x: Variable, padding: Any, reach: list[int], stride: list[int], op: str) -> list[int]:
    """How much comes around images: above, below, left, right."""
    if padding == "VALID":
        return [0, 0, 0, 0]
    if padding == "SAME":
        if len(x.shape) != 4 or any(d < 0 for d in x.shape[2:]):
            raise ProgramError(f"{op}: padding='SAME' needs images of a known size, got {x!r}", op=op, var=x.name)
        x.program._measured.update([(x.name, 2), (x.name, 3)])
        sides = []
        for n, k, s in zip(x.shape[2:], reach, stride, strict=True):
            if k < 1 or s < 1:
                raise ProgramError(f"{op}: windows of {reach} and strides of {stride} must be from 1", op=op)
            both = max((-(-n // s) - 1) * s + k - n, 0)
            sides += [both // 2, both - both // 2]
        return sides
    if isinstance(padding, str):
        raise ProgramError(f"{op}: padding={padding!r}; the words are 'SAME' and 'VALID'", op=op, got=padding)
    if isinstance(padding, list) and len(padding) == 4:
        sides = wholes(op, "padding", padding)
        return [*_pair(sides[:2], 0), *_pair(sides[2:], 0)]
    height, width = _pair(padding, 0)
    return [height, height, width, width]


def _is_even(sides: list[int]) -> bool:
    return sides[0] == sides[1] and sides[2] == sides[3]


def _padded(
    x: Variable, padding: Any, reach: list[int], stride: list[int], op: str, value: float = 0.0
) -> tuple[Variable, list[int]]:
    """Images with what cannot be said by one number for each side already around them, and the rest."""
    sides = _around(x, padding, reach, stride, op)
    if _is_even(sides):
        return x, [sides[0], sides[2]]
    from phalanx.graph.layers import composed

    return composed.pad2d(x, sides, pad_value=value), [0, 0]


def _images(op: str, data_format: str) -> None:
    if data_format != "NCHW":
        raise ProgramError(f"{op} takes images as NCHW, not {data_format}", op=op)


def pool2d(
    input: Variable,
    pool_size: int | Sequence[int] = -1,
    pool_type: str = "max",
    pool_stride: int | Sequence[int] = 1,
    pool_padding: int | Sequence[Any] | str = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """The highest, or the mean, of each window of images ``[n, c, h, w]``, or ``[n, h, w, c]`` with NHWC.

    With ``ceil_mode`` the last windows may reach beyond the padding. Means count padding unless ``exclusive``; what
    lies beyond the padding they never count, as in PyTorch, where Paddle divides by the whole window.
    """
    if data_format == "NHWC":
        moved = _sides(pool_padding, data_format)
        way = (pool_size, pool_type, pool_stride, moved, global_pooling, use_cudnn, ceil_mode)
        return _last(pool2d(_first(input), *way, exclusive=exclusive), name)
    _images("pool2d", data_format)
    layer = Layer("pool2d", input, name)
    ops = {"max": "Max", "avg": "Mean"}
    if pool_type not in ops:
        raise ProgramError(f"pool2d takes pool_type max or avg; got {pool_type!r}", op="pool2d", got=pool_type)
    kernel, stride = _pair(pool_size, None if global_pooling else 1), _pair(pool_stride, 1)
    sides = _sides(pool_padding, "NCHW")
    if global_pooling:
        padding = [0, 0]
    else:
        around = _around(input, sides, kernel, stride, "pool2d")
        if pool_type == "avg" and exclusive and not _is_even(around):
            raise ProgramError(
                "pool2d: means without padding that differs from side to side are not supported; pass "
                "exclusive=False, or pad2d first",
                op="pool2d",
            )
        # Nothing is below it, and it can be written in a program.
        low = -_values.largest(input.dtype) if pool_type == "max" else 0.0
        input, padding = _padded(input, sides, kernel, stride, "pool2d", low)
    if (ceil_mode or not exclusive) and not global_pooling:
        steps = {"kernel": kernel, "stride": stride, "padding": padding, "ceil": bool(ceil_mode)}
        rule = {"Steps": {**steps, "counted": not exclusive}}
        return append("PoolWindows", {"op": ops[pool_type], "rule": rule}, [input], "pool2d", name)
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
    do_model_average_for_mean_and_var: bool | None = None,
    use_global_stats: bool = False,
) -> Variable:
    """Normalises each channel (axis 1) over the batch; in a program for testing, by the learned statistics."""
    if do_model_average_for_mean_and_var:
        once(
            "batch_norm: do_model_average_for_mean_and_var=True has no effect: ModelAverage takes the mean of parameters, "
            "and statistics are running means already"
        )
    layer = Layer("batch_norm", input, name)
    # Rows [n, c] have no places that channels could be behind.
    is_last = data_layout == "NHWC" and len(input.shape) != 2
    if is_last:
        input, layer.output = _first(input), None
    elif data_layout != "NHWC":
        _images("batch_norm", data_layout)
    param_attr, bias_attr = (_unlearned(attr) for attr in (param_attr, bias_attr))
    form = {
        "epsilon": number("batch_norm", "epsilon", epsilon, least=0.0),
        "momentum": number("batch_norm", "momentum", momentum, least=0.0, most=1.0),
        "fixed": bool(is_test or use_global_stats),
        "act": arithmetic.activation(act),
    }
    given = {"scale": param_attr, "shift": bias_attr, "mean": moving_mean_name, "var": moving_variance_name}
    out = layer.expand({"BatchNorm": form}, [input], given)[0]
    return _last(out, name) if is_last else out


def _unlearned(attr: Any) -> Any:
    """``False`` leaves a parameter of a norm as it begins."""
    return ParamAttr(trainable=False) if attr is False else attr


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
    form = {
        "axis": whole("layer_norm", "begin_norm_axis", begin_norm_axis),
        "epsilon": number("layer_norm", "epsilon", epsilon, least=0.0),
        "act": arithmetic.activation(act),
    }
    param_attr, bias_attr = (_unlearned(attr) for attr in (param_attr, bias_attr))
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
    return looked_up(input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype, name, squeeze=True)


def looked_up(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool,
    is_distributed: bool,
    padding_idx: int | None,
    param_attr: Any,
    dtype: str,
    name: str | None = None,
    *,
    squeeze: bool,
) -> Variable:
    """The same, with or without taking numbers ``[…, 1]`` for ``[…]``."""
    if is_distributed:
        raise ProgramError(
            "embedding: is_distributed=True is not supported: a table is not spread over processes; leave it out"
        )
    table = wholes("embedding", "size", size)
    if len(table) != 2:
        raise ProgramError(f"embedding: size={size!r} must be [height, width] of the table", op="embedding")
    height, width = table
    if padding_idx is not None and not -height <= whole("embedding", "padding_idx", padding_idx) < height:
        raise ProgramError(f"embedding: padding_idx={padding_idx} is not one of the {height} rows", op="embedding")
    layer = Layer("embedding", input, name)
    input = shaping.as_whole(input)
    layer.dtype = dtype
    form = {
        "height": height,
        "width": width,
        "sparse": bool(is_sparse),
        "padding": None if padding_idx is None else padding_idx + height if padding_idx < 0 else padding_idx,
        "squeeze": squeeze,
        "begin": "Xavier",
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
        "probability": number("dropout", "dropout_prob", dropout_prob, least=0.0, most=1.0),
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
        "heads": whole("attention", "num_heads", num_heads),
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
