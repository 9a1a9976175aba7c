"""Learning rates as functions of the step. They are operations of the training program.

>>> piecewise_decay([100, 200], [0.1, 0.01, 0.001])
LearningRate({'Piecewise': {'until': [100, 200], 'values': [0.1, 0.01, 0.001]}})
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from phalanx.graph import _attributes
from phalanx.graph._refused import number, whole, wholes
from phalanx.graph.errors import FetchError, ProgramError


class LearningRate:
    """A rate as a function of the step; optimizers take it in place of a number.

    After ``minimize`` it can be fetched: ``exe.run(fetch_list=[loss, rate])``, or by its ``name``.
    """

    __slots__ = ("_form", "_names")

    def __init__(self, form: dict[str, Any]) -> None:
        self._form = form
        # What programs call it whose optimizers have taken it.
        self._names: list[str] = []

    @property
    def name(self) -> str:
        """The name of its value in the program whose optimizer has taken it."""
        if len(set(self._names)) == 1:
            return self._names[0]
        if not self._names:
            raise FetchError("no optimizer has taken this learning rate yet; call minimize before it is fetched")
        names = ", ".join(sorted(set(self._names)))
        raise FetchError(f"several optimizers have taken this learning rate; fetch one of them by its name: {names}")

    @property
    def persistable(self) -> bool:
        """``False``: the program computes it in each run. Setting it has no effect: it can be fetched."""
        return False

    @persistable.setter
    def persistable(self, persistable: bool) -> None:
        _attributes.set_persistable(self, persistable)

    def __repr__(self) -> str:
        return f"LearningRate({self._form})"


def exponential_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> LearningRate:
    """``rate * decay_rate ** (step / decay_steps)``; with ``staircase`` only whole powers."""
    form = _decaying("exponential_decay", learning_rate, decay_steps, decay_rate, staircase)
    return LearningRate({"Exponential": form})


def natural_exp_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> LearningRate:
    """``rate * exp(-decay_rate * step / decay_steps)``; with ``staircase`` only whole quotients."""
    power = math.exp(-number("natural_exp_decay", "decay_rate", decay_rate))
    return LearningRate({"Exponential": _decaying("natural_exp_decay", learning_rate, decay_steps, power, staircase)})


def inverse_time_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> LearningRate:
    """``rate / (1 + decay_rate * step / decay_steps)``; with ``staircase`` only whole quotients."""
    form = _decaying("inverse_time_decay", learning_rate, decay_steps, decay_rate, staircase)
    return LearningRate({"InverseTime": form})


def _decaying(what: str, rate: float, steps: int, decay: float, staircase: bool) -> dict[str, Any]:
    """What falls with ``step / steps``."""
    return {
        "rate": number(what, "learning_rate", rate),
        "decay": number(what, "decay_rate", decay, least=0.0),
        "every": number(what, "decay_steps", steps, above=0.0),
        "stairs": _flag(what, "staircase", staircase),
    }


def polynomial_decay(
    learning_rate: float,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> LearningRate:
    """From one rate to another over ``decay_steps`` steps.

    With ``cycle`` the rate rises again after them, less each time: the way down is over twice as many steps then, and so on.
    """
    what = "polynomial_decay"
    form = {
        "rate": number(what, "learning_rate", learning_rate),
        "end": number(what, "end_learning_rate", end_learning_rate),
        "steps": number(what, "decay_steps", decay_steps, above=0.0),
        "power": number(what, "power", power, least=0.0),
        "cycles": _flag(what, "cycle", cycle),
    }
    return LearningRate({"Polynomial": form})


def _flag(what: str, name: str, value: Any) -> bool:
    """A text such as "False" would count as true."""
    if not isinstance(value, (bool, int, np.bool_)):
        raise ProgramError(f"{what}: {name}={value!r} must be True or False")
    return bool(value)


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> LearningRate:
    """``values[i]`` until step ``boundaries[i]``, and the last one after all of them."""
    if len(values) != len(boundaries) + 1:
        raise ProgramError(
            f"piecewise_decay: {len(boundaries)} boundaries need {len(boundaries) + 1} values, got {len(values)}"
        )
    until = wholes("piecewise_decay", "boundaries", boundaries)
    if any(step >= later for step, later in pairwise(until)):
        raise ProgramError(f"piecewise_decay: boundaries={until} must rise: each is the step at which the next value begins")
    form = {"until": until, "values": [number("piecewise_decay", "values", v) for v in values]}
    return LearningRate({"Piecewise": form})


def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> LearningRate:
    """Half a cosine down to 0, one value per epoch. As in Paddle it rises again after ``epochs`` epochs."""
    form = {
        "rate": number("cosine_decay", "learning_rate", learning_rate),
        "every": whole("cosine_decay", "step_each_epoch", step_each_epoch),
        "stairs": float(epochs),
    }
    if form["every"] < 1 or form["stairs"] <= 0:
        raise ProgramError(f"cosine_decay: {step_each_epoch} steps and {epochs} epochs; both must be at least 1")
    return LearningRate({"CosineStairs": form})


def smooth_cosine_decay(learning_rate: float, decay_steps: int) -> LearningRate:
    """Half a cosine down to 0, step by step."""
    what = "smooth_cosine_decay"
    rate, steps = number(what, "learning_rate", learning_rate), number(what, "decay_steps", decay_steps, above=0.0)
    return LearningRate({"Cosine": {"rate": rate, "steps": steps}})


def noam_decay(d_model: int, warmup_steps: int, learning_rate: float = 1.0) -> LearningRate:
    """``learning_rate * d_model ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5)``."""
    form = {
        "width": number("noam_decay", "d_model", d_model, above=0.0),
        "warmup": number("noam_decay", "warmup_steps", warmup_steps, above=0.0),
        "rate": number("noam_decay", "learning_rate", learning_rate),
    }
    return LearningRate({"Noam": form})


def linear_lr_warmup(
    learning_rate: float | LearningRate, warmup_steps: int, start_lr: float, end_lr: float | None = None
) -> LearningRate:
    """Linear from ``start_lr`` to ``end_lr``, then ``learning_rate``, as in Paddle; the step count continues.

    Without ``end_lr`` the line ends at the rate that follows.
    """
    steps = whole("linear_lr_warmup", "warmup_steps", warmup_steps)
    first = number("linear_lr_warmup", "start_lr", start_lr)
    form: dict[str, Any] = {"steps": steps, "from": first, "then": schedule(learning_rate)}
    if end_lr is not None:
        form["to"] = number("linear_lr_warmup", "end_lr", end_lr)
    if form["steps"] < 1:
        raise ProgramError(f"linear_lr_warmup: {warmup_steps} steps from {start_lr} to {end_lr} are no line")
    return LearningRate({"Warmup": form})


def schedule(rate: float | LearningRate) -> dict[str, Any]:
    """A rate as it is written in programs."""
    if isinstance(rate, LearningRate):
        return rate._form
    if isinstance(rate, (np.ndarray, np.generic)) and rate.size == 1:
        rate = rate.item()
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not math.isfinite(rate):
        raise TypeError(f"a learning rate is a number or a LearningRate, not {rate!r}")
    return {"Constant": float(rate)}


__all__ = [
    "LearningRate",
    "cosine_decay",
    "exponential_decay",
    "inverse_time_decay",
    "linear_lr_warmup",
    "natural_exp_decay",
    "noam_decay",
    "piecewise_decay",
    "polynomial_decay",
    "smooth_cosine_decay",
]
