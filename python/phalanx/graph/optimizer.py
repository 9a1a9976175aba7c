"""Optimizers: gradients, decay, clipping, rates and updates, added to a program as operations.

>>> from phalanx import graph
>>> main, startup = graph.Program(), graph.Program()
>>> with graph.program_guard(main, startup):
...     x = graph.data("x", [None, 3])
...     loss = graph.layers.mean(graph.layers.fc(x, 1))
...     _, pairs = graph.optimizer.SGD(learning_rate=0.1).minimize(loss)
>>> [(p.name, g.name) for p, g in pairs]
[('fc_0.w_0', 'fc_0.w_0@GRAD'), ('fc_0.b_0', 'fc_0.b_0@GRAD')]

A rate that is a number is the variable ``learning_rate`` in the scope: set it there, or feed it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from phalanx.graph._site import caller
from phalanx.graph.clip import GradientClip
from phalanx.graph.errors import ProgramError
from phalanx.graph.layers.learning_rate import LearningRate, schedule
from phalanx.graph.program import (
    Operator,
    Parameter,
    Program,
    Variable,
    _program_of,
    append_backward,
    default_startup_program,
)
from phalanx.graph.regularizer import L2Decay

Pairs = list[tuple[Parameter, Variable]]


class Optimizer:
    """The base of them all. Each takes these by name, too:

    * ``regularization``: an ``L2Decay`` for parameters that have none of their own in ``ParamAttr``.
    * ``grad_clip``: one of :mod:`phalanx.graph.clip`.
    * ``name``: for Paddle's scripts; it changes nothing.
    """

    _rule = ""

    def __init__(
        self,
        learning_rate: float | LearningRate,
        numbers: dict[str, float],
        regularization: L2Decay | None = None,
        grad_clip: GradientClip | None = None,
        name: str | None = None,
    ) -> None:
        if regularization is not None and not isinstance(regularization, L2Decay):
            raise TypeError(f"regularization is L2Decay or nothing, not {type(regularization).__name__}")
        if grad_clip is not None and not isinstance(grad_clip, GradientClip):
            raise TypeError(f"grad_clip is a GradientClip or nothing, not {type(grad_clip).__name__}")
        self._rate = schedule(learning_rate)
        self._numbers = {key: float(value) for key, value in numbers.items()}
        self._decay = None if regularization is None else float(regularization.regularization_coeff)
        self._clip = grad_clip

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Sequence[Any] | None = None,
    ) -> Pairs:
        """Only the gradients; gives each parameter with its gradient."""
        return append_backward(loss, parameter_list, no_grad_set)

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Sequence[Any] | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """Adds gradients and updates of all that is learned; gives the updates, and parameters with gradients."""
        if parameter_list is not None or no_grad_set is not None:
            raise ProgramError(
                "minimize learns everything that is trainable; use ParamAttr(trainable=False) to leave parameters out"
            )
        if not isinstance(loss, Variable):
            raise TypeError(f"the loss is a variable, not {type(loss).__name__}")
        graph, clip = _program_of([loss], "minimize")._graph, None if self._clip is None else self._clip._form()
        pairs = graph.minimize(
            loss.name, self._rule, self._numbers, json.dumps(self._rate), self._decay, clip, caller()
        )
        (startup_program or default_startup_program())._graph.adopt(graph)
        updates = [op for op in loss.program.global_block().ops if op.role == "Optimize"]
        return updates, [(cast(Parameter, loss.program.var(p)), loss.program.var(g)) for p, g in pairs]


class SGD(Optimizer):
    """``p -= rate * g``."""

    _rule = "sgd"

    def __init__(self, learning_rate: float | LearningRate, **common: Any) -> None:
        super().__init__(learning_rate, {}, **common)


class Momentum(Optimizer):
    """``v = momentum * v + g``, ``p -= rate * v``."""

    _rule = "momentum"

    def __init__(
        self, learning_rate: float | LearningRate, momentum: float, use_nesterov: bool = False, **common: Any
    ) -> None:
        super().__init__(learning_rate, {"momentum": momentum, "use_nesterov": use_nesterov}, **common)


class Adam(Optimizer):
    """Of sparse gradients it sees only the rows that were used, as Paddle does with ``lazy_mode``."""

    _rule = "adam"

    def __init__(
        self,
        learning_rate: float | LearningRate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}, **common)


class AdamW(Optimizer):
    """Adam whose decay does not pass through the moments."""

    _rule = "adamw"

    def __init__(
        self,
        learning_rate: float | LearningRate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        **common: Any,
    ) -> None:
        numbers = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(learning_rate, numbers, **common)


class Adagrad(Optimizer):
    """Rates that shrink with the squares seen so far."""

    _rule = "adagrad"

    def __init__(self, learning_rate: float | LearningRate, epsilon: float = 1.0e-6, **common: Any) -> None:
        super().__init__(learning_rate, {"epsilon": epsilon}, **common)


class RMSProp(Optimizer):
    """Rates by a running mean of squares."""

    _rule = "rmsprop"

    def __init__(
        self,
        learning_rate: float | LearningRate,
        rho: float = 0.95,
        epsilon: float = 1.0e-6,
        momentum: float = 0.0,
        centered: bool = False,
        **common: Any,
    ) -> None:
        if centered:
            raise ProgramError("RMSProp: centered=True is not supported")
        super().__init__(learning_rate, {"rho": rho, "epsilon": epsilon, "momentum": momentum}, **common)


class LarsMomentum(Optimizer):
    """Momentum with a rate for each parameter, by its norm and that of its gradient."""

    _rule = "lars"

    def __init__(
        self,
        learning_rate: float | LearningRate,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        **common: Any,
    ) -> None:
        numbers = {"momentum": momentum, "lars_coeff": lars_coeff, "lars_weight_decay": lars_weight_decay}
        super().__init__(learning_rate, numbers, **common)


class RecomputeOptimizer:
    """Another optimizer, with less memory: what lies between checkpoints is computed again for the backward part.

    ``checkpoints`` are the variables that are kept. They can also be set later, before ``minimize``; Paddle's name for
    that is ``_set_checkpoints``, and it works too.

    >>> from phalanx import graph
    >>> main, startup = graph.Program(), graph.Program()
    >>> with graph.program_guard(main, startup):
    ...     hidden = graph.layers.fc(graph.data("x", [None, 3]), 4, act="relu")
    ...     loss = graph.layers.mean(graph.layers.fc(hidden, 1))
    ...     _ = RecomputeOptimizer(SGD(0.1), checkpoints=[hidden]).minimize(loss)
    """

    def __init__(self, optimizer: Optimizer, checkpoints: Sequence[Variable | str] = ()) -> None:
        self._optimizer = optimizer
        self._checkpoints: list[str] = []
        self.set_checkpoints(checkpoints)

    def set_checkpoints(self, checkpoints: Sequence[Variable | str]) -> None:
        """Sets what is kept: variables, or their names."""
        if isinstance(checkpoints, (str, Variable)):
            checkpoints = [checkpoints]
        odd = next((v for v in checkpoints if not isinstance(v, (str, Variable))), None)
        if odd is not None:
            raise TypeError(f"checkpoints are variables or names, not a {type(odd).__name__}")
        self._checkpoints = [v if isinstance(v, str) else v.name for v in checkpoints]

    def _set_checkpoints(self, checkpoints: Sequence[Variable | str]) -> None:
        self.set_checkpoints(checkpoints)

    def minimize(self, loss: Variable, startup_program: Program | None = None) -> tuple[list[Operator], Pairs]:
        """Adds gradients and updates, and what is computed again."""
        if not self._checkpoints:
            raise ProgramError("RecomputeOptimizer needs checkpoints: give them to it, or call set_checkpoints first")
        # A name that is not there is found before anything is added.
        for name in self._checkpoints:
            loss.program.var(name)
        made = self._optimizer.minimize(loss, startup_program)
        loss.program._graph.recompute(self._checkpoints, caller())
        return made


class GradientMergeOptimizer:
    """Another optimizer that acts in every ``k_steps``-th run only, on the mean of the gradients since it last did.

    Large batches in small memory: ``k_steps`` runs learn what one with all of their samples would. ``accumulate`` of a
    ``BuildStrategy`` does that within one run.
    """

    def __init__(self, inner_optimizer: Optimizer | RecomputeOptimizer, k_steps: int = 1, avg: bool = True) -> None:
        if isinstance(k_steps, bool) or not isinstance(k_steps, int) or k_steps < 1:
            raise ProgramError(f"k_steps={k_steps!r}; it must be a number from 1 on", got=repr(k_steps))
        if not avg:
            raise ProgramError(
                "avg=False is not supported: it takes the mean; multiply the loss by k_steps for the sum"
            )
        self._optimizer = inner_optimizer
        self._k_steps = k_steps

    def minimize(self, loss: Variable, startup_program: Program | None = None) -> tuple[list[Operator], Pairs]:
        """Adds gradients, their sums over runs, and updates."""
        updates, pairs = self._optimizer.minimize(loss, startup_program)
        if self._k_steps == 1:
            return updates, pairs
        graph = loss.program._graph
        graph.accumulate(self._k_steps, caller())
        (startup_program or default_startup_program())._graph.adopt(graph)
        return [op for op in loss.program.global_block().ops if op.role == "Optimize"], pairs


SGDOptimizer = SGD
MomentumOptimizer = Momentum
AdamOptimizer = Adam
AdamWOptimizer = AdamW
AdagradOptimizer = Adagrad
RMSPropOptimizer = RMSProp
LarsMomentumOptimizer = LarsMomentum

__all__ = [
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "AdamW",
    "AdamWOptimizer",
    "GradientMergeOptimizer",
    "LarsMomentum",
    "LarsMomentumOptimizer",
    "Momentum",
    "MomentumOptimizer",
    "Optimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "RecomputeOptimizer",
    "SGD",
    "SGDOptimizer",
]
