"""Layers that are made of other layers, with Paddle's names and defaults.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     x = graph.data("x", [None, 3, 4])
...     graph.layers.pad(x, [0, 0, 1, 0, 0, 2]).shape, graph.layers.expand(x, [1, 1, 3]).shape
((-1, 4, 6), (-1, 3, 12))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from phalanx.graph import _values
from phalanx.graph._adding import append, hand_on, program_of
from phalanx.graph._lengths import PADDED
from phalanx.graph._operators import at_once
from phalanx.graph._refused import number, whole, wholes
from phalanx.graph.errors import ProgramError
from phalanx.graph.initializer import Constant
from phalanx.graph.layers import arithmetic, shaping
from phalanx.graph.layers.control import cond, increment
from phalanx.graph.param_attr import ParamAttr
from phalanx.graph.program import Variable


def _rank(x: Variable, op: str) -> int:
    program_of([x], op)
    return len(x.shape)


def mul(
    x: Variable, y: Variable, x_num_col_dims: int = 1, y_num_col_dims: int = 1, name: str | None = None
) -> Variable:
    """The product of two matrices; dimensions up to ``num_col_dims`` are the rows of each, the others its columns."""
    program_of([x, y], "mul")
    for what, v, n in (("x_num_col_dims", x, x_num_col_dims), ("y_num_col_dims", y, y_num_col_dims)):
        if not 0 < n < len(v.shape):
            raise ProgramError(f"mul: {what}={n} must be from 1 to {len(v.shape) - 1} for {v!r}", op="mul", var=v.name)
    if x.lod_level and len(x.shape) > 2 and x_num_col_dims <= 2:
        return _mul_each(x, y, y_num_col_dims, name)
    rows, columns = x.shape[:x_num_col_dims], y.shape[y_num_col_dims:]
    with at_once([x, y]):
        flat = arithmetic.matmul(
            x if len(x.shape) == 2 else shaping.flatten(x, x_num_col_dims),
            y if len(y.shape) == 2 else shaping.flatten(y, y_num_col_dims),
        )
        out = flat.shape == (*rows, *columns)
        return flat if out and name is None else shaping.exactly(flat, [*rows, *columns], "mul", name)


def _mul_each(x: Variable, y: Variable, y_num_col_dims: int, name: str | None) -> Variable:
    """The product of each element of sequences: time is a dimension of its own, which Paddle's scripts do not count."""
    flat = y if len(y.shape) == 2 else shaping.flatten(y, y_num_col_dims)
    wide = x if len(x.shape) == 3 else shaping.exactly(x, [*x.shape[:2], math.prod(x.shape[2:])], "reshape")
    out = arithmetic.matmul(wide, flat)
    whole = [*x.shape[:2], *y.shape[y_num_col_dims:]]
    return out if list(out.shape) == whole and name is None else shaping.exactly(out, whole, "mul", name)


def sum(x: Variable | Sequence[Variable]) -> Variable:
    """The sum of variables of the same type and shape."""
    return arithmetic.sums([x] if isinstance(x, Variable) else x)


def shape(input: Variable) -> Variable:
    """The dimensions of a variable whose shape does not depend on the batch, as int32 numbers."""
    _rank(input, "shape")
    if any(d < 0 for d in input.shape):
        raise ProgramError(
            f"shape: the batch of {input!r} differs from device to device; use fill_constant_batch_size_like or "
            "zeros_like for a value of its size",
            op="shape",
            var=input.name,
        )
    input.program._measured.update((input.name, axis) for axis in range(len(input.shape)))
    parts = [shaping.fill_constant([1], "int32", d) for d in input.shape]
    return shaping.concat(parts) if len(parts) != 1 else parts[0]


