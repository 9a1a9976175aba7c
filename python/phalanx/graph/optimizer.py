"""Optimizers: gradients, decay, clipping, rates and updates, added to a program as operations.

>>> from phalanx import graph
>>> main, startup = graph.Program(), graph.Program()
>>> with graph.program_guard(main, startup), graph.unique_name.guard():
...     x = graph.data("x", [None, 3])
...     loss = graph.layers.mean(graph.layers.fc(x, 1))
...     _, pairs = graph.optimizer.SGD(learning_rate=0.1).minimize(loss)
>>> [(p.name, g.name) for p, g in pairs]
[('fc_0.w_0', 'fc_0.w_0@GRAD'), ('fc_0.b_0', 'fc_0.b_0@GRAD')]

A rate that is a number is a variable in the scope: set it there, or feed it. Each optimizer has its own rate and counts
its own steps. The first of a process has ``learning_rate``, the next ``learning_rate_1``; with ``name="d"`` it is
``learning_rate_d``. ``optimizer.rate_name(program)`` returns the name.

A program may have several losses and optimizers. Each ``minimize`` uses gradients of its own loss, with the parameters
with which that loss was computed, even if an earlier optimizer has updated them since.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from phalanx.graph import unique_name
from phalanx.graph._adding import program_of
from phalanx.graph._attributes import once
from phalanx.graph._refused import number
from phalanx.graph._site import caller
from phalanx.graph.backward import append_backward, chosen, paired
from phalanx.graph.clip import GradientClip
from phalanx.graph.errors import ProgramError
from phalanx.graph.layers.learning_rate import LearningRate, schedule
from phalanx.graph.program import (
    Operator,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
)
from phalanx.graph.regularizer import L1Decay, L2Decay

if TYPE_CHECKING:
    from phalanx.graph.averages import ExponentialMovingAverage, LookaheadOptimizer, ModelAverage

Pairs = list[tuple[Parameter, Variable]]
RATE = "learning_rate"
Rate: TypeAlias = "float | LearningRate | Variable"


@dataclass
class Form:
    """An optimizer as the compiled module takes it."""

    rule: str
    numbers: dict[str, float]
    rate: str
    decay: float | None
    sign_decay: float | None
    clip: tuple[str, dict[str, float]] | None
    label: str
    rate_name: str


def _number(optimizer: str, name: str, value: Any) -> float:
    """What a rule is made with: flags, shares below 1, a power, and amounts."""
    if isinstance(value, (bool, np.bool_)):
        return float(value)
    if name in ("beta1", "beta2", "rho", "decay"):
        return number(optimizer, name, value, least=0.0, below=1.0)
    if name == "lr_power":
        return number(optimizer, name, value, most=0.0)
    return number(optimizer, name, value, least=0.0)


class Optimizer:
    """The base class. Every optimizer also takes these keyword arguments:

    * ``regularization``: an ``L2Decay`` or ``L1Decay`` for parameters that have none of their own in ``ParamAttr``. As
      in Paddle and in PyTorch it is added to gradients that were clipped.
    * ``grad_clip``: one of :mod:`phalanx.graph.clip`.
    * ``name``: the suffix of its variables' names in the scope.
    """

    _rule = ""

    def __init__(
        self,
        learning_rate: Rate,
        numbers: dict[str, float],
        regularization: L2Decay | L1Decay | None = None,
        grad_clip: GradientClip | None = None,
        name: str | None = None,
        parameter_list: Sequence[Any] | None = None,
    ) -> None:
        if regularization is not None and not isinstance(regularization, (L2Decay, L1Decay)):
            raise TypeError(f"regularization must be L2Decay, L1Decay or None, not {type(regularization).__name__}")
        if grad_clip is not None and not isinstance(grad_clip, GradientClip):
            raise TypeError(f"grad_clip must be a GradientClip or None, not {type(grad_clip).__name__}")
        # A variable is the rate itself, and not written.
        self._variable = learning_rate if isinstance(learning_rate, Variable) else None
        self._rate = {"Constant": 0.0} if isinstance(learning_rate, Variable) else schedule(learning_rate)
        self._scheduled = learning_rate if isinstance(learning_rate, LearningRate) else None
        self._parameters = None if parameter_list is None else list(parameter_list)
        self._numbers = {key: _number(type(self).__name__, key, value) for key, value in numbers.items()}
        self._decay, self._sign_decay = (
            float(regularization.regularization_coeff) if isinstance(regularization, kind) else None
            for kind in (L2Decay, L1Decay)
        )
        self._clip = grad_clip
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"name must be a str or None, not {name!r}")
        self._name = name
        # What its rate is called in each program.
        self._rates: WeakKeyDictionary[Program, str] = WeakKeyDictionary()

    def rate_name(self, program: Program) -> str:
        """The name of its learning rate in a program in which it was used."""
        if program not in self._rates:
            raise ProgramError("the optimizer was not used in this program: minimize first")
        return self._rates[program]

    def _global_learning_rate(self, program: Program | None = None) -> Variable:
        """Its learning rate as a variable; scripts fetch it after ``minimize``, or set it in the scope."""
        program = program or default_main_program()
        return program.global_block().var(self.rate_name(program))

    def _used(self, program: Program, rate: str) -> None:
        self._rates[program] = rate
        if self._scheduled is not None:
            self._scheduled._names.append(rate)

    def _form(self, program: Program) -> Form:
        """With names that are this optimizer's own. A rate that never changes is one for each program."""
        label = _label(program, self._name)
        rate = f"{RATE}_{label}" if label else RATE
        if "Constant" in self._rate:
            rate = self._rates.get(program, rate)
        if self._variable is not None:
            rate = _rate_of(self._variable, program)
        clip = self._clip or program._clip
        form = None if clip is None else clip._form()
        return Form(self._rule, self._numbers, json.dumps(self._rate), self._decay, self._sign_decay, form, label, rate)

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Sequence[Any] | None = None,
        callbacks: Any = None,
    ) -> Pairs:
        """Adds only the gradients; returns each parameter with its gradient. ``startup_program`` is used by updates only."""
        if startup_program is not None and not isinstance(startup_program, Program):
            raise TypeError(f"startup_program must be a Program, not {type(startup_program).__name__}")
        return append_backward(loss, parameter_list, no_grad_set, callbacks)

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Sequence[Any] | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """Adds gradients and updates; returns the updates, and the parameters with their gradients.

        They are those of the parameters in ``parameter_list``, by default all that are trainable. Gradients stop at the
        variables in ``no_grad_set``.
        """
        if not isinstance(loss, Variable):
            raise TypeError(f"the loss must be a variable, not {type(loss).__name__}")
        program = program_of([loss], "minimize")
        parameter_list = self._parameters if parameter_list is None else parameter_list
        only, without = chosen(program, parameter_list, no_grad_set)
        with _Updating(program, startup_program) as updating:
            form = self._form(program)
            pairs = program._graph.minimize(loss.name, only, without, form, caller())
            found = paired(loss, pairs, only)
        self._used(program, form.rate_name)
        return updating.made, found

    def apply_gradients(
        self, params_grads: Sequence[tuple[Variable, Variable]], startup_program: Program | None = None
    ) -> list[Operator]:
        """Adds updates from the gradients that ``backward`` returned, or from values computed from them; returns the updates."""
        pairs = [_pair(one) for one in params_grads]
        if not pairs:
            raise ProgramError("apply_gradients: the list has no parameters with gradients; call backward first")
        program = program_of([v for pair in pairs for v in pair], "apply_gradients")
        with _Updating(program, startup_program) as updating:
            form = self._form(program)
            program._graph.apply_gradients([(p.name, g.name) for p, g in pairs], form, caller())
        self._used(program, form.rate_name)
        return updating.made

    def apply_optimize(
        self,
        loss: Variable,
        startup_program: Program | None,
        params_grads: Sequence[tuple[Variable, Variable]],
    ) -> list[Operator]:
        """The same, with the loss that the gradients are of."""
        program_of([loss, *(v for one in params_grads for v in _pair(one))], "apply_optimize")
        return self.apply_gradients(params_grads, startup_program)


