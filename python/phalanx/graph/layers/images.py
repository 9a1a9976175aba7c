"""More layers over images ``[n, c, h, w]``.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     x = graph.data("x", [None, 3, 5, 5])
...     graph.layers.conv2d_transpose(x, 4, filter_size=3, stride=2).shape
(-1, 4, 11, 11)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from phalanx.graph._adding import append, program_of
from phalanx.graph._layer import Layer
from phalanx.graph._refused import number, whole
from phalanx.graph.errors import ProgramError
from phalanx.graph.initializer import Constant, Xavier
from phalanx.graph.layers import arithmetic, shaping
from phalanx.graph.layers.network import _around, _first, _images, _is_even, _last, _pair, _sides
from phalanx.graph.param_attr import parameter
from phalanx.graph.program import Variable


def conv2d_transpose(
    input: Variable,
    num_filters: int,
    output_size: int | Sequence[int] | None = None,
    filter_size: int | Sequence[int] | None = None,
    padding: int | Sequence[Any] | str = 0,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """The transpose of a convolution: from images ``[n, c, h, w]`` to larger ones; filters ``[c, filters / groups, h, w]``.

    Without ``filter_size`` it follows from ``output_size``. ``padding`` is what the result loses: one number, two, four
    (above, below, left, right), ``"SAME"`` or ``"VALID"``; with ``data_format="NHWC"`` images are ``[n, h, w, c]``.
    """
    op = "conv2d_transpose"
    layer, is_last = Layer(op, input, name), data_format == "NHWC"
    around = _sides(padding, data_format)
    if is_last:
        input = _first(input)
    else:
        _images(op, data_format)
    if len(input.shape) != 4 or any(d < 0 for d in input.shape[1:]):
        raise ProgramError(f"{op} takes images [n, c, h, w], got {input!r}", op=op, var=input.name)
    strides, dilations, group = _pair(stride, 1), _pair(dilation, 1), whole(op, "groups", groups or 1)
    kernel = None if filter_size is None else _pair(filter_size, 1)
    if around == "SAME" and (kernel is None or dilations != [1, 1]):
        raise ProgramError(
            f"{op}: padding='SAME' needs filter_size and dilation=1, got filter_size={filter_size!r} and "
            f"dilation={dilation!r}",
            op=op,
        )
    sides = _around(input, around, kernel or [1, 1], strides, op)
    sizes = None if output_size is None else _pair(output_size)
    if sizes is not None and not _is_even(sides):
        raise ProgramError(f"{op}: output_size={output_size!r} with padding {sides}; leave one of them out", op=op)
    # Both sides lose what the smaller one does; the rest is cut off.
    pads = [min(sides[:2]), min(sides[2:])]
    channels = input.shape[1]
    kernel, out = _larger(op, input, kernel, sizes, [strides, pads, dilations])
    num_filters = whole(op, "num_filters", num_filters)
    if num_filters < 1 or channels % group or num_filters % group:
        raise ProgramError(f"{op}: {channels} channels and {num_filters} filters in {group} groups", op=op)
    shape = [channels, num_filters // group, *kernel]
    w = parameter(layer.program, param_attr, f"{layer.prefix}.w_0", layer.dtype, shape, Xavier()._form())
    form = {
        "conv": {"stride": strides, "padding": pads, "dilation": dilations, "groups": group},
        "shape": shaping.dims([input.shape[0], num_filters, *out]),
    }
    made = append("Conv2dInputGrad", form, [w, input], op, prefix=layer.prefix)
    if not _is_even(sides):
        begins = [sides[0] - pads[0], sides[2] - pads[1]]
        ends = [out[0] - (sides[1] - pads[0]), out[1] - (sides[3] - pads[1])]
        if any(end <= begin for begin, end in zip(begins, ends, strict=True)):
            raise ProgramError(f"{op}: padding {sides} leaves nothing of a result of {out}", op=op, var=input.name)
        made = shaping.slice(made, [2, 3], begins, ends)
    if bias_attr is not False:
        begin = Constant(0.0)._form()
        b = parameter(layer.program, bias_attr, f"{layer.prefix}.b_0", layer.dtype, [num_filters], begin)
        made = arithmetic.elementwise_add(made, b, axis=1, name=None if act or is_last else name)
    made = arithmetic.activate(made, act, None if is_last else name)
    if is_last:
        return _last(made, name)
    return made if name is None or made.name == name else shaping.assign(made, name=name)


def _larger(
    op: str, x: Variable, kernel: list[int] | None, sizes: list[int] | None, way: Sequence[list[int]]
) -> tuple[list[int], list[int]]:
    """The filters and the result of a transposed convolution, of which one follows from the other."""
    image, (strides, pads, dilations) = x.shape[2:], way
    if kernel is None and sizes is None:
        raise ProgramError(f"{op} needs filter_size or output_size", op=op)
    if kernel is None:
        kernel = [
            (out - (n - 1) * s + 2 * p - 1) // d + 1
            for out, n, s, p, d in zip(sizes or [], image, strides, pads, dilations, strict=True)
        ]
    least = [
        (n - 1) * s - 2 * p + d * (k - 1) + 1
        for n, s, p, d, k in zip(image, strides, pads, dilations, kernel, strict=True)
    ]
    out = least if sizes is None else sizes
    if any(not low <= o < low + s or o < 1 for low, o, s in zip(least, out, strides, strict=True)) or min(kernel) < 1:
        raise ProgramError(
            f"{op}: {x!r} with filters {kernel}, stride {strides} and padding {pads} gives {least} up to "
            f"{[low + s - 1 for low, s in zip(least, strides, strict=True)]}, not {list(out)}",
            op=op,
            got=str(list(out)),
        )
    return kernel, out


_POOLS = {"max": "Max", "avg": "Mean"}


def adaptive_pool2d(
    input: Variable,
    pool_size: int | Sequence[int],
    pool_type: str = "max",
    require_index: bool = False,
    name: str | None = None,
) -> Variable:
    """The highest, or the mean, of ``pool_size`` windows that are as equal as possible."""
    op = "adaptive_pool2d"
    program_of([input], op)
    if pool_type not in _POOLS or require_index:
        raise ProgramError(f"{op} takes pool_type max or avg, and require_index=False; got {pool_type!r}", op=op)
    form = {"op": _POOLS[pool_type], "rule": {"Adaptive": {"out": _pair(pool_size, 1)}}}
    return append("PoolWindows", form, [input], op, name)


def group_norm(
    input: Variable,
    groups: int,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Normalises groups of channels of each sample. ``False`` for an attribute leaves that parameter out.

    Channels are axis 1, or with ``data_layout="NHWC"`` the last one.
    """
    layer, is_last = Layer("group_norm", input, name), data_layout == "NHWC"
    if not is_last:
        _images("group_norm", data_layout)
    given = _first(input) if is_last else input
    out = _normalised(
        layer,
        given,
        whole("group_norm", "groups", groups),
        epsilon,
        (param_attr, bias_attr),
        act,
        None if is_last else name,
    )
    return _last(out, name) if is_last else out


