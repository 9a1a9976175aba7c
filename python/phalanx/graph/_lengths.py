"""How lengths of sequences propagate: which operations pass them on, and which would count the padding.

It sees operations in their serialized form, and only the shapes of variables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from phalanx.graph.errors import ProgramError


class Shaped(Protocol):
    """A variable, as far as it matters here."""

    name: str

    @property
    def shape(self) -> tuple[int, ...]: ...


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
}
_FIRST = {
    "ArgMax",
    "BatchNormFixed",
    "BoundedSoftmax",
    "CrfDecoding",
    "Expand",
    "Gru",
    "LayerNorm",
    "LinearChainCrf",
    "Lstm",
    "MaskScores",
    "MatMul",
    "PeepholeLstm",
    "Pool2d",
    "Reduce",
    "ResetGru",
    "Reshape",
    "Slice",
    "Softmax",
    "TopK",
    "Transpose",
}
_RECURRENT = ("Gru", "Lstm", "PeepholeLstm", "ResetGru")
_OF_LAST_AXIS = ("ArgMax", "BoundedSoftmax", "CrossEntropy", "Softmax", "SoftmaxCrossEntropy", "TopK")


def _sources(kind: str, attrs: Any, inputs: Sequence[Shaped]) -> Sequence[Shaped]:
    """Inputs whose first two axes become those of the output, if they have the same size. Others hand nothing on."""
    if kind in ("Binary", "Compare"):
        # The second one is stretched over the first from an axis on.
        return inputs if attrs["axis"] == 0 else inputs[:1]
    if kind in _ALL:
        return inputs
    if kind == "Embedding":
        return inputs[1:]
    if kind not in _FIRST:
        return []
    x = inputs[0]
    lost = (
        (kind == "Transpose" and attrs["order"][:2] != [0, 1])
        or (kind == "Expand" and attrs["axis"] != 0)
        or (kind == "Reduce" and not _is_inner(attrs["axes"]))
        or (kind == "MatMul" and (len(x.shape) < 3 or (len(x.shape) == 3 and attrs["trans_a"])))
    )
    return [] if lost else [x]


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


def _remedy(kind: str, attrs: Any, x: Shaped) -> str | None:
    """What to do instead, if the operation would mix elements of a sequence with what lies behind its end."""
    if kind == "Reduce" and not _is_inner(attrs["axes"]):
        ways = {"Mean": '"average" or "sum"', "Sum": '"sum"', "Max": '"max"'}
        way = ways.get(attrs["op"])
        if way is None:
            return 'take sequence_pool(x * -1.0, "max") * -1.0 of each sequence first'
        return f"take sequence_pool(x, {way}) of each sequence first"
    if kind in _OF_LAST_AXIS and len(x.shape) == 2:
        is_softmax = kind in ("BoundedSoftmax", "Softmax")
        return "take sequence_softmax" if is_softmax else "give elements a width, or take sequence_pool first"
    if kind == "LayerNorm" and attrs["axis"] < 2:
        return "pass begin_norm_axis=2 to normalise each element by itself"
    if kind == "BatchNorm":
        return "take layer_norm(x, begin_norm_axis=2)"
    if kind == "Conv2d":
        return "take a recurrent layer, or sequence_pool first"
    return None


def _lost(kind: str, attrs: Any, x: Shaped) -> str | None:
    """What to do instead, if the result would have sequences without their lengths."""
    if kind == "Concat" and attrs["axis"] == 1:
        return "put them together before they are fed, or take sequence_pool of each and concat these"
    if kind == "Concat" and attrs["axis"] == 0:
        return "feed all sequences in one variable, or take sequence_pool of each and concat these"
    if kind == "Slice" and attrs["axis"] == 1 and (attrs["begin"], attrs["end"]) != (0, x.shape[1]):
        return "take sequence_first_step or sequence_last_step, or cut sequences before they are fed"
    if kind == "Gather":
        return "take sequence_pool first, and gather its rows"
    return None


def check(kind: str, attrs: Any, inputs: Sequence[Shaped], ragged: Collection[str], layer: str, site: str) -> None:
    """Refuses what would take padding for elements of sequences."""
    for x in inputs:
        if x.name not in ragged:
            continue
        remedy, why = _remedy(kind, attrs, x), "the padding would count"
        if remedy is None:
            remedy, why = _lost(kind, attrs, x), "the result would have no lengths"
        if remedy is not None:
            text = f"{layer} at {site}: {x!r} holds padded sequences, and {why}; {remedy}"
            raise ProgramError(text, op=layer, var=x.name, site=site)


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
