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

from typing import Literal, overload

from phalanx.graph._layer import expand
from phalanx.graph.errors import ProgramError
from phalanx.graph.layers import arithmetic
from phalanx.graph.program import Variable, append, append_all


def _hard(soft_label: bool, op: str) -> None:
    if soft_label:
        raise ProgramError(f"{op} takes class numbers; soft_label=True is not supported", op=op)


def cross_entropy(
    input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100, name: str | None = None
) -> Variable:
    """From probabilities and class numbers: minus the logarithm of the right class's, at most 1e20."""
    _hard(soft_label, "cross_entropy")
    return append("CrossEntropy", {"ignored": int(ignore_index)}, [input, label], "cross_entropy", name)


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
    """From scores and class numbers: the loss, and with ``return_softmax`` the probabilities too."""
    _hard(soft_label, "softmax_with_cross_entropy")
    if axis not in (-1, len(logits.shape) - 1):
        raise ProgramError(f"softmax_with_cross_entropy supports only the last axis, not axis {axis} of {logits!r}")
    form = {"ignored": int(ignore_index)}
    loss, softmax = append_all("SoftmaxCrossEntropy", form, [logits, label], "softmax_with_cross_entropy")
    return (loss, softmax) if return_softmax else loss


def sigmoid_cross_entropy_with_logits(x: Variable, label: Variable, name: str | None = None) -> Variable:
    """From scores and targets between 0 and 1, element by element."""
    return append("SigmoidCrossEntropy", {"derivative": False}, [x, label], "sigmoid_cross_entropy", name)


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """The square of each difference."""
    return arithmetic.square(input - label)


def mse_loss(input: Variable, label: Variable) -> Variable:
    """The mean of all squares."""
    return arithmetic.mean(square_error_cost(input, label))


def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """Half the square up to ``delta``, linear beyond it."""
    return expand("huber_loss", {"Huber": {"delta": float(delta)}}, [input - label])


def topk(input: Variable, k: int, name: str | None = None) -> tuple[Variable, Variable]:
    """The k highest values of the last axis, and their indices. NaN ranks above all numbers."""
    values, indices = append_all("TopK", {"k": int(k)}, [input], "top_k", name)
    return values, indices


def argmax(x: Variable, axis: int = -1) -> Variable:
    """The index of the highest value of the last axis, or of its first NaN."""
    if axis not in (-1, len(x.shape) - 1):
        raise ProgramError(f"argmax supports only the last axis, not axis {axis} of {x!r}; transpose it", op="argmax")
    return append("ArgMax", None, [x], "argmax")


def accuracy(input: Variable, label: Variable, k: int = 1, name: str | None = None) -> Variable:
    """The fraction of labels that are among the k highest scores. NaN ranks above all numbers and is never correct."""
    return expand("accuracy", {"Accuracy": {"k": int(k)}}, [input, label], name)


__all__ = [
    "accuracy",
    "argmax",
    "cross_entropy",
    "huber_loss",
    "mse_loss",
    "sigmoid_cross_entropy_with_logits",
    "softmax_with_cross_entropy",
    "square_error_cost",
    "topk",
]
