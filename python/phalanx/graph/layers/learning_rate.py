"""Learning rates as functions of the step. They are operations of the training program.

>>> piecewise_decay([100, 200], [0.1, 0.01, 0.001])
LearningRate({'Piecewise': {'until': [100, 200], 'values': [0.1, 0.01, 0.001]}})
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from phalanx.graph import _attributes
from phalanx.graph._refused import whole, wholes
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
    """``rate * decay_rate ** (step / decay_steps)``."""
    form = {"rate": float(learning_rate), "decay": float(decay_rate), "every": float(decay_steps), "stairs": staircase}
    return LearningRate({"Exponential": form})


def natural_exp_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> LearningRate:
    """``rate * exp(-decay_rate * step / decay_steps)``."""
    return exponential_decay(learning_rate, decay_steps, math.exp(-decay_rate), staircase)


def inverse_time_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> LearningRate:
    """``rate / (1 + decay_rate * step / decay_steps)``."""
    if staircase:
        raise ProgramError("inverse_time_decay has no staircase; use piecewise_decay")
    form = {"rate": float(learning_rate), "decay": float(decay_rate), "every": float(decay_steps)}
    return LearningRate({"InverseTime": form})


def polynomial_decay(
    learning_rate: float,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> LearningRate:
    """From one rate to another over ``decay_steps`` steps."""
    if cycle:
        raise ProgramError("polynomial_decay: cycle=True is not supported; leave it out")
    form = {
        "rate": float(learning_rate),
        "end": float(end_learning_rate),
        "steps": float(decay_steps),
        "power": float(power),
    }
    return LearningRate({"Polynomial": form})


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> LearningRate:
    """``values[i]`` until step ``boundaries[i]``, and the last one after all of them."""
    if len(values) != len(boundaries) + 1:
        raise ProgramError(
            f"piecewise_decay: {len(boundaries)} boundaries need {len(boundaries) + 1} values, got {len(values)}"
        )
    form = {"until": wholes("piecewise_decay", "boundaries", boundaries), "values": [float(v) for v in values]}
    return LearningRate({"Piecewise": form})


def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> LearningRate:
    """Half a cosine down to 0, one value per epoch. As in Paddle it rises again after ``epochs`` epochs."""
    form = {
        "rate": float(learning_rate),
        "every": whole("cosine_decay", "step_each_epoch", step_each_epoch),
        "stairs": float(epochs),
    }
    if form["every"] < 1 or form["stairs"] <= 0:
        raise ProgramError(f"cosine_decay: {step_each_epoch} steps and {epochs} epochs; both must be at least 1")
    return LearningRate({"CosineStairs": form})


def smooth_cosine_decay(learning_rate: float, decay_steps: int) -> LearningRate:
    """Half a cosine down to 0, step by step."""
    return LearningRate({"Cosine": {"rate": float(learning_rate), "steps": float(decay_steps)}})


def noam_decay(d_model: int, warmup_steps: int, learning_rate: float = 1.0) -> LearningRate:
    """``learning_rate * d_model ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5)``."""
    form = {"width": float(d_model), "warmup": float(warmup_steps), "rate": _number("noam_decay", learning_rate)}
    return LearningRate({"Noam": form})


def _number(what: str, rate: Any) -> float:
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not math.isfinite(rate):
        raise TypeError(f"{what}: learning_rate is a number, not {rate!r}")
    return float(rate)


def linear_lr_warmup(
    learning_rate: float | LearningRate, warmup_steps: int, start_lr: float, end_lr: float | None = None
) -> LearningRate:
    """Linear from ``start_lr`` to ``end_lr``, then ``learning_rate``, as in Paddle; the step count continues.

    Without ``end_lr`` the line ends at the rate that follows.
    """
    steps = whole("linear_lr_warmup", "warmup_steps", warmup_steps)
    form: dict[str, Any] = {"steps": steps, "from": float(start_lr), "then": schedule(learning_rate)}
    if end_lr is not None:
        form["to"] = float(end_lr)
    if not all(math.isfinite(form[key]) for key in ("from", "to") if key in form) or form["steps"] < 1:
        raise ProgramError(f"linear_lr_warmup: {warmup_steps} steps from {start_lr} to {end_lr} are no line")
    return LearningRate({"Warmup": form})


def schedule(rate: float | LearningRate) -> dict[str, Any]:
    """A rate as it is written in programs."""
    if isinstance(rate, LearningRate):
        return rate._form
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