def _pair(one: Any) -> tuple[Variable, Variable]:
    if isinstance(one, (tuple, list)) and len(one) == 2 and all(isinstance(v, Variable) for v in one):
        return one[0], one[1]
    raise TypeError(f"params_grads must be a list of pairs of a parameter and its gradient, but has {one!r}")


def _rate_of(rate: Variable, program: Program) -> str:
    """The name of a variable that is a learning rate."""
    if rate.program is not program:
        raise ProgramError(f"the learning rate `{rate.name}` is of another program", var=rate.name)
    if math.prod(rate.shape) != 1 or rate.dtype not in ("float32", "float64"):
        raise ProgramError(f"a learning rate is one number, of the type of parameters, not {rate!r}", var=rate.name)
    if not rate.persistable:
        program._rates.add(rate.name)
    return rate.name


def _label(program: Program, name: str | None) -> str:
    """What an optimizer's variables are called after: ``name``, with a number where that is taken."""
    while True:
        number = unique_name._Current.names.next(f"optimizer {name or ''}")
        parts = [unique_name._Current.names.prefix, name or "", str(number) if number else ""]
        label = "_".join(part for part in parts if part)
        names = [f"{name}_{label}" if label else name for name in ("@STEP@", RATE)]
        # A program that was read, or a startup program that others share, has optimizers that nobody counted.
        graphs = (program._graph, default_startup_program()._graph)
        if all(graph.var(name) is None for graph in graphs for name in names):
            return label


