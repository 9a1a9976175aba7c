"""The attributes of a variable that can be set; for the others, where to set them instead."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

from phalanx.graph import _values
from phalanx.graph.errors import ProgramError

if TYPE_CHECKING:
    from phalanx.graph.layers.learning_rate import LearningRate
    from phalanx.graph.program import Parameter, Variable

# What the class itself sets.
_OWN = ("program", "name", "_form")
_REMEDIES = {
    "trainable": "only parameters are learned",
    "optimize_attr": "pass ParamAttr(learning_rate=…) where it is declared",
    "regularizer": "pass ParamAttr(regularizer=…) where it is declared",
    "gradient_clip_attr": "pass grad_clip=… to the optimizer",
    "error_clip": "pass grad_clip=… to the optimizer",
    "initializer": "pass ParamAttr(initializer=…) where it is declared",
    "shape": "layers.reshape makes another variable",
    "dtype": "layers.cast makes another variable",
    "lod_level": "say layers.data(lod_level=1)",
}


def check(var: Variable, name: str) -> None:
    """Refuses an attribute that would have no effect."""
    if name in _OWN and name not in var.__dict__:
        return
    known = getattr(type(var), name, None)
    if isinstance(known, property) and known.fset is not None:
        return
    remedy = _REMEDIES.get(name)
    if remedy is None and known is None:
        remedy = "stop_gradient can be set, and trainable of parameters"
    raise AttributeError(f"{name!r} of `{var.name}` cannot be set{'' if remedy is None else f': {remedy}'}")


def _kind(var: Variable) -> Any:
    return json.loads(var.program._graph.kind(var.name))


def trainable(var: Parameter) -> bool:
    """Whether a parameter is learned."""
    return bool(_kind(var)["Parameter"]["trainable"])


def stops(var: Variable) -> bool:
    """Whether gradients end at a variable."""
    said = var.program._graph.stops(var.name)
    kind = _kind(var)
    if isinstance(kind, dict) and "Parameter" in kind:
        return bool(said) or not kind["Parameter"]["trainable"]
    return said if said is not None else kind == "Feed" or isinstance(kind, dict)


def set_persistable(var: Variable | LearningRate, value: Any) -> None:
    """Scripts set it so that a value can be fetched, which needs nothing here."""
    _check_bool("persistable", value)
    if value and not var.persistable:
        once(
            "persistable = True: any variable can be fetched, and the scope holds only parameters and what "
            "create_global_var makes"
        )
    if not value and var.persistable:
        raise ProgramError(
            f"`{var.name}` lives in the scope and stays there; use fill_constant for a variable that does not",
            var=var.name,
        )


_SAID: set[str] = set()


def once(text: str) -> None:
    """Says in a process once that something has no effect here."""
    if text not in _SAID:
        _SAID.add(text)
        warnings.warn(text, stacklevel=4)


def set_trainable(var: Parameter, value: Any) -> None:
    """Before anything learns it."""
    _check_bool("trainable", value)
    if value != trainable(var):
        _check_early(var, "trainable")
        var.program._graph.set_trainable(var.name, value)


def set_stops(var: Variable, value: Any) -> None:
    """Before there is a gradient that it would change."""
    _check_bool("stop_gradient", value)
    if value == stops(var):
        return
    kind = _kind(var)
    if isinstance(kind, dict) and not value:
        if "State" in kind:
            text = f"`{var.name}` lives in the scope and is not learned"
            raise ProgramError(f"{text}; use layers.create_parameter for what is", var=var.name)
        if not kind["Parameter"]["trainable"]:
            raise ProgramError(f"`{var.name}` is not trainable; set trainable = True", var=var.name)
    check_flow(var.name, var.dtype, value)
    _check_early(var, "stop_gradient")
    var.program._graph.stop_gradient(var.name, value)


def check_flow(name: str, dtype: Any, stops: Any) -> None:
    """Refuses types without gradients: only floating-point numbers have them."""
    _check_bool("stop_gradient", stops)
    if not stops and _values.name(_values.code(dtype)) not in ("float32", "float64"):
        text = f"`{name}` is {_values.name(_values.code(dtype))}, which has no gradient"
        raise ProgramError(f"{text}; leave stop_gradient=False out", var=name)


def _check_bool(what: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, got {value!r}")


def _check_early(var: Variable, what: str) -> None:
    if var.program._graph.has_gradient(var.name):
        raise ProgramError(
            f"{what} of `{var.name}` is set too late: the program already has its gradient. Set it before minimize, or "
            "give minimize a parameter_list or a no_grad_set",
            var=var.name,
        )
