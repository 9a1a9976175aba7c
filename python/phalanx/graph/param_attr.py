"""What a layer's parameter is called, how it begins and how it learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from phalanx.graph.errors import ProgramError
from phalanx.graph.initializer import Initializer
from phalanx.graph.program import Parameter, Program, declare
from phalanx.graph.regularizer import L2Decay


@dataclass(frozen=True)
class ParamAttr:
    """A parameter with a name that the program has already is shared."""

    name: str | None = None
    initializer: Initializer | None = None
    learning_rate: float = 1.0
    regularizer: L2Decay | None = None
    trainable: bool = True

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
        raise TypeError(f"a ParamAttr, a name or an initializer is needed, not {type(given).__name__}")


def parameter(
    program: Program, given: Any, name: str, dtype: str, shape: Sequence[int], initializer: Initializer
) -> Parameter:
    """Declares a parameter, or finds the one that is shared."""
    attr = ParamAttr._of(given)
    if attr.name is not None and program._graph.var(attr.name) is not None:
        shared = program.var(attr.name)
        if not isinstance(shared, Parameter) or shared.shape != tuple(shape) or shared.dtype != dtype:
            raise ProgramError(
                f"`{attr.name}` is {shared!r} already; as a parameter of {dtype}{list(shape)} it cannot be shared",
                var=attr.name,
                wanted=f"{dtype}{list(shape)}",
                got=f"{shared.dtype}{list(shared.shape)}",
            )
        return shared
    learn = {
        "init": (attr.initializer or initializer)._form(),
        "trainable": attr.trainable,
        "rate": float(attr.learning_rate),
        "decay": None if attr.regularizer is None else float(attr.regularizer.regularization_coeff),
    }
    return cast(Parameter, declare(program, attr.name or name, dtype, shape, {"Parameter": learn}))


__all__ = ["ParamAttr"]