class _Updating:
    """What is added to a program within it stays only if all of it could be; ``made`` are the updates among it."""

    def __init__(self, program: Program, startup: Program | None) -> None:
        self.program = program
        self.startup = startup or default_startup_program()
        self.made: list[Operator] = []

    def _updates(self) -> list[Operator]:
        return [op for op in self.program.global_block().ops if op.role == "Optimize"]

    def __enter__(self) -> _Updating:
        self._before = self.program._graph.copy()
        self._counts = unique_name._counted()
        self._known = Counter(map(repr, self._updates()))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.program._graph.restore(self._before)
            unique_name._restore(self._counts)
            return
        self.startup._graph.adopt(self.program._graph)
        for op in self._updates():
            if self._known[repr(op)] > 0:
                self._known[repr(op)] -= 1
            else:
                self.made.append(op)


class SGD(Optimizer):
    """``p -= rate * g``."""

    _rule = "sgd"

    def __init__(self, learning_rate: Rate, **common: Any) -> None:
        super().__init__(learning_rate, {}, **common)


class Momentum(Optimizer):
    """``v = momentum * v + g``, ``p -= rate * v``.

    For a table with sparse gradients (``embedding(is_sparse=True)``), only the rows that a run has used are updated, and
    only their velocities decay. In Paddle all rows continue with their velocity, as they do here with ``is_sparse=False``.
    """

    _rule = "momentum"

    def __init__(self, learning_rate: Rate, momentum: float, use_nesterov: bool = False, **common: Any) -> None:
        super().__init__(learning_rate, {"momentum": momentum, "use_nesterov": use_nesterov}, **common)


class Adam(Optimizer):
    """Adam. With sparse gradients it updates only the rows that were used, as Paddle does with ``lazy_mode``.

    With ``embedding(is_sparse=False)`` the moments of all rows decay in every run, as they do in Paddle without
    ``lazy_mode``: passing ``lazy_mode=False`` says so once.
    """

    _rule = "adam"

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        *,
        lazy_mode: bool | None = None,
        **common: Any,
    ) -> None:
        if lazy_mode is not None and not isinstance(lazy_mode, bool):
            raise TypeError(f"Adam: lazy_mode must be True or False, got {lazy_mode!r}")
        if lazy_mode is False:
            once(
                "Adam(lazy_mode=False) has no effect on sparse gradients: only rows that were used are updated; "
                "embedding(is_sparse=False) updates all of them"
            )
        super().__init__(learning_rate, {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}, **common)


