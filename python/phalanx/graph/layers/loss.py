"""Losses and metrics. Losses are for each sample; take their ``mean``.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     scores = graph.data("scores", [None, 10])
...     label = graph.data("label", [None, 1], "int64")
...     loss = graph.layers.mean(graph.layers.softmax_with_cross_entropy(scores, label))
>>> loss.shape
()
"""

from __future__ import annotations

from typing import Any, Literal, overload

from phalanx.graph._adding import append, append_all, declare, program_of
from phalanx.graph._layer import expand
from phalanx.graph._lengths import PADDED
from phalanx.graph._refused import number, refuse, whole
from phalanx.graph.errors import ProgramError
from phalanx.graph.layers import arithmetic, shaping
from phalanx.graph.program import Variable


def _soft(logs: Variable, label: Variable, op: str, name: str | None = None) -> Variable:
    """Minus the sum of logarithms, weighted by probabilities of classes; ``[…, 1]`` as with class numbers."""
    if label.shape != logs.shape:
        raise ProgramError(
            f"{op}: with soft_label=True the label has a probability for each class, as {logs!r}; got {label!r}",
            op=op,
            var=label.name,
        )
    return arithmetic.scale(arithmetic.reduce_sum(logs * label, -1, keep_dim=True), -1.0, name=name)


def cross_entropy(
    input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100, name: str | None = None
) -> Variable:
    """From probabilities and class numbers: minus the logarithm of the right class's, at most 1e20.

    With ``soft_label`` from probabilities of all classes.
    """
    program_of([input, label], "cross_entropy")
    if soft_label:
        return _soft(arithmetic.log(input), label, "cross_entropy", name)
    ids = shaping.as_whole(label)
    return append(
        "CrossEntropy",
        {"ignored": whole("cross_entropy", "ignore_index", ignore_index)},
        [input, ids],
        "cross_entropy",
        name,
    )


@overload
def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: Literal[False] = False,
    axis: int = -1,
) -> Variable: ...


@overload
def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    *,
    return_softmax: Literal[True],
    axis: int = -1,
) -> tuple[Variable, Variable]: ...


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Variable | tuple[Variable, Variable]:
    """From scores and class numbers: the loss, and with ``return_softmax`` the probabilities too.

    With ``soft_label`` from scores and probabilities of all classes.
    """
    op = "softmax_with_cross_entropy"
    program_of([logits, label], op)
    place = shaping._axis(logits, axis, op)
    rank = len(logits.shape)
    arithmetic.check_time(op, logits, place, PADDED)
    if place != rank - 1:
        # The others stay in their order, as labels may come without this one.
        order = [*(i for i in range(rank) if i != place), place]
        back = [order.index(i) for i in range(rank)]
        # The label has the same axes, with one number or all along this one.
        given = label if len(label.shape) != len(order) else shaping.transpose(label, order)
        pair = softmax_with_cross_entropy(
            shaping.transpose(logits, order), given, soft_label, ignore_index, return_softmax=True
        )
        loss, softmax = (v if len(v.shape) != len(order) else shaping.transpose(v, back) for v in pair)
    elif soft_label:
        logs = arithmetic.log_softmax(logits)
        loss = _soft(logs, label, op)
        softmax = arithmetic.exp(logs) if return_softmax else loss
    else:
        form = {"ignored": whole(op, "ignore_index", ignore_index)}
        loss, softmax = append_all("SoftmaxCrossEntropy", form, [logits, shaping.as_whole(label)], op)
    return (loss, softmax) if return_softmax else loss