def instance_norm(
    input: Variable, epsilon: float = 1e-05, param_attr: Any = None, bias_attr: Any = None, name: str | None = None
) -> Variable:
    """Normalises each channel of each sample."""
    program_of([input], "instance_norm")
    layer = Layer("instance_norm", input, name)
    return _normalised(layer, input, input.shape[1], epsilon, (param_attr, bias_attr), None, name)


def _normalised(
    layer: Layer, x: Variable, groups: int, epsilon: float, attrs: tuple[Any, Any], act: str | None, name: str | None
) -> Variable:
    op = layer.kind
    if len(x.shape) < 2 or any(d < 0 for d in x.shape[1:]) or groups < 1 or x.shape[1] % groups:
        raise ProgramError(f"{op}: {x!r} cannot be {groups} equal groups of channels", op=op, var=x.name)
    if x.lod_level:
        text = f"{op}: {x!r} holds padded sequences, and the padding would count"
        raise ProgramError(f"{text}; take layer_norm(x, begin_norm_axis=2)", op=op, var=x.name)
    width = math.prod(x.shape[1:]) // groups
    rows = shaping.exactly(x, [x.shape[0], groups, width], "reshape")
    ones, zeros = (shaping.fill_constant([width], x.dtype, value) for value in (1.0, 0.0))
    form = {"axis": 2, "epsilon": number(op, "epsilon", epsilon, least=0.0)}
    flat = append("LayerNorm", form, [rows, ones, zeros], op, prefix=layer.prefix)
    out = shaping.exactly(flat, x.shape, "reshape")
    for given, suffix, begin, by in (
        (attrs[0], "w_0", 1.0, arithmetic.elementwise_mul),
        (attrs[1], "b_0", 0.0, arithmetic.elementwise_add),
    ):
        if given is not False:
            form = Constant(begin)._form()
            p = parameter(layer.program, given, f"{layer.prefix}.{suffix}", layer.dtype, [x.shape[1]], form)
            out = by(out, p, axis=1)
    return arithmetic.activate(out, act, name) if act or name is None else shaping.assign(out, name=name)


def maxout(x: Variable, groups: int, name: str | None = None, axis: int = 1) -> Variable:
    """The highest of each ``groups`` channels that follow each other."""
    place = shaping._axis(x, axis, "maxout")
    n, groups = x.shape[place], whole("maxout", "groups", groups)
    if n < 0 or groups < 1 or n % groups:
        raise ProgramError(f"maxout: axis {axis} of {x!r} cannot be split into groups of {groups}", op="maxout")
    shape = [*x.shape[:place], n // groups, groups, *x.shape[place + 1 :]]
    return arithmetic.reduce_max(shaping.exactly(x, shape, "reshape"), place + 1, name=name)


def pixel_shuffle(x: Variable, upscale_factor: int) -> Variable:
    """Channels become places: ``[n, c * r * r, h, w]`` to ``[n, c, h * r, w * r]``."""
    r = whole("pixel_shuffle", "upscale_factor", upscale_factor)
    if len(x.shape) != 4:
        raise ProgramError(f"pixel_shuffle takes images [n, c, h, w], got {x!r}", op="pixel_shuffle", var=x.name)
    n, c, h, w = x.shape
    if r < 1 or c % (r * r):
        raise ProgramError(f"pixel_shuffle: {x!r} has no {r} * {r} channels for each place", op="pixel_shuffle")
    split = shaping.exactly(x, [n, c // (r * r), r, r, h, w], "reshape")
    turned = shaping.transpose(split, [0, 1, 4, 2, 5, 3])
    return shaping.exactly(turned, [n, c // (r * r), h * r, w * r], "pixel_shuffle")


__all__ = [
    "adaptive_pool2d",
    "conv2d_transpose",
    "group_norm",
    "instance_norm",
    "maxout",
    "pixel_shuffle",
]