class AdamW(Optimizer):
    """Adam with decoupled weight decay, which does not enter the moments."""

    _rule = "adamw"

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        **common: Any,
    ) -> None:
        numbers = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(learning_rate, numbers, **common)


class Adagrad(Optimizer):
    """Rates that decrease with the sum of squared gradients, which begins with ``initial_accumulator_value``."""

    _rule = "adagrad"

    def __init__(
        self,
        learning_rate: Rate,
        epsilon: float = 1.0e-6,
        *,
        initial_accumulator_value: float = 0.0,
        **common: Any,
    ) -> None:
        if not initial_accumulator_value >= 0.0:
            raise ProgramError(
                f"Adagrad: initial_accumulator_value={initial_accumulator_value!r}; squares begin at 0 or above"
            )
        numbers = {"epsilon": epsilon, "initial_accumulator_value": initial_accumulator_value}
        super().__init__(learning_rate, numbers, **common)


class RMSProp(Optimizer):
    """Rates by a running mean of squares: ``p -= rate * g / sqrt(mean + epsilon)``, as in Paddle.

    PyTorch adds epsilon to the root, so its first steps are longer where gradients are small. With sparse gradients it
    updates only the rows that were used.
    """

    _rule = "rmsprop"

    def __init__(
        self,
        learning_rate: Rate,
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
    """Momentum with a rate for each parameter, computed from its norm and that of its gradient.

    With sparse gradients it updates only the rows that were used.
    """

    _rule = "lars"

    def __init__(
        self,
        learning_rate: Rate,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        **common: Any,
    ) -> None:
        numbers = {"momentum": momentum, "lars_coeff": lars_coeff, "lars_weight_decay": lars_weight_decay}
        super().__init__(learning_rate, numbers, **common)


class Adamax(Optimizer):
    """Adam with the largest gradient so far, which decays, instead of the root of the second moment."""

    _rule = "adamax"

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}, **common)


class Adadelta(Optimizer):
    """Steps in proportion to the last ones. They are multiplied by the rate, as in PyTorch; Paddle ignores the rate."""

    _rule = "adadelta"

    def __init__(self, learning_rate: Rate, epsilon: float = 1.0e-6, rho: float = 0.95, **common: Any) -> None:
        super().__init__(learning_rate, {"epsilon": epsilon, "rho": rho}, **common)


class DecayedAdagrad(Optimizer):
    """Adagrad with a mean of squared gradients that decays, instead of their sum."""

    _rule = "decayed_adagrad"

    def __init__(self, learning_rate: Rate, decay: float = 0.95, epsilon: float = 1.0e-6, **common: Any) -> None:
        super().__init__(learning_rate, {"decay": decay, "epsilon": epsilon}, **common)


class Ftrl(Optimizer):
    """Follow the regularized leader: parameters whose gradients stay small become zero."""

    _rule = "ftrl"

    def __init__(
        self, learning_rate: Rate, l1: float = 0.0, l2: float = 0.0, lr_power: float = -0.5, **common: Any
    ) -> None:
        super().__init__(learning_rate, {"l1": l1, "l2": l2, "lr_power": lr_power}, **common)


class Lamb(Optimizer):
    """Adam with weight decay and a rate for each parameter, by its norm and that of its step. Not for sparse gradients."""

    _rule = "lamb"

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay_fn: Any = None,
        **common: Any,
    ) -> None:
        if exclude_from_weight_decay_fn is not None:
            raise ProgramError(
                "Lamb: exclude_from_weight_decay_fn is not supported; minimize these parameters with a second Lamb, "
                "with lamb_weight_decay=0 and a parameter_list"
            )
        numbers = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "lamb_weight_decay": lamb_weight_decay}
        super().__init__(learning_rate, numbers, **common)


