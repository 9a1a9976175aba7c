"""How lengths of sequences propagate: which operations pass them on, and which would count the padding.

It sees operations in their serialized form, and only the shapes of variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from phalanx.graph.errors import ProgramError


class Shaped(Protocol):
    """A variable, as far as it matters here."""

    name: str

    @property
    def shape(self) -> tuple[int, ...]: ...


class Sequences(Protocol):
    """What a program knows of sequences."""

    #: Variables that hold some, and where their lengths are.
    _lengths: dict[str, str]
    #: Products whose last axis is the time of other sequences, and where the lengths of these are.
    _across: dict[str, str]
    #: Sequences with zeros behind their ends.
    _blank: set[str]


# All inputs lie on the output element by element, at least on its first two axes.
_ALL = {
    "Assign",
    "Binary",
    "Cast",
    "Compare",
    "Concat",
    "CrossEntropy",
    "Dropout",
    "Increment",
    "Logical",
    "OneHot",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
    "Sum",
    "Unary",
    "Where",
    "Whole",
}
_FIRST = {
    "ArgMax",
    "BatchNormFixed",
    "BoundedSoftmax",
    "CrfDecoding",
    "CumSum",
    "Expand",
    "Gru",
    "LayerNorm",
    "LinearChainCrf",
    "Lstm",
    "MaskScores",
    "MatMul",
    "PeepholeLstm",
    "Pool2d",
    "PoolWindows",
    "Reduce",
    "ReduceProd",
    "ResetGru",
    "Reshape",
    "Slice",
    "Softmax",
    "Sort",
    "TopK",
    "Transpose",
}
# These are given the lengths, too.
_TOLD = {"EditDistance"}
_RECURRENT = ("Gru", "Lstm", "PeepholeLstm", "ResetGru")
_OF_LAST_AXIS = ("ArgMax", "BoundedSoftmax", "CrossEntropy", "Softmax", "SoftmaxCrossEntropy", "Sort", "TopK")
_REDUCING = ("Reduce", "ReduceProd")
_PAIRED = ("Binary", "Compare", "Whole")
PADDED = "take sequence_pad(x, pad_value), which gives a plain variable and its lengths"


def _sources(kind: str, attrs: Any, inputs: Sequence[Shaped]) -> Sequence[Shaped]:
    """Inputs whose first two axes become those of the output, if they have the same size. Others hand nothing on."""
    if kind in _PAIRED:
        # The second one is stretched over the first from an axis on.
        return inputs if attrs["axis"] == 0 else inputs[:1]
    if kind in _ALL:
        return inputs
    if kind in ("Embedding", "GatherNd"):
        return inputs[1:]
    if kind not in _FIRST:
        return []
    x = inputs[0]
    lost = (
        (kind == "Transpose" and attrs["order"][:2] != [0, 1])
        or (kind == "Expand" and attrs["axis"] != 0)
        or (kind in _REDUCING and not _is_inner(_axes(kind, attrs)))
        or (kind == "MatMul" and (len(x.shape) < 3 or (len(x.shape) == 3 and attrs["trans_a"])))
    )
    return [] if lost else [x]


def _axes(kind: str, attrs: Any) -> Sequence[int]:
    """Which axes are reduced."""
    found: Sequence[int] = attrs["axes"] if kind == "Reduce" else attrs["reduce"]["axes"]
    return found


def _is_inner(axes: Sequence[int]) -> bool:
    """Whether they leave samples and time alone."""
    return bool(axes) and min(axes) >= 2


def kept(kind: str, attrs: Any, inputs: Sequence[Shaped], output: Shaped) -> list[Shaped]:
    """Inputs whose lengths the output has, if they have any."""
    if kind in _RECURRENT and len(output.shape) != 3:
        return []
    return [x for x in _sources(kind, attrs, inputs) if is_along(x, output)]


def is_along(x: Shaped, y: Shaped) -> bool:
    """Whether both have as many samples and times."""
    return len(y.shape) > 1 and x.shape[:2] == y.shape[:2]


def _remedy(kind: str, attrs: Any, x: Shaped, at: int) -> str | None:
    """What to do instead, if the operation would mix elements of a sequence with what lies behind its end."""
    if kind in _REDUCING and not _is_inner(_axes(kind, attrs)):
        ways = {"Mean": '"average" or "sum"', "Sum": '"sum"', "Max": '"max"'}
        if kind == "ReduceProd":
            return "take sequence_pad(x, 1.0) first"
        way = ways.get(attrs["op"])
        if way is None:
            return 'take sequence_pool(x * -1.0, "max") * -1.0 of each sequence first'
        return f"take sequence_pool(x, {way}) of each sequence first"
    if kind in _OF_LAST_AXIS and len(x.shape) == 2:
        is_softmax = kind in ("BoundedSoftmax", "Softmax")
        return "take sequence_softmax" if is_softmax else "give elements a width, or take sequence_pool first"
    if kind == "CumSum" and (attrs["axis"] == 0 or (attrs["axis"] == 1 and attrs["reverse"])):
        return "take sequence_pad(x, 0.0) first"
    if kind == "LayerNorm" and attrs["axis"] < 2:
        return "pass begin_norm_axis=2 to normalise each element by itself"
    if kind == "BatchNorm":
        return "take layer_norm(x, begin_norm_axis=2)"
    if kind == "Conv2d":
        return "take a recurrent layer, or sequence_pool first"
    if kind == "Accuracy":
        return 'take sequence_pool(cast(equal(argmax(scores), label), "float32"), "average") for that of each sequence'
    if kind == "MatMul" and at == 0 and (len(x.shape) == 2 or (len(x.shape) == 3 and attrs["trans_a"])):
        return "take sequence_pad(x, 0.0) first"
    return None


def _lost(kind: str, attrs: Any, x: Shaped, at: int) -> str | None:
    """What to do instead, if the result would have sequences without their lengths."""
    if kind == "Concat" and attrs["axis"] == 1:
        return "put them together before they are fed, or take sequence_pool of each and concat these"
    if kind == "Concat" and attrs["axis"] == 0:
        return "feed all sequences in one variable, or take sequence_pool of each and concat these"
    if kind == "Slice" and attrs["axis"] == 1 and (attrs["begin"], attrs["end"]) != (0, x.shape[1]):
        return "take sequence_first_step or sequence_last_step, or cut sequences before they are fed"
    if kind == "Gather":
        return "take sequence_pool first, and gather its rows"
    if kind in ("Reshape", "Expand") and not _stays(attrs, x):
        return f"keep the first two dimensions, or {PADDED}"
    if kind == "Transpose" and attrs["order"][:2] != [0, 1]:
        return f"keep the first two axes, or {PADDED}"
    if kind in ("GatherNd", "ScatterRows"):
        return None if kind == "GatherNd" and at == 1 else f"take sequence_pool first, or {PADDED}"
    if kind in _PAIRED and at == 1 and attrs["axis"] != 0:
        return "let its samples and times lie on those of the first operand, with axis=0"
    is_known = kind in _ALL or kind in _FIRST or kind in _TOLD or kind == "Embedding"
    return None if is_known else f"take sequence_pool first, or {PADDED}"


def _stays(attrs: Any, x: Shaped) -> bool:
    """Whether samples and times are the first two dimensions of a shape, too."""
    given = [-d["Batch"] if "Batch" in d else d["Fixed"] for d in attrs["shape"][:2]]
    return attrs.get("axis", 0) == 0 and given == list(x.shape[:2])


def check(
    kind: str,
    attrs: Any,
    inputs: Sequence[Shaped],
    program: Sequences,
    layer: str,
    site: str,
) -> None:
    """Refuses what would take padding for elements of sequences."""
    for at, x in enumerate(inputs):
        remedy, why = None, "padding would count"
        if x.name in program._across and _sees_last(kind, attrs, inputs, program, at):
            remedy = (
                "take layers.attention or nets.scaled_dot_product_attention, or sequence_pad of both factors before"
            )
            why = f"its last axis is the time of `{program._across[x.name].removesuffix('@LENGTHS')}`, whose {why}"
            text = f"{layer} at {site}: {x!r} is a product with padded sequences, and {why}; {remedy}"
            raise ProgramError(text, op=layer, var=x.name, site=site)
        if x.name not in program._lengths:
            continue
        remedy, why = _remedy(kind, attrs, x, at), f"the {why}"
        if remedy is None:
            remedy, why = _lost(kind, attrs, x, at), "the result would have no lengths"
        if remedy is not None:
            text = f"{layer} at {site}: {x!r} holds padded sequences, and {why}; {remedy}"
            raise ProgramError(text, op=layer, var=x.name, site=site)


def _sees_last(kind: str, attrs: Any, inputs: Sequence[Shaped], program: Sequences, at: int) -> bool:
    """Whether an operation does more than to change the elements of a product one by one."""
    x = inputs[at]
    if kind == "MatMul" and at == 0 and not attrs["trans_a"] and not attrs["trans_b"]:
        # What is behind the ends of the other factor was set to zero.
        return inputs[1].name not in program._blank
    if kind in _PAIRED:
        return at == 1 and x.shape != inputs[0].shape
    return kind not in _ALL or kind in _OF_LAST_AXIS or kind == "Concat"


def across(kind: str, attrs: Any, inputs: Sequence[Shaped], output: Shaped, program: Sequences) -> str | None:
    """The lengths of what the last axis of a result is the time of, if it is."""
    if kind == "MatMul" and attrs["trans_b"] and len(inputs[1].shape) > 2:
        return program._lengths.get(inputs[1].name)
    if kind not in _ALL:
        return None
    alike = (program._across.get(x.name) for x in inputs if x.shape == output.shape)
    return next((of for of in alike if of is not None), None)


def read(given: Any, var: Callable[[str], Any]) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """What was written of lengths, and of lengths that must be equal, for variables that ``var`` knows by name."""
    try:
        lengths, pairs = dict(given["lengths"]), {(first, second) for first, second in given["alike"]}
        names = {*lengths, *lengths.values(), *(name for pair in pairs for name in pair)}
        forms = {name: var(name) for name in names}
    except (KeyError, TypeError, ValueError):
        raise ProgramError("this is not a program: the lengths of sequences are missing") from None
    for name in {*lengths.values(), *(name for pair in pairs for name in pair)}:
        if forms[name] is None or forms[name][2] != "feed" or len(forms[name][1]) != 1:
            raise ProgramError(f"this is not a program: `{name}` should be lengths of sequences that are fed", var=name)
    for name in lengths:
        if forms[name] is None or len(forms[name][1]) < 2:
            raise ProgramError(f"this is not a program: `{name}` should hold padded sequences", var=name)
    return lengths, pairs
