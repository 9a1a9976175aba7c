"""Name, initial value and learning options of a layer's parameter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from phalanx.graph._adding import declare
from phalanx.graph.errors import ProgramError
from phalanx.graph.initializer import Initializer
from phalanx.graph.program import Parameter, Program, default_startup_program
from phalanx.graph.regularizer import L2Decay


@dataclass(frozen=True)
class ParamAttr:
    """A parameter whose name the program already has is shared; attributes that are given twice must be equal.

    Without ``do_model_average``, ``ModelAverage`` and ``ExponentialMovingAverage`` leave it out.
    """

    name: str | None = None
    initializer: Initializer | None = None
    learning_rate: float = 1.0
    regularizer: L2Decay | None = None
    trainable: bool = True
    do_model_average: bool = True

    def __post_init__(self) -> None:
        if self.regularizer is not None and not isinstance(self.regularizer, L2Decay):
            got = type(self.regularizer).__name__
            raise TypeError(f"regularizer must be L2Decay or None, not {got}; L1Decay is for a whole optimizer")

    @staticmethod
    def _of(given: Any) -> ParamAttr:
        if given is None or given is True:
            return ParamAttr()
        if isinstance(given, ParamAttr):
            return given
        if isinstance(given, str):
            return ParamAttr(name=given)
        if isinstance(given, Initializer):
            return ParamAttr(initializer=given)
        raise TypeError(f"expected a ParamAttr, a name or an initializer, not {type(given).__name__}")


def parameter(program: Program, given: Any, name: str, dtype: str, shape: Sequence[int], begin: Any) -> Parameter:
    """Declares a parameter that begins like this unless an attribute says otherwise, or finds the one that is shared."""
    attr = ParamAttr._of(given)
    if attr.name is not None and program._graph.var(attr.name) is not None:
        shared = program.var(attr.name)
        if not isinstance(shared, Parameter) or shared.shape != tuple(shape) or shared.dtype != dtype:
            raise ProgramError(
                f"`{attr.name}` is already {shared!r}; as a parameter of {dtype}{list(shape)} it cannot be shared",
                var=attr.name,
                wanted=f"{dtype}{list(shape)}",
                got=f"{shared.dtype}{list(shared.shape)}",
            )
        _check_alike(shared, attr)
        if attr.initializer is not None:
            known = default_startup_program()._given.get(attr.name)
            _check_given(attr.name, attr.initializer._array(shape, dtype), attr, known)
        return shared
    called = attr.name or name
    array = attr.initializer._array(shape, dtype) if attr.initializer else None
    if attr.name is not None:
        _check_given(called, array, attr, default_startup_program()._given.get(called))
    learn = {
        "init": attr.initializer._form_of(shape) if attr.initializer else _begin_of(attr.name) or begin,
        "trainable": attr.trainable,
        "rate": float(attr.learning_rate),
        "decay": None if attr.regularizer is None else float(attr.regularizer.regularization_coeff),
    }
    made = cast(Parameter, declare(program, called, dtype, shape, {"Parameter": learn}))
    if array is not None:
        default_startup_program()._given[called] = array
    if not attr.do_model_average:
        program._unaveraged.add(called)
    return made


def _check_given(name: str, array: Any, attr: ParamAttr, known: Any) -> None:
    """Numbers that a second layer, or another program, gives to a parameter are those that the first has given."""
    if array is not None and known is not None and not np.array_equal(array, known):
        raise ProgramError(
            f"`{name}` is shared, but {attr.initializer!r} begins with other numbers than the layer that has declared "
            "it; set the initializer in one place, or to the same values in both",
            var=name,
            got=repr(attr.initializer),
        )


def _begin_of(name: str | None) -> Any:
    """How a parameter of this name begins in another program that has it from the same startup program."""
    startup = default_startup_program()._graph
    if name is None or startup.var(name) is None:
        return None
    kind = json.loads(startup.kind(name))
    return kind["Parameter"]["init"] if "Parameter" in kind else None


def _check_alike(shared: Parameter, attr: ParamAttr) -> None:
    """What a second layer says of a shared parameter is what the first has said. What is left out says nothing."""
    known = json.loads(shared.program._graph.kind(shared.name))["Parameter"]
    said = {
        "initializer": (attr.initializer and attr.initializer._form_of(shared.shape), known["init"]),
        "learning_rate": (None if attr.learning_rate == 1.0 else float(attr.learning_rate), known["rate"]),
        "regularizer": (attr.regularizer and float(attr.regularizer.regularization_coeff), known["decay"]),
        "trainable": (None if attr.trainable else False, known["trainable"]),
        "do_model_average": (None if attr.do_model_average else False, shared.name not in shared.program._unaveraged),
    }
    for what, (now, before) in said.items():
        if now is not None and now != before:
            raise ProgramError(
                f"`{shared.name}` is shared, but {what} is {now!r} here and {before!r} in the layer at {shared.site}; "
                "set it in one place, or to the same value in both",
                var=shared.name,
                wanted=repr(before),
                got=repr(now),
            )


__all__ = ["ParamAttr"]