class RecomputeOptimizer:
    """Wraps an optimizer to use less memory: values between checkpoints are computed again for the backward part.

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
        """Sets the variables to keep, by variable or name."""
        if isinstance(checkpoints, (str, Variable)):
            checkpoints = [checkpoints]
        odd = next((v for v in checkpoints if not isinstance(v, (str, Variable))), None)
        if odd is not None:
            raise TypeError(f"checkpoints are variables or names, not a {type(odd).__name__}")
        self._checkpoints = [v if isinstance(v, str) else v.name for v in checkpoints]

    def _set_checkpoints(self, checkpoints: Sequence[Variable | str]) -> None:
        self.set_checkpoints(checkpoints)

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Sequence[Any] | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """Adds gradients and updates, and the operations that are computed again."""
        if not self._checkpoints:
            raise ProgramError("RecomputeOptimizer needs checkpoints: pass them, or call set_checkpoints first")
        # A name that is not there is found before anything is added.
        for name in self._checkpoints:
            loss.program.var(name)
        with _Updating(loss.program, startup_program):
            made = self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)
            loss.program._graph.recompute(self._checkpoints, caller())
        return made


class GradientMergeOptimizer:
    """Wraps an optimizer to update only in every ``k_steps``-th run, with the mean of the gradients since the last update.

    This gives large batches with little memory: ``k_steps`` runs have the effect of one run with all of their samples.
    ``accumulate`` of a ``BuildStrategy`` does that within one run.
    """

    def __init__(self, inner_optimizer: Optimizer | RecomputeOptimizer, k_steps: int = 1, avg: bool = True) -> None:
        if isinstance(k_steps, bool) or not isinstance(k_steps, int) or k_steps < 1:
            raise ProgramError(f"k_steps={k_steps!r}; it must be a whole number from 1", got=repr(k_steps))
        if not avg:
            raise ProgramError(
                "avg=False is not supported: gradients are averaged; multiply the loss by k_steps for the sum"
            )
        innermost = inner_optimizer._optimizer if isinstance(inner_optimizer, RecomputeOptimizer) else inner_optimizer
        if isinstance(innermost, Lamb) and k_steps > 1:
            raise ProgramError(
                "GradientMergeOptimizer cannot wrap LAMB, whose rate follows from its moments in every run; set "
                "accumulate of a BuildStrategy, or use another optimizer"
            )
        self._optimizer = inner_optimizer
        self._k_steps = k_steps

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Sequence[Any] | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """Adds gradients, their sums over runs, and updates."""
        with _Updating(loss.program, startup_program) as updating:
            updates, pairs = self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)
            if self._k_steps > 1:
                loss.program._graph.accumulate(self._k_steps, caller())
        return updates if self._k_steps == 1 else updating.made, pairs


SGDOptimizer = SGD
MomentumOptimizer = Momentum
AdamOptimizer = Adam
AdamWOptimizer = AdamW
AdagradOptimizer = Adagrad
RMSPropOptimizer = RMSProp
LarsMomentumOptimizer = LarsMomentum
AdamaxOptimizer = Adamax
AdadeltaOptimizer = Adadelta
DecayedAdagradOptimizer = DecayedAdagrad
FtrlOptimizer = Ftrl
LambOptimizer = Lamb


def __getattr__(name: str) -> Any:
    """Averages need executors, which need this module."""
    if name in ("ExponentialMovingAverage", "LookaheadOptimizer", "ModelAverage"):
        return getattr(import_module("phalanx.graph.averages"), name)
    raise AttributeError(f"phalanx.graph.optimizer has no {name!r}")


__all__ = [
    "Adadelta",
    "AdadeltaOptimizer",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "AdamW",
    "AdamWOptimizer",
    "Adamax",
    "AdamaxOptimizer",
    "DecayedAdagrad",
    "DecayedAdagradOptimizer",
    "ExponentialMovingAverage",
    "Ftrl",
    "FtrlOptimizer",
    "GradientMergeOptimizer",
    "Lamb",
    "LambOptimizer",
    "LarsMomentum",
    "LarsMomentumOptimizer",
    "LookaheadOptimizer",
    "ModelAverage",
    "Momentum",
    "MomentumOptimizer",
    "Optimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "RecomputeOptimizer",
    "SGD",
    "SGDOptimizer",
]