def expand(x: Variable, expand_times: Sequence[int], name: str | None = None) -> Variable:
    """Repeats a variable ``expand_times`` along each axis."""
    rank = _rank(x, "expand")
    times = wholes("expand", "expand_times", expand_times)
    if len(times) != rank or min(times, default=1) < 1:
        raise ProgramError(f"expand: {x!r} needs {rank} numbers from 1, got {list(expand_times)}", op="expand")
    if any(t > 1 and d < 0 for t, d in zip(times, x.shape, strict=True)):
        raise ProgramError(
            f"expand: the batch of {x!r} cannot be repeated; repeat the array that is fed, or unsqueeze first",
            op="expand",
            var=x.name,
        )
    between, wide, whole = [], [], []
    for d, t in zip(x.shape, times, strict=True):
        between += [d] if t == 1 else [1, d]
        wide += [d] if t == 1 else [t, d]
        whole.append(d * t)
    if wide == list(x.shape):
        return shaping.assign(x, name)
    out = append("Expand", {"shape": shaping.dims(wide), "axis": 0}, [shaping.exactly(x, between, "reshape")], "expand")
    return shaping.exactly(out, whole, "expand", name)


def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """Repeats a variable until it has the shape of another one."""
    program_of([x, target_tensor], "expand_as")
    if len(x.shape) != len(target_tensor.shape):
        raise ProgramError(f"expand_as: {x!r} and {target_tensor!r} have different ranks", op="expand_as")
    pairs = list(zip(x.shape, target_tensor.shape, strict=True))
    if any(d == 0 or (d != t and (t < 0 or d < 0 or t % d)) for d, t in pairs):
        raise ProgramError(f"expand_as: {x!r} cannot be repeated to {target_tensor!r}", op="expand_as", var=x.name)
    counted = [axis for axis, (d, t) in enumerate(pairs) if d != t or d == 1]
    x.program._measured.update((of.name, axis) for of in (x, target_tensor) for axis in counted)
    return expand(x, [1 if d == t else t // d for d, t in pairs], name)


def pad(x: Variable, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None) -> Variable:
    """Puts ``pad_value`` around a variable: two numbers for each axis, before and after."""
    rank = _rank(x, "pad")
    sizes = wholes("pad", "paddings", paddings)
    if len(sizes) != 2 * rank or min(sizes, default=0) < 0:
        raise ProgramError(f"pad: {x!r} needs {2 * rank} numbers from 0, got {list(paddings)}", op="pad", var=x.name)
    out = x
    for axis in range(rank):
        before, after = sizes[2 * axis : 2 * axis + 2]
        if not before and not after:
            continue
        if out.shape[axis] < 0:
            raise ProgramError(f"pad: axis {axis} of {x!r} is the batch, which cannot be padded", op="pad", var=x.name)
        parts = []
        for n in (before, after):
            dims = [*out.shape[:axis], n, *out.shape[axis + 1 :]]
            parts.append(shaping.fill_constant(dims, x.dtype, pad_value) if n else None)
        out = shaping.concat([part for part in (parts[0], out, parts[1]) if part is not None], axis)
    return out if name is None and out is not x else shaping.assign(out, name)


def pad2d(
    input: Variable,
    paddings: Sequence[int] = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Puts ``pad_value`` around images: above, below, left, right."""
    if mode != "constant":
        raise ProgramError(f"pad2d: mode={mode!r} is not supported; only 'constant' is", op="pad2d")
    if data_format not in ("NCHW", "NHWC") or len(paddings) != 4:
        raise ProgramError(f"pad2d: got {data_format} and {list(paddings)}, wants four numbers", op="pad2d")
    outer = [0, 0, 0, 0] if data_format == "NCHW" else [0, 0]
    inner = [] if data_format == "NCHW" else [0, 0]
    return pad(input, [*outer, *paddings, *inner], pad_value, name)


def zeros_like(x: Variable, out: Any = None) -> Variable:
    """Zeros in the shape of a variable."""
    return _like(x, out, 0.0, "zeros_like")


def ones_like(x: Variable, out: Any = None) -> Variable:
    """Ones in the shape of a variable."""
    return _like(x, out, 1.0, "ones_like")


def _like(x: Variable, out: Any, value: float, op: str) -> Variable:
    _rank(x, op)
    if out is not None:
        raise ProgramError(f"{op}: variables are not written in place; leave out=… out and take what it returns", op=op)
    made: Variable = shaping.fill_constant(x.shape, x.dtype, value)
    hand_on(x.program, [x], made)
    return made


def fill_constant_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any,
    value: float,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    force_cpu: bool = False,
) -> Variable:
    """One value everywhere, in this shape but for one dimension: it is as large as one of the input's."""
    _rank(input, "fill_constant_batch_size_like")
    dims = wholes("fill_constant_batch_size_like", "shape", shape)
    dims[output_dim_idx] = input.shape[input_dim_idx]
    return shaping.fill_constant(dims, dtype, value)


def where(condition: Variable, x: Variable | None = None, y: Variable | None = None) -> Variable:
    """``x`` where the condition is true, ``y`` elsewhere. What is not taken has no effect on gradients either."""
    if x is None or y is None:
        raise ProgramError(
            "where: how many elements are true is known only in a run, so their places have no shape here; write "
            "where(condition, x, y), or fetch the condition and call numpy.argwhere",
            op="where",
        )
    return append("Where", None, [condition, x, y], "where")


def argsort(
    input: Variable, axis: int = -1, descending: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """Sorted along an axis, and the places of its elements. NaN counts as larger than all numbers."""
    from phalanx.graph._adding import append_all

    axis = shaping._axis(input, axis, "argsort")
    arithmetic.check_time("argsort", input, axis, PADDED)
    order = arithmetic.swapped(len(input.shape), axis)
    given = input if order is None else shaping.transpose(input, order)
    values, places = append_all("Sort", {"descending": bool(descending)}, [given], "argsort", name)
    return (values, places) if order is None else (shaping.transpose(values, order), shaping.transpose(places, order))


def scatter(
    input: Variable, index: Variable, updates: Variable, name: str | None = None, overwrite: bool = True
) -> Variable:
    """The input with rows in the places that ``index`` names; without ``overwrite`` rows for one place are added up."""
    program_of([input, index, updates], "scatter")
    ids = shaping.as_ids(index)
    return append("ScatterRows", {"add": not overwrite}, [input, ids, updates], "scatter", name)


def gather_nd(input: Variable, index: Variable, name: str | None = None) -> Variable:
    """Elements or slices by several numbers each, which the last axis of ``index`` holds."""
    program_of([input, index], "gather_nd")
    return append("GatherNd", None, [input, shaping.as_whole(index)], "gather_nd", name)


def cumsum(
    x: Variable, axis: int | None = None, exclusive: bool | None = None, reverse: bool | None = None
) -> Variable:
    """Sums of everything up to each element along an axis, by default the last."""
    place = shaping._axis(x, -1 if axis is None else axis, "cumsum")
    form = {"axis": place, "exclusive": bool(exclusive), "reverse": bool(reverse)}
    return append("CumSum", form, [x], "cumsum")


def reduce_prod(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """The product along axes, or of everything."""
    axes = arithmetic.axes_of(input, dim, "reduce_prod")
    form = {"reduce": {"op": "Sum", "axes": axes, "keep": bool(keep_dim)}}
    return append("ReduceProd", form, [input], "reduce_prod", name)


def reduce_all(input: Variable, dim: Any = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Whether all booleans along axes are true."""
    return _of_booleans("reduce_all", arithmetic.reduce_min, input, dim, keep_dim, name)


def reduce_any(input: Variable, dim: Any = None, keep_dim: bool = False, name: str | None = None) -> Variable:
    """Whether any boolean along axes is true."""
    return _of_booleans("reduce_any", arithmetic.reduce_max, input, dim, keep_dim, name)


def _of_booleans(
    op: str, by: Callable[..., Variable], input: Variable, dim: Any, keep_dim: bool, name: str | None
) -> Variable:
    _rank(input, op)
    if input.dtype != "bool":
        raise ProgramError(f"{op} wants booleans, got {input!r}; compare it with a number", op=op, var=input.name)
    return arithmetic.cast(by(arithmetic.cast(input, "float32"), dim, keep_dim), "bool", name)


def cos_sim(X: Variable, Y: Variable) -> Variable:
    """The cosine of the angle between rows, ``[n, 1]``; ``Y`` may be one row for all."""
    program_of([X, Y], "cos_sim")
    if len(X.shape) < 2 or len(X.shape) != len(Y.shape):
        raise ProgramError(f"cos_sim takes rows [n, width], got {X!r} and {Y!r}", op="cos_sim")
    axes = list(range(1, len(X.shape)))

    def along(a: Variable, b: Variable) -> Variable:
        flat = arithmetic.reduce_sum(arithmetic.elementwise_mul(a, b, axis=0), axes)
        return shaping.unsqueeze(flat, [1])

    norms = arithmetic.elementwise_mul(arithmetic.sqrt(along(X, X)), arithmetic.sqrt(along(Y, Y)), axis=0)
    return arithmetic.elementwise_div(along(X, Y), norms, axis=0)


def l2_normalize(x: Variable, axis: int, epsilon: float = 1e-12, name: str | None = None) -> Variable:
    """Divided by the root of the sum of squares along an axis; by the root of ``epsilon`` where that is larger."""
    place = shaping._axis(x, axis, "l2_normalize")
    squares = arithmetic.reduce_sum(arithmetic.square(x), place, keep_dim=True)
    least = shaping.fill_constant([], x.dtype, number("l2_normalize", "epsilon", epsilon, least=0.0))
    norms = arithmetic.sqrt(arithmetic.elementwise_max(squares, least))
    return arithmetic.elementwise_div(x, norms, axis=0, name=name)


def label_smooth(
    label: Variable,
    prior_dist: Variable | None = None,
    epsilon: float = 0.1,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """``(1 - epsilon) * label + epsilon * prior``; without a prior all classes are equally likely."""
    _rank(label, "label_smooth")
    if not 0.0 <= epsilon <= 1.0:
        raise ProgramError(f"label_smooth: epsilon={epsilon} must be from 0 to 1", op="label_smooth")
    given = label if label.dtype == dtype else arithmetic.cast(label, dtype)
    if prior_dist is None:
        return arithmetic.scale(given, 1.0 - epsilon, epsilon / label.shape[-1], name=name)
    prior = prior_dist if len(prior_dist.shape) < 2 else shaping.exactly(prior_dist, prior_dist.shape[1:], "reshape")
    return arithmetic.elementwise_add(given * (1.0 - epsilon), prior * epsilon, name=name)


def prelu(x: Variable, mode: str, param_attr: Any = None, name: str | None = None) -> Variable:
    """``x`` where it is positive, ``alpha * x`` elsewhere; ``alpha`` is learned: one, per channel, or per element."""
    _rank(x, "prelu")
    shapes = {"all": [1], "channel": list(x.shape[1:2]), "element": list(x.shape[1:])}
    if mode not in shapes or (mode != "all" and len(x.shape) < 2):
        raise ProgramError(f"prelu: mode={mode!r} for {x!r}; choose one of {', '.join(shapes)}", op="prelu")
    if x.lod_level and mode != "all":
        text = f"prelu: {x!r} holds padded sequences, and mode={mode!r} would learn a slope for each time"
        raise ProgramError(f"{text}; pass mode='all'", op="prelu", var=x.name)
    attr = ParamAttr._of(param_attr)
    begin = attr.initializer or Constant(0.25)
    alpha = shaping.create_parameter(shapes[mode], x.dtype, None, attr, default_initializer=begin)
    below = arithmetic.relu(arithmetic.scale(x, -1.0))
    one = shaping.exactly(alpha, [], "reshape") if mode == "all" else alpha
    slope = arithmetic.elementwise_mul(below, one, axis=-1 if mode == "all" else 1)
    return arithmetic.elementwise_sub(arithmetic.relu(x), slope, name=name)


def autoincreased_step_counter(counter_name: str | None = None, begin: int = 1, step: int = 1) -> Variable:
    """A number in the scope that is ``begin`` in the first run and grows by ``step`` with each one."""
    from phalanx.graph.program import default_main_program

    name = counter_name or "@STEP_COUNTER@"
    main = default_main_program()
    if main._graph.var(name) is not None:
        return main.var(name)
    counter = shaping.create_global_var([1], begin - step, "int64", True, name)
    return increment(counter, step)


def case(
    pred_fn_pairs: Sequence[tuple[Variable, Callable[[], Any]]],
    default: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """The result of the first function whose condition is true; else that of ``default``, or of the last function."""
    pairs = list(pred_fn_pairs)
    if not pairs or any(not isinstance(p, (list, tuple)) or len(p) != 2 or not callable(p[1]) for p in pairs):
        raise TypeError("case takes a list of pairs of a condition and a function")
    if default is None:
        *pairs, (_, default) = pairs
    last = default
    if not pairs:
        return last()
    (first, fn), rest = pairs[0], pairs[1:]
    return cond(first, fn, (lambda: case(rest, last)) if rest else last)


def switch_case(branch_index: Variable, branch_fns: Any, default: Any = None, name: str | None = None) -> Any:
    """The result of the function with this number; else that of ``default``, or of the one with the largest number."""
    given = branch_fns.items() if isinstance(branch_fns, dict) else branch_fns
    listed = [one if isinstance(one, (list, tuple)) else (i, one) for i, one in enumerate(given)]
    of = branch_index

    def at(i: int) -> Variable:
        return arithmetic.equal(of, shaping.fill_constant(of.shape, of.dtype, i))

    ordered = sorted(listed, key=lambda pair: pair[0])
    if default is None:
        default = ordered[-1][1]
    return case([(at(int(i)), fn) for i, fn in ordered], default)


def edit_distance(
    input: Variable,
    label: Variable,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> tuple[Variable, Variable]:
    """How many changes make each sequence its label, ``[n, 1]``, and the number of sequences, ``[1]``."""
    op = "edit_distance"
    program_of([input, label], op)
    if ignored_tokens:
        raise ProgramError(f"{op}: ignored_tokens is not supported; remove them before they are fed", op=op)
    given = []
    for v, length in ((input, input_length), (label, label_length)):
        lengths = length if length is not None else v.lengths
        if lengths is None:
            raise ProgramError(f"{op}: {v!r} has no lengths; declare it with lod_level=1, or pass them", op=op)
        ids = shaping.exactly(v, v.shape[:2], "reshape") if len(v.shape) == 3 and v.shape[2] == 1 else v
        given.append((shaping.as_whole(ids), shaping.as_ids(lengths)))
    (a, a_length), (b, b_length) = given
    out = append("EditDistance", {"normalized": bool(normalized)}, [a, b, a_length, b_length], op)
    count = arithmetic.reduce_sum(ones_like(out))
    return out, arithmetic.cast(count, "int64")


def hsigmoid(
    input: Variable,
    label: Variable,
    num_classes: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
    path_table: Any = None,
    path_code: Any = None,
    is_custom: bool = False,
    is_sparse: bool = False,
) -> Variable:
    """A loss ``[n, 1]`` over classes in a complete binary tree: it looks at the nodes on the way to the right one.

    Its parameters are weights ``[num_classes - 1, width]`` and biases ``[num_classes - 1]``; Paddle has biases of
    ``[num_classes - 1, 1]``.
    """
    op = "hsigmoid"
    program_of([input, label], op)
    for what, value in (("path_table", path_table), ("path_code", path_code), ("is_custom", is_custom or None)):
        if value is not None:
            raise ProgramError(f"{op}: {what} is not supported: the tree is complete; leave it out", op=op)
    if is_sparse:
        raise ProgramError(f"{op}: is_sparse=True is not supported; leave it out", op=op)
    if bias_attr is False:
        raise ProgramError(f"{op}: it has biases; leave bias_attr=False out", op=op)
    num_classes = whole(op, "num_classes", num_classes)
    w = shaping.create_parameter([num_classes - 1, input.shape[-1]], input.dtype, None, param_attr)
    b = shaping.create_parameter([num_classes - 1], input.dtype, None, bias_attr, is_bias=True)
    return append("HSigmoid", {"classes": num_classes}, [input, w, b, shaping.as_whole(label)], op, name)


def nce(
    input: Variable,
    label: Variable,
    num_total_classes: int,
    sample_weight: Variable | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Any = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> Variable:
    """Noise-contrastive estimation, ``[n, 1]``: the right class against random ones, new in every run."""
    op = "nce"
    program_of([input, label], op)
    if sampler not in ("uniform", "log_uniform") or custom_dist is not None:
        raise ProgramError(f"{op}: sampler={sampler!r} is not supported; choose uniform or log_uniform", op=op)
    if seed:
        raise ProgramError(f"{op}: random numbers come from the seed of the program; leave seed={seed} out", op=op)
    if len(input.shape) != 2:
        raise ProgramError(f"{op} takes rows [n, width], got {input!r}", op=op, var=input.name)
    classes, width = whole(op, "num_total_classes", num_total_classes), input.shape[1]
    k = 10 if num_neg_samples is None else whole(op, "num_neg_samples", num_neg_samples)
    if k < 1 or classes < 1:
        raise ProgramError(f"{op}: {k} of {classes} classes are drawn as noise; both must be at least 1", op=op)
    true = shaping.as_whole(label)
    true = true if len(true.shape) == 2 else shaping.unsqueeze(true, [1])
    n_true = true.shape[1]
    drawn = shaping.uniform_random([true.shape[0], k], "float64", 0.0, 1.0)
    places = drawn * float(classes) if sampler == "uniform" else arithmetic.exp(drawn * math.log(classes + 1.0)) - 1.0
    noise = arithmetic.cast(arithmetic.clip(arithmetic.floor(places), 0.0, classes - 1.0), "int64")
    ids = shaping.concat([true, noise], 1)
    w = shaping.create_parameter([classes, width], input.dtype, None, param_attr)
    table = {"sparse": bool(is_sparse), "padding": None}
    rows = append("Embedding", table, [w, ids], op)
    scores = shaping.exactly(arithmetic.matmul(rows, shaping.unsqueeze(input, [2])), rows.shape[:2], "reshape")
    if bias_attr is not False:
        b = shaping.create_parameter([classes, 1], input.dtype, None, bias_attr, is_bias=True)
        biases = append("Embedding", table, [b, ids], op)
        scores = scores + shaping.exactly(biases, rows.shape[:2], "reshape")
    # With o = sigmoid(s) and e drawn as often as expected: the sum of -log(o / (o + e)) and -log(e / (o + e)), both
    # as log(1 + e) + log(1 + exp(-s) * e / (1 + e)), from which the second subtracts log(e) + log(1 + exp(-s)).
    if sampler == "uniform":
        expected = shaping.fill_constant(list(scores.shape), input.dtype, k / classes)
    else:
        at = arithmetic.cast(ids, input.dtype)
        expected = arithmetic.scale(arithmetic.log((at + 2.0) / (at + 1.0)), k / math.log(classes + 1.0))
    log_e, log_more = arithmetic.log(expected), arithmetic.log(expected + 1.0)
    under = arithmetic.scale(scores, -1.0)
    each = log_more + arithmetic.softplus(under + log_e - log_more)
    noisy = log_e + arithmetic.softplus(under)
    wrong = shaping.slice(noisy, [1], [n_true], [n_true + k])
    cost = arithmetic.elementwise_sub(
        arithmetic.reduce_sum(each, 1, keep_dim=True), arithmetic.reduce_sum(wrong, 1, keep_dim=True)
    )
    if sample_weight is None:
        return cost if name is None else shaping.assign(cost, name=name)
    weight = sample_weight if len(sample_weight.shape) == 2 else shaping.unsqueeze(sample_weight, [1])
    return arithmetic.elementwise_mul(cost, weight, axis=0, name=name)


def has_nan(x: Variable) -> Variable:
    """Whether any element is NaN."""
    return reduce_any(not_equal_to_itself(x))


def has_inf(x: Variable) -> Variable:
    """Whether any element is infinite."""
    most = shaping.fill_constant([], x.dtype, _values.largest(x.dtype))
    return reduce_any(arithmetic.greater_than(arithmetic.abs(x), most))


def not_equal_to_itself(x: Variable) -> Variable:
    """Where it is NaN."""
    return arithmetic.not_equal(x, x)


__all__ = [
    "argsort",
    "autoincreased_step_counter",
    "case",
    "cos_sim",
    "cumsum",
    "edit_distance",
    "expand",
    "expand_as",
    "fill_constant_batch_size_like",
    "gather_nd",
    "has_inf",
    "has_nan",
    "hsigmoid",
    "l2_normalize",
    "label_smooth",
    "mul",
    "nce",
    "ones_like",
    "pad",
    "pad2d",
    "prelu",
    "reduce_all",
    "reduce_any",
    "reduce_prod",
    "scatter",
    "shape",
    "sum",
    "switch_case",
    "where",
    "zeros_like",
]
