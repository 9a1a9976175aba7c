"""Layers over sequences: ``[n, time, width]`` with lengths, which ``data(…, lod_level=1, max_length=…)`` declares.

Layers that keep rows keep the lengths, too. Padding changes no result and no gradient.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     words = graph.layers.data("words", [1], dtype="int64", lod_level=1, max_length=7)
...     rows = graph.layers.embedding(words, size=[100, 8])
...     states, _ = graph.layers.dynamic_lstm(graph.layers.fc(rows, 4 * 16), size=4 * 16)
...     states.shape, states.lod_level, graph.layers.sequence_pool(states, "max").shape
((-1, 7, 16), 1, (-1, 16))
"""

from __future__ import annotations

from typing import Any

from phalanx.graph import _values
from phalanx.graph._adding import alike, append, program_of
from phalanx.graph._layer import Layer, expand
from phalanx.graph._operators import WHOLE
from phalanx.graph._refused import whole
from phalanx.graph.errors import ProgramError
from phalanx.graph.layers import arithmetic, network, shaping
from phalanx.graph.param_attr import ParamAttr
from phalanx.graph.program import Variable, program_guard


def _lengths(op: str, x: Variable, length: Variable | None = None) -> list[Variable]:
    """The lengths of sequences, if there are any."""
    if not isinstance(x, Variable):
        raise TypeError(f"{op} takes a variable, got {type(x).__name__}")
    lengths = shaping.as_ids(length) if length is not None else x.lengths
    return [] if lengths is None else [lengths]


def _only(op: str, **given: tuple[Any, Any]) -> None:
    for name, (value, wanted) in given.items():
        if value != wanted:
            raise ProgramError(f"{op}: {name}={value!r} is not supported; pass {wanted!r} or leave it out", op=op)


_GATES = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "identity": "Identity"}


def _gate(op: str, name: str, act: str) -> str:
    if act not in _GATES:
        raise ProgramError(
            f"{op}: {name}={act!r} is not an activation of gates; choose one of {', '.join(_GATES)}", op=op
        )
    return _GATES[act]


