"""Averages of parameters over the steps of training, and an optimizer that follows one.

>>> from phalanx import graph
>>> main, startup = graph.Program(), graph.Program()
>>> with graph.program_guard(main, startup):
...     loss = graph.layers.mean(graph.layers.fc(graph.data("x", [None, 3]), 1))
...     _ = graph.optimizer.SGD(0.1).minimize(loss)
...     ema = ExponentialMovingAverage(0.99)
...     ema.update()

They are parts of the update: programs for testing do not have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from phalanx.graph import layers, unique_name
from phalanx.graph._adding import declare
from phalanx.graph._operators import reshaped
from phalanx.graph.errors import ProgramError, UninitialisedError
from phalanx.graph.executor import Executor
from phalanx.graph.optimizer import Optimizer, Pairs
from phalanx.graph.program import (
    Operator,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    program_guard,
)
from phalanx.graph.scope import Scope, global_scope


@contextmanager
def _updating(program: Program, startup: Program | None = None) -> Iterator[None]:
    """What is added within it is part of the update, and is added whole or not at all."""
    before, begin = program._graph.copy(), program._graph.n_ops
    try:
        with program_guard(program, startup or default_startup_program()):
            yield
    except BaseException:
        program._graph.restore(before)
        raise
    program._graph.make_update(begin)


def _learned(program: Program, what: str) -> list[Parameter]:
    updated = {name for op in program.global_block().ops if op.role == "Optimize" for name in op.outputs}
    found = [
        p for p in program.all_parameters() if p.trainable and p.name in updated and p.name not in program._unaveraged
    ]
    if not found:
        raise ProgramError(
            f"{what}: no parameter of the program is learned yet, or all have do_model_average=False; call minimize before"
        )
    return found


def _write(value: Variable, to: Variable) -> None:
    """Gives a variable in the scope a new value."""
    shaped = value if value.shape == to.shape else reshaped(value, to.shape)
    to.program._append_to({"Assign": None}, [shaped], [to])


class _Applied:
    """Puts values in the place of parameters for a while."""

    _kept: dict[str, Any] | None = None
    _scope: Scope | None = None

    def _values(self) -> dict[str, Any]:
        raise NotImplementedError

    @contextmanager
    def apply(self, executor: Executor, need_restore: bool = True) -> Iterator[None]:
        """A context in which parameters are the averages; without ``need_restore`` they stay so until ``restore``."""
        if not isinstance(executor, Executor):
            raise TypeError(f"apply takes an Executor, got {type(executor).__name__}")
        if self._kept is not None:
            raise ProgramError("the averages are already applied; call restore first")
        scope, values = global_scope(), self._values()
        self._kept, self._scope = {name: np.array(scope[name]) for name in values}, scope
        for name, value in values.items():
            scope[name] = value
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    def restore(self, executor: Executor) -> None:
        """Parameters are what training has left."""
        if self._kept is None or self._scope is None:
            raise ProgramError("the averages are not applied; call apply first")
        for name, value in self._kept.items():
            self._scope[name] = value
        self._kept = self._scope = None


class ExponentialMovingAverage(_Applied):
    """Averages in which earlier steps count less: ``ema = decay * ema + (1 - decay) * parameter``.

    Call :meth:`update` once, after ``minimize``. What :meth:`apply` shows is corrected for the beginning at zero.
    """

    def __init__(self, decay: float = 0.999, thres_steps: Any = None, name: str | None = None) -> None:
        if not 0.0 <= decay < 1.0:
            raise ProgramError(f"decay={decay} must be from 0 and below 1", got=repr(decay))
        if thres_steps is not None:
            raise ProgramError("ExponentialMovingAverage: thres_steps is not supported; leave it out")
        self._decay, self._name = float(decay), name or ""
        self._pairs: dict[str, str] = {}
        self._counter = ""

    def update(self) -> None:
        """Adds the operations that follow the parameters."""
        if self._pairs:
            raise ProgramError("update was already called for this average")
        program = default_main_program()
        parameters = _learned(program, "ExponentialMovingAverage.update")
        with _updating(program):
            counter = layers.create_global_var([1], 0, "int64", True, unique_name.generate(f"{self._name}ema_step"))
            layers.increment(counter)
            for p in parameters:
                called = unique_name.generate(f"{p.name}.{self._name}ema")
                ema = layers.create_global_var(list(p.shape), 0.0, p.dtype, True, called)
                # Of what the update has just made, so that replicas compute it after it.
                _write(ema + (p - ema) * (1.0 - self._decay), ema)
                self._pairs[p.name] = ema.name
        self._counter = counter.name

    def _values(self) -> dict[str, Any]:
        if not self._pairs:
            raise ProgramError(
                "the average has no parameters: call its update() after minimize, before the startup program"
            )
        scope = global_scope()
        steps = int(np.asarray(scope[self._counter]).item())
        if steps == 0:
            raise UninitialisedError("the average has seen no step yet; train first")
        part = 1.0 - self._decay**steps
        return {p: np.asarray(scope[ema]) / np.asarray(part, scope[ema].dtype) for p, ema in self._pairs.items()}


class ModelAverage(_Applied):
    """The mean of the parameters over a window of steps.

    The window has ``average_window_rate`` of all steps, at least ``min_average_window`` and at most
    ``max_average_window`` of them; when it is full, a new one begins, and the last one still counts.
    """

    def __init__(
        self,
        average_window_rate: float,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        regularization: Any = None,
        name: str | None = None,
    ) -> None:
        if regularization is not None:
            raise ProgramError("ModelAverage: it learns nothing; leave regularization out")
        if not 0.0 < average_window_rate <= 1.0 or not 0 < min_average_window <= max_average_window:
            raise ProgramError(
                f"ModelAverage: a rate of {average_window_rate}, and from {min_average_window} to "
                f"{max_average_window} steps, is no window"
            )
        program = default_main_program()
        parameters = _learned(program, "ModelAverage")
        label = f"{name or ''}average"
        self._sums: dict[str, tuple[str, str]] = {}
        with _updating(program):

            def number(what: str) -> Variable:
                return layers.create_global_var([], 0.0, "float64", True, unique_name.generate(f"{label}_{what}"))

            steps, new, old = number("steps"), number("new"), number("old")
            _write(steps + 1.0, steps)
            _write(new + 1.0, new)
            limit = layers.elementwise_min(
                steps * float(average_window_rate), layers.fill_constant([], "float64", max_average_window)
            )
            is_full = layers.logical_and(new >= float(min_average_window), new >= limit)
            full = layers.cast(is_full, "float64")
            _write(full * new + (1.0 - full) * old, old)
            _write((1.0 - full) * new, new)
            for p in parameters:
                began = [unique_name.generate(f"{p.name}.{label}_{what}") for what in ("new", "old")]
                fresh, last = (layers.create_global_var(list(p.shape), 0.0, p.dtype, True, n) for n in began)
                of = layers.cast(full, p.dtype)
                total = fresh + p
                _write(total * of + last * (1.0 - of), last)
                _write(total * (1.0 - of), fresh)
                self._sums[p.name] = fresh.name, last.name
        self._counts = new.name, old.name

    def _values(self) -> dict[str, Any]:
        scope = global_scope()
        count = sum(float(np.asarray(scope[name]).item()) for name in self._counts)
        if count == 0:
            raise UninitialisedError("the average has seen no step yet; train first")
        made = {}
        for p, names in self._sums.items():
            new, old = (np.asarray(scope[name]) for name in names)
            made[p] = ((new.astype("float64") + old) / count).astype(new.dtype)
        return made


class LookaheadOptimizer:
    """Wraps an optimizer: every ``k`` steps, slow weights go ``alpha`` of the way to the parameters, which go back there."""

    def __init__(self, inner_optimizer: Optimizer, alpha: float = 0.5, k: int = 5) -> None:
        if not isinstance(inner_optimizer, Optimizer):
            raise TypeError(f"inner_optimizer must be an optimizer, not {type(inner_optimizer).__name__}")
        if not 0.0 <= alpha <= 1.0 or isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ProgramError(f"LookaheadOptimizer: alpha={alpha} must be from 0 to 1, k={k} a whole number from 1")
        self.inner_optimizer, self.alpha, self.k = inner_optimizer, float(alpha), k

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Sequence[Any] | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """Adds gradients and updates, and what follows every ``k`` steps."""
        made, pairs = self.inner_optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)
        program, startup = loss.program, startup_program or default_startup_program()
        with _updating(program, startup):
            step = layers.create_global_var([1], 0, "int64", True, unique_name.generate("lookahead_step"))
            layers.increment(step)
            is_time = layers.equal(step % self.k, layers.fill_constant([1], "int64", 0))
            for p, _ in pairs:
                slow = declare(program, unique_name.generate(f"{p.name}.slow"), p.dtype, p.shape, {"State": "Given"})
                startup._given[slow.name] = p.name
                now = reshaped(layers.cast(is_time, p.dtype), [])
                _write(slow + (p - slow) * now * self.alpha, slow)
                _write(p + (slow - p) * now, p)
        return made, pairs


__all__ = ["ExponentialMovingAverage", "LookaheadOptimizer", "ModelAverage"]