def sigmoid_cross_entropy_with_logits(
    x: Variable,
    label: Variable,
    ignore_index: float | str | None = None,
    name: str | None = None,
    normalize: bool = False,
) -> Variable:
    """From scores and targets between 0 and 1, element by element.

    Where the target is ``ignore_index`` the loss is 0. With ``normalize`` losses are divided by the number of the others.
    """
    if isinstance(ignore_index, str):
        # The name was the third argument before.
        ignore_index, name = None, ignore_index
    form, op = {"derivative": False}, "sigmoid_cross_entropy"
    if ignore_index is None and not normalize:
        return append("SigmoidCrossEntropy", form, [x, label], op, name)
    program_of([x, label], op)
    index = -100.0 if ignore_index is None else number("sigmoid_cross_entropy", "ignore_index", ignore_index)
    ignored = shaping.fill_constant([], label.dtype, index)
    kept = arithmetic.cast(arithmetic.not_equal(label, ignored), x.dtype)
    each = append("SigmoidCrossEntropy", form, [x, label * kept], op)
    if not normalize:
        return arithmetic.elementwise_mul(each, kept, name=name)
    one = shaping.fill_constant([], x.dtype, 1.0)
    n = arithmetic.elementwise_max(arithmetic.reduce_sum(kept), one)
    return arithmetic.elementwise_div(each * kept, n, name=name)


def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None) -> Variable:
    """From probabilities of one of two classes and targets between 0 and 1, element by element."""
    program_of([input, label], "log_loss")
    epsilon = number("log_loss", "epsilon", epsilon, least=0.0)
    is_one = label * arithmetic.log(input + epsilon)
    is_none = (1.0 - label) * arithmetic.log((1.0 + epsilon) - input)
    return arithmetic.scale(is_one + is_none, -1.0, name=name)


def smooth_l1(
    x: Variable,
    y: Variable,
    inside_weight: Variable | None = None,
    outside_weight: Variable | None = None,
    sigma: float | None = None,
) -> Variable:
    """Half the square of small differences, linear for others; the sum over each sample, ``[n, 1]``."""
    s = 1.0 if sigma is None else number("smooth_l1", "sigma", sigma, above=0.0) ** 2
    difference = x - y if inside_weight is None else (x - y) * inside_weight
    # Huber's loss with this limit, times s.
    each = expand("smooth_l1", {"Huber": {"delta": 1.0 / s}}, [difference]) * s
    each = each if outside_weight is None else each * outside_weight
    return shaping.unsqueeze(arithmetic.reduce_sum(each, list(range(1, len(x.shape)))), [1])