def dynamic_lstm(
    input: Variable,
    size: int,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: str | None = None,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Long short-term memory over projected sequences ``[n, time, size]``; hidden states and cells, a quarter as wide.

    As in Paddle the gates are candidate, input, forget, output. Weights are ``[size / 4, size]``. The bias is
    ``[1, size]``; with peepholes, through which the gates see the cell, ``[1, 7 * size / 4]``.
    """
    op = "dynamic_lstm"
    lengths = _lengths(op, input)
    _only(op, dtype=(dtype or input.dtype, input.dtype))
    if use_peepholes and bias_attr is False:
        raise ProgramError(f"{op}: the weights of peepholes are in the bias; pass use_peepholes=False, too", op=op)
    states = [h_0, c_0]
    form = {
        "size": whole(op, "size", size),
        "bias": "Nothing" if bias_attr is False else "Peepholes" if use_peepholes else "Gates",
        "reverse": bool(is_reverse),
        "first": [state is not None for state in states],
        "ragged": bool(lengths),
        "gate": _gate(op, "gate_activation", gate_activation),
        "cell": _gate(op, "cell_activation", cell_activation),
        "candidate": _gate(op, "candidate_activation", candidate_activation),
    }
    inputs = [input, *(state for state in states if state is not None), *lengths]
    given = {"w_hh": param_attr, "b_hh": bias_attr}
    hidden, cell = Layer("lstm", input, name).expand({"ProjectedLstm": form}, inputs, given, op=op)
    return hidden, cell


def dynamic_gru(
    input: Variable,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    candidate_activation: str = "tanh",
    h_0: Variable | None = None,
    origin_mode: bool = False,
    name: str | None = None,
) -> Variable:
    """Gated recurrent units over projected sequences ``[n, time, 3 * size]``; states ``[n, time, size]``.

    As in Paddle the gates are update, reset, candidate, and the reset gate acts on the state. The update gate takes the
    candidate, or with ``origin_mode`` keeps the old state. Weights are ``[size, 3 * size]``, in memory two matrices one
    after the other: ``[size, 2 * size]`` of both gates, ``[size, size]`` of the candidate.
    """
    op = "dynamic_gru"
    lengths = _lengths(op, input)
    form = {
        "size": 3 * whole(op, "size", size),
        "bias": bias_attr is not False,
        "reverse": bool(is_reverse),
        "first": h_0 is not None,
        "ragged": bool(lengths),
        "origin": bool(origin_mode),
        "gate": _gate(op, "gate_activation", gate_activation),
        "candidate": _gate(op, "candidate_activation", candidate_activation),
    }
    inputs = [input, *([] if h_0 is None else [h_0]), *lengths]
    given = {"w_hh": param_attr, "b_hh": bias_attr}
    return Layer("gru", input, name).expand({"ProjectedGru": form}, inputs, given, op=op)[0]


def _tagged(scores: Variable, label: Variable) -> None:
    """Scores and tags belong together, element by element."""
    alike(scores.program, [v for v in (scores, label) if v.lod_level])


def linear_chain_crf(
    input: Variable, label: Variable, param_attr: Any = None, length: Variable | None = None, name: str | None = None
) -> Variable:
    """The negative log-likelihood of a tagging, ``[n]``, from scores ``[n, time, tags]``.

    The weights ``[tags + 2, tags]`` are those of Paddle: beginning, end, and from each tag to each.
    """
    lengths = _lengths("linear_chain_crf", input, length)
    layer = Layer("linear_chain_crf", input, name)
    _tagged(input, label)
    form = {"begin": "Xavier", "ragged": bool(lengths)}
    return layer.expand({"Crf": form}, [input, shaping.as_whole(label), *lengths], {"w": param_attr})[0]


def crf_decoding(
    input: Variable, param_attr: Any, label: Variable | None = None, length: Variable | None = None
) -> Variable:
    """The most likely tags ``[n, time]``; with a label, 1 where they are correct. Padding is 0.

    ``param_attr`` names the weights of a :func:`linear_chain_crf`.
    """
    lengths = _lengths("crf_decoding", input, length)
    weights = ParamAttr._of(param_attr).name
    if weights is None or input.program._graph.var(weights) is None:
        raise ProgramError(
            f"crf_decoding: `{weights}` is not a parameter; name the weights of a linear_chain_crf with param_attr",
            op="crf_decoding",
            var=weights,
        )
    if label is not None:
        _tagged(input, label)
    labels = [] if label is None else [shaping.as_whole(label)]
    form = {"label": bool(labels), "ragged": bool(lengths)}
    return expand("crf_decoding", {"CrfDecoding": form}, [input, input.program.var(weights), *labels, *lengths])


_POOLS = {"sum": "Sum", "average": "Mean", "sqrt": "Sum", "max": "Max", "first": "First", "last": "Last"}


def sequence_pool(
    input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0, name: str | None = None
) -> Variable:
    """One row ``[n, width]`` from each sequence: its sum, average, sum over the root of its length, max, first or last.

    An empty sequence gives zeros. Of sequences of numbers, ``[n, time]``, it gives ``[n, 1]``.
    """
    op = "sequence_pool"
    if pool_type.lower() not in _POOLS:
        raise ProgramError(f"{op}: there is no pool_type {pool_type!r}; choose one of {', '.join(_POOLS)}", op=op)
    _only(op, pad_value=(float(pad_value), 0.0))
    pool = pool_type.lower()
    lengths = _lengths(op, input)
    if not lengths:
        full = {"max": "reduce_max", "average": "reduce_mean", "first": "slice", "last": "slice"}.get(
            pool, "reduce_sum"
        )
        raise ProgramError(
            f"{op}: {input!r} has no lengths; declare it with lod_level=1, or take {full} along axis 1 if all sequences "
            "are as long as the axis",
            op=op,
            var=input.name,
        )
    form = {"op": _POOLS[pool], "by_root": pool == "sqrt", "ragged": True}
    return expand(op, {"SequencePool": form}, [input, *lengths], name)


def sequence_first_step(input: Variable) -> Variable:
    """The first row of each sequence."""
    return sequence_pool(input, "first")


def sequence_last_step(input: Variable) -> Variable:
    """The last row of each sequence."""
    return sequence_pool(input, "last")


def sequence_conv(
    input: Variable,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: Any = None,
    param_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Filters over the ``filter_size`` elements around each; zeros lie before and after each sequence.

    Weights are ``[filter_size * width, num_filters]``. ``padding_start`` is where the elements begin, seen from each one.
    """
    op = "sequence_conv"
    _only(op, filter_stride=(filter_stride, 1), padding=(padding, True))
    if len(input.shape) != 3 or input.lengths is None:
        raise ProgramError(f"{op} takes sequences [n, time, width], declared with lod_level=1; got {input!r}", op=op)
    size, (n, time, width) = whole(op, "filter_size", filter_size), input.shape
    first = -(size // 2) if padding_start is None else whole(op, "padding_start", padding_start)
    if size < 1 or not -size < first <= 0:
        raise ProgramError(f"{op}: padding_start={padding_start} with a filter of {size}; it must be 0 or less", op=op)
    program, lengths = input.program, input.lengths
    # What lies behind an end is zero now, and counts as such.
    zeros_behind, _ = sequence_pad(input, 0.0)
    parts = []
    for shift in range(first, first + size):
        inside = time - abs(shift)
        if inside <= 0:
            parts.append(shaping.fill_constant([n, time, width], input.dtype, 0.0))
            continue
        kept = shaping.slice(zeros_behind, [1], [max(shift, 0)], [max(shift, 0) + inside])
        zeros = [shaping.fill_constant([n, abs(shift), width], input.dtype, 0.0)] if shift else []
        parts.append(shaping.concat([*zeros, kept] if shift < 0 else [kept, *zeros], 1) if shift else kept)
    windows = shaping.concat(parts, 2) if size > 1 else parts[0]
    program._lengths[windows.name] = lengths.name
    out = network.fc(windows, num_filters, 2, param_attr, bias_attr, act, name)
    program._lengths[out.name] = lengths.name
    return out


def blank(x: Variable, value: Any) -> Variable:
    """Sequences with one value behind their ends."""
    is_zero = not isinstance(value, Variable) and value == 0.0
    if x.name in x.program._blank and is_zero:
        return x
    dtype = x.dtype if x.dtype in (*WHOLE, "float32", "float64") else "float32"
    wide = x if dtype == x.dtype else arithmetic.cast(x, dtype)
    with program_guard(x.program):
        inside, none = arithmetic.cast(sequence_mask(x), dtype), shaping.fill_constant(x.shape, dtype, 0.0)
        fill = value if isinstance(value, Variable) else shaping.fill_constant([], dtype, value)
        fill = shaping.exactly(fill, [], "reshape") if fill.shape else fill
        fill = arithmetic.elementwise_add(none, arithmetic.cast(fill, dtype))
        lies = arithmetic.elementwise_add(none, inside, axis=0)
        if dtype in WHOLE:
            out = wide * lies + fill * (1 - lies)
        else:
            # A product would keep what is infinite.
            is_inside = arithmetic.greater_than(lies, none)
            out = append("Where", None, [is_inside, wide, fill], "sequence_pad")
    if is_zero:
        x.program._blank.add(out.name)
    return out if dtype == x.dtype else arithmetic.cast(out, x.dtype)


def sequence_pad(
    x: Variable, pad_value: float | Variable, maxlen: int | None = None, name: str | None = None
) -> tuple[Variable, Variable]:
    """Sequences as a plain variable ``[n, maxlen, …]`` with ``pad_value`` behind their ends, and their lengths ``[n]``.

    Layers take the padding for elements from then on. :func:`sequence_unpad` takes both together again.
    """
    op = "sequence_pad"
    lengths = _needed(op, x)
    if isinstance(pad_value, Variable) and any(d != 1 for d in pad_value.shape):
        raise ProgramError(f"{op}: pad_value is one number, got {pad_value!r}", op=op, var=pad_value.name)
    if maxlen is not None and whole(op, "maxlen", maxlen) != x.shape[1]:
        raise ProgramError(
            f"{op}: maxlen={maxlen}, but {x!r} is padded to {x.shape[1]}; leave it out, or declare the feed with "
            f"max_length={maxlen}",
            op=op,
            var=x.name,
        )
    out = append("Assign", None, [blank(x, pad_value)], op, name)
    out.program._lengths.pop(out.name, None)
    return out, lengths


def sequence_unpad(x: Variable, length: Variable, name: str | None = None) -> Variable:
    """What :func:`sequence_pad` has made plain, or what was computed from it, as sequences again."""
    op = "sequence_unpad"
    program, known = program_of([x, length], op), set(x.program._lengths.values())
    times = {program.var(of).shape[1] for of, lengths in program._lengths.items() if lengths == length.name}
    if length.name not in known or len(x.shape) < 2 or x.shape[0] != -1 or x.shape[1] not in times:
        raise ProgramError(
            f"{op}: {length!r} are not the lengths of {x!r}; pass what sequence_pad has given, and a variable with the "
            "same samples and times",
            op=op,
            var=length.name,
        )
    out = append("Assign", None, [x], op, name)
    program._lengths[out.name] = length.name
    return out


def _needed(op: str, x: Variable) -> Variable:
    """The lengths of sequences, without which there are none."""
    found = _lengths(op, x)
    if not found:
        raise ProgramError(f"{op}: {x!r} has no lengths; declare it with lod_level=1", op=op, var=x.name)
    return found[0]


def sequence_concat(input: Any, name: str | None = None) -> Variable:
    """Refused: the results of padded sequences would have other lengths."""
    raise ProgramError(
        "sequence_concat is not supported for padded sequences; put them together before they are fed, or concat what "
        "sequence_pool gives of each",
        op="sequence_concat",
    )


def sequence_expand(x: Variable, y: Variable, ref_level: int = -1, name: str | None = None) -> Variable:
    """Repeats each row of ``x [n, width]`` over the sequence of ``y`` in the same place; padding is zero."""
    op = "sequence_expand"
    _only(op, ref_level=(max(ref_level, -1), -1 if ref_level < 0 else 0))
    if len(x.shape) != 2 or x.lod_level:
        raise ProgramError(f"{op} takes rows [n, width], got {x!r}", op=op, var=x.name)
    if y.lengths is None:
        raise ProgramError(f"{op}: {y!r} has no lengths; declare it with lod_level=1", op=op, var=y.name)
    out = append("SequenceExpand", {"time": y.shape[1], "ragged": True}, [x, y.lengths], op, name)
    out.program._lengths[out.name] = y.lengths.name
    return out


def sequence_softmax(input: Variable, use_cudnn: bool = False, name: str | None = None) -> Variable:
    """Softmax over each sequence of numbers, ``[n, time]`` or ``[n, time, 1]``; padding is zero."""
    op = "sequence_softmax"
    shape, lengths = input.shape, input.lengths
    if lengths is None or len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] != 1):
        raise ProgramError(
            f"{op} takes sequences of numbers, declared with lod_level=1; got {input!r}", op=op, var=input.name
        )
    out = expand(op, {"SequenceSoftmax": {}}, [input, lengths], name)
    out.program._lengths[out.name] = lengths.name
    return out


def sequence_mask(x: Variable, maxlen: int | None = None, dtype: Any = "float32", name: str | None = None) -> Variable:
    """Ones for elements and zeros for padding, ``[n, maxlen]``, from lengths ``[n]`` or from a sequence."""
    lengths = x.lengths if x.lod_level else x
    time = maxlen if maxlen is not None else x.shape[1] if x.lod_level else None
    if time is None or lengths is None:
        raise ProgramError(
            "sequence_mask: maxlen is missing; lengths alone do not give the longest possible sequence",
            op="sequence_mask",
        )
    form = {"time": whole("sequence_mask", "maxlen", time), "dtype": _values.kind(dtype)}
    return append("SequenceMask", form, [shaping.as_ids(lengths)], "sequence_mask", name)


__all__ = [
    "crf_decoding",
    "dynamic_gru",
    "dynamic_lstm",
    "linear_chain_crf",
    "sequence_concat",
    "sequence_conv",
    "sequence_expand",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_mask",
    "sequence_pad",
    "sequence_pool",
    "sequence_softmax",
    "sequence_unpad",
]
