"""Gradients of a loss, as operations of the program.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()), graph.unique_name.guard():
...     x = graph.data("x", [None, 3])
...     loss = graph.layers.mean(graph.layers.fc(x, 1))
...     [(p.name, g.shape) for p, g in append_backward(loss)]
[('fc_0.w_0', (3, 1)), ('fc_0.b_0', (1,))]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from phalanx.graph._adding import program_of
from phalanx.graph._refused import refuse
from phalanx.graph._site import caller
from phalanx.graph.errors import LossError, ProgramError
from phalanx.graph.program import Parameter, Program, Variable


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Any] | None = None,
    no_grad_set: Sequence[Any] | None = None,
    callbacks: Any = None,
    checkpoints: Sequence[Any] | None = None,
) -> list[tuple[Parameter, Variable]]:
    """Appends the gradients of a loss; returns each parameter with its gradient.

    They are those of the parameters in ``parameter_list``, by default all. Gradients stop at the variables in
    ``no_grad_set``. Each loss has its own gradients.
    """
    refuse(
        "append_backward", "change the gradients that it returns, or give the optimizer grad_clip", callbacks=callbacks
    )
    refuse("append_backward", "use optimizer.RecomputeOptimizer", checkpoints=checkpoints or None)
    program = program_of([loss], "append_backward")
    only, without = chosen(program, parameter_list, no_grad_set)
    before = program._graph.copy()
    try:
        pairs = program._graph.append_backward(loss.name, only, without, caller())
        return paired(loss, pairs, only)
    except BaseException:
        program._graph.restore(before)
        raise


def chosen(
    program: Program, parameter_list: Sequence[Any] | None, no_grad_set: Sequence[Any] | None
) -> tuple[list[str] | None, list[str]]:
    """The names of the parameters that are to be learned, if they were named, and of what gets no gradient."""
    without = [_named(v, "no_grad_set") for v in no_grad_set or ()]
    for name in without:
        program.var(name)
    if parameter_list is None:
        return None, without
    only = list(dict.fromkeys(_named(v, "parameter_list") for v in parameter_list))
    for name in only:
        found = program.var(name)
        if not isinstance(found, Parameter):
            raise ProgramError(f"`{name}` in parameter_list is not a parameter of the program", var=name)
        if found.stop_gradient or name in without:
            text = f"`{name}` in parameter_list gets no gradient: it is not trainable, or stops gradients"
            raise ProgramError(f"{text}, or is in no_grad_set; leave it out of the one or the other", var=name)
    return only, without


def _named(v: Any, what: str) -> str:
    if isinstance(v, (str, Variable)):
        return v if isinstance(v, str) else v.name
    raise TypeError(f"{what} must be a list of variables or names, not of {type(v).__name__}")


def paired(
    loss: Variable, pairs: Sequence[tuple[str, str]], only: list[str] | None
) -> list[tuple[Parameter, Variable]]:
    """Parameters and gradients. A parameter that is named in ``parameter_list`` must have a gradient."""
    missing = sorted(set(only or ()) - {p for p, _ in pairs})
    if missing:
        raise LossError(
            f"`{missing[0]}` is in parameter_list, but `{loss.name}` does not depend on it; leave it out, or minimize "
            "the loss that does",
            var=missing[0],
        )
    return [(cast(Parameter, loss.program.var(p)), loss.program.var(g)) for p, g in pairs]


__all__ = ["append_backward"]