def kldiv_loss(x: Variable, target: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """``target * (log(target) - x)`` for log probabilities ``x``; zero where the target is zero."""
    program_of([x, target], "kldiv_loss")
    positive = arithmetic.cast(target > 0.0, target.dtype)
    # Where the target is zero, its logarithm is taken of one.
    logs = arithmetic.log(target + (1.0 - positive))
    each = (logs - x) * target
    if reduction == "none":
        return each
    whole = arithmetic.reduce_sum(each)
    if reduction == "sum":
        return whole
    if reduction == "mean":
        return arithmetic.mean(each, name)
    if reduction != "batchmean":
        raise ProgramError(f"kldiv_loss: reduction={reduction!r}; choose none, sum, mean or batchmean", op="kldiv_loss")
    return arithmetic.mean(arithmetic.reduce_sum(each, list(range(1, len(x.shape)))), name)


def margin_rank_loss(
    label: Variable, left: Variable, right: Variable, margin: float = 0.1, name: str | None = None
) -> Variable:
    """``max(0, margin - label * (left - right))``."""
    margin = number("margin_rank_loss", "margin", margin)
    return arithmetic.relu(arithmetic.scale(label * (left - right), -1.0, margin), name)


def rank_loss(label: Variable, left: Variable, right: Variable, name: str | None = None) -> Variable:
    """How likely the pair is ordered as the label says: ``log(1 + exp(left - right)) - label * (left - right)``."""
    difference = left - right
    return arithmetic.elementwise_sub(arithmetic.softplus(difference), label * difference, name=name)


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """The square of each difference."""
    return arithmetic.square(input - label)


def mse_loss(input: Variable, label: Variable) -> Variable:
    """The mean of all squares."""
    return arithmetic.mean(square_error_cost(input, label))


def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """Half the square up to ``delta``, linear beyond it."""
    return expand("huber_loss", {"Huber": {"delta": number("huber_loss", "delta", delta, above=0.0)}}, [input - label])


def topk(input: Variable, k: int, name: str | None = None) -> tuple[Variable, Variable]:
    """The k highest values of the last axis, and their indices. NaN ranks above all numbers."""
    if isinstance(k, Variable):
        raise ProgramError(
            f"topk: k is `{k.name}`, which is known only in a run; the shape of the result needs a number: pass k=5",
            op="topk",
            var=k.name,
        )
    values, indices = append_all("TopK", {"k": whole("topk", "k", k)}, [input], "top_k", name)
    return values, indices


def argmax(x: Variable, axis: int = -1) -> Variable:
    """The index of the highest value of an axis, or of its first NaN."""
    place = shaping._axis(x, axis, "argmax")
    arithmetic.check_time("argmax", x, place, PADDED)
    rest = [i for i in range(len(x.shape)) if i != place]
    given = x if place == len(x.shape) - 1 else shaping.transpose(x, [*rest, place])
    return append("ArgMax", None, [given], "argmax")


def argmin(x: Variable, axis: int = -1) -> Variable:
    """The index of the lowest value of an axis, or of its first NaN."""
    return argmax(arithmetic.scale(x, -1.0), axis)


def accuracy(
    input: Variable, label: Variable, k: int = 1, correct: Any = None, total: Any = None, name: str | None = None
) -> Variable:
    """The fraction of labels that are among the k highest scores. NaN ranks above all numbers and is never correct."""
    if isinstance(correct, str):
        # The name was the fourth argument before.
        correct, name = None, correct
    refuse("accuracy", "multiply the result by the number of labels for counts", correct=correct, total=total)
    program_of([input, label], "accuracy")
    return expand("accuracy", {"Accuracy": {"k": whole("accuracy", "k", k)}}, [input, shaping.as_whole(label)], name)


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 4095,
    topk: int = 1,
    slide_steps: int = 1,
) -> tuple[Variable, Variable, list[Variable]]:
    """The area under the ROC curve over all runs, that of this run, and the counts that they are made of.

    ``input`` has a probability in its last column, labels are 0 or 1: others are an ``OpError``. Counts are in the
    scope: set them to zeros there for a new start.
    """
    op = "auc"
    program = program_of([input, label], op)
    if curve != "ROC" or topk != 1:
        raise ProgramError(f"{op}: curve={curve!r}, topk={topk}; only 'ROC' and 1 are supported", op=op)
    if slide_steps not in (0, 1):
        raise ProgramError(
            f"{op}: slide_steps={slide_steps}; 1 is this run, 0 all of them; for others fetch and use metrics.Auc",
            op=op,
        )
    for v in (input, label):
        if v.lod_level:
            text = f"{op}: {v!r} holds padded sequences, and the padding would count"
            raise ProgramError(f"{text}; take sequence_pool first, or fetch it and use metrics.Auc", op=op, var=v.name)
    bins, prefix = whole(op, "num_thresholds", num_thresholds) + 1, program._prefix(op)
    # Other labels than these have no row, and the run says so.
    ids = append("ArgMax", None, [append("OneHot", {"depth": 2, "dtype": "F32"}, [shaping.as_ids(label)], op)], op)
    begin = {"State": {"Constant": 0.0}}
    total = [declare(program, program._fresh(f"{prefix}.{part}"), "int64", [bins], begin) for part in ("pos", "neg")]
    program._append_to({"AucCounts": None}, [input, ids, *total], total)
    zeros = [shaping.fill_constant([bins], "int64", 0) for _ in total]
    batch = append_all("AucCounts", None, [input, ids, *zeros], op) if slide_steps else total
    areas = [append("AucArea", None, counts, op) for counts in (total, batch)]
    return areas[0], areas[1], [*batch, *total]


__all__ = [
    "accuracy",
    "argmax",
    "argmin",
    "auc",
    "cross_entropy",
    "huber_loss",
    "kldiv_loss",
    "log_loss",
    "margin_rank_loss",
    "mse_loss",
    "rank_loss",
    "sigmoid_cross_entropy_with_logits",
    "smooth_l1",
    "softmax_with_cross_entropy",
    "square_error_cost",
    "topk",
]
