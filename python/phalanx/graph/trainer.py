"""A whole training of a static program in one object, after TensorLayer's ``Trainer``.

>>> import numpy as np
>>> from phalanx import data, graph
>>> def build():
...     x, y = graph.data("x", [None, 2]), graph.data("y", [None, 1])
...     network = graph.layers.fc(x, 1)
...     return network, graph.layers.mse_loss(network, y)
>>> samples = data.from_list([(np.array([1.0, 2.0]), 3.0)] * 24)
>>> args = {"learning_rate": 0.05}
>>> trainer = graph.Trainer(samples, build, graph.optimizer.SGD, args, batch_size=4, num_epochs=2, log_step_size=None)
>>> trainer.train_and_validate_to_end()
>>> trainer.global_step, trainer.scope["fc_0.w_0"].shape
(12, (2, 1))
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.distributed._loop import HEARD_SECS
from phalanx.distributed._training import Recipe, Training
from phalanx.distributed.session import DistributedSession, Scaffold
from phalanx.graph import unique_name
from phalanx.graph._values import misfit
from phalanx.graph.data_feeder import Slot
from phalanx.graph.errors import FeedError, FeedTypeError, ProgramError
from phalanx.graph.executor import Executor
from phalanx.graph.layers.learning_rate import linear_lr_warmup
from phalanx.graph.program import Program, Variable, program_guard
from phalanx.graph.scope import Scope, scope_guard
from phalanx.graph.strategy import BuildStrategy


class Trainer(Training):
    """Trains a static program with all ranks until the data end or ``max_iteration`` is reached.

    ``training_dataset`` is a ``phalanx.data.Dataset`` of samples: dicts by the names of the feeds, or tuples in the order in which feeds
    are declared. Every rank reads its shard in batches of ``batch_size``, for ``num_epochs`` epochs. ``build_training_func()`` declares the
    feeds and layers, and returns the network, the mean loss of a batch and, if wanted, variables to print, a list or a dict.
    ``optimizer`` is a class of ``phalanx.graph.optimizer``, made with ``optimizer_args``, which are not changed.

    ``scaling_learning_rate``: ``True`` multiplies the rate by the number of ranks, ``"sqrt"`` by its root, ``False`` leaves it.
    ``warmup_steps``: the rate rises from that of one rank to the scaled one. ``max_iteration`` counts batches of all ranks together:
    a step of n ranks takes n of them, so training ends after ``max_iteration // n`` steps; a number below n is refused. ``log_step_size``:
    how often rank 0 prints its numbers; ``None``: never.

    A step learns the mean over the samples of all ranks. Ranks whose shard is shorter take part without samples until the last one has
    ended. ``validation_dataset`` and ``build_validation_func()``, which makes the same layers and returns the network and variables to
    measure, give :attr:`validation_metrics`: means over all samples of all ranks. Dropout is off in it.

    With ``shuffle_buffer`` each sample is chosen among the next ones of the whole data set, as ``Dataset.shuffle`` does. A training that
    is resumed from ``checkpoint_dir`` goes on with the next sample, also with another number of ranks.

    All ranks give the same arguments. :meth:`train_and_validate_to_end` trains and saves; who calls :meth:`train_on_batch` writes ``with
    trainer:`` around it, or calls :meth:`close` at the end.

    ``training_network`` is what ``build_training_func`` returned as such. The trainer has programs and a scope of its own: ``program``, and
    ``scope`` with the parameters.
    """

    _rate_key = "learning_rate"
    session: _TrainerSession

    def _build(self, recipe: Recipe) -> Any:
        self.program, self._startup, self.scope = Program(), Program(), Scope()
        with program_guard(self.program, self._startup), unique_name.guard(), scope_guard(self.scope):
            made = _called("build_training_func", recipe.training)
            if not isinstance(made, (tuple, list)) or len(made) not in (2, 3) or not isinstance(made[1], Variable):
                raise TypeError(
                    "build_training_func must return the network, the loss and, if wanted, variables to print, "
                    f"not {_shown(made)}"
                )
            self.training_network, self._loss = made[:2]
            printed = _by_name("build_training_func", made[2] if len(made) == 3 else {})
            self._feeds = _Feeds("training_dataset", "build_training_func", self.program)
            self._measures: _Measures | None = None
            if recipe.validation is not None:
                self._measures = _Measures(recipe.validation, self.program, self.scope)
            rate: Any = self._rates.scaled(self._size)
            if self._rates.warmup:
                rate = linear_lr_warmup(rate, self._rates.warmup, self._rates.base, rate)
            recipe.optimizer(**{**recipe.optimizer_args, "learning_rate": rate}).minimize(self._loss)
        return {"loss": self._loss, **printed}

    def _begun(self, **options: Any) -> _TrainerSession:
        build = BuildStrategy()
        build.gradient_scale_strategy = BuildStrategy.GradientScaleStrategy.BySamples
        scaffold = Scaffold(self.program, self._startup, self._loss, build, devices=1, state=[self._batches])
        with scope_guard(self.scope):
            return _TrainerSession(self, scaffold, **options)

    def _prepared(self, batch: Any) -> dict[str, Any]:
        return self._feeds.of(batch)

    def _step(self, batch: Any, counts: list[int]) -> None:
        self.session.counts = counts
        self.session.run([], self._feeds.nothing() if batch is None else batch)

    def _evaluate(self, batch: Any) -> Mapping[str, Any]:
        assert self._measures is not None, "there is a validation"
        return self._measures.of(batch)


class _TrainerSession(DistributedSession):
    """A session in which ranks may have no samples: their hooks see the numbers of the others."""

    #: Before a step ranks meet elsewhere, where they do not hear of it.
    _heard_secs = HEARD_SECS

    def __init__(self, trainer: Trainer, scaffold: Scaffold, **options: Any) -> None:
        self._trainer = trainer
        self.counts: list[int] = []
        super().__init__(scaffold=scaffold, **options)

    def _train(self, form: Any, extra: list[Any], feed_dict: Any) -> Any:
        result, results, values = super()._train(form, extra, feed_dict)
        if all(self.counts):
            return result, results, values
        numbers = self._trainer._numbers_of_step(values(), self.counts)
        return result, results, lambda: numbers


class _Feeds:
    """What a program is fed, from the samples of a data set."""

    def __init__(self, dataset: str, build: str, program: Program) -> None:
        lengths = set(program._lengths.values())
        names = [name for name, kind in program._graph.vars() if kind == "feed" and name not in lengths]
        self._dataset, self._slots = dataset, [Slot.of(program.var(name)) for name in names]
        if not self._slots:
            raise ProgramError(f"{build} declares no feeds: declare one with graph.data for each part of a sample")
        for slot in self._slots:
            if not slot.shape or slot.shape[0] != -1:
                raise ProgramError(
                    f"`{slot.name}` has the shape {list(slot.shape)} (declared at {slot.site}): the first axis counts the "
                    f"samples of a batch, whose number differs; declare it as None",
                    var=slot.name,
                    site=slot.site,
                )

    def of(self, batch: Any) -> dict[str, Any]:
        """From a batch of a data set: a dict, a tuple, or something for the only feed."""
        made: dict[str, Any] = {}
        for slot, column in zip(self._slots, self._columns(batch), strict=True):
            made.update(_fed(slot, column))
        return made

    def nothing(self) -> dict[str, Any]:
        """A batch without samples."""
        return self.of(tuple([] for _ in self._slots))

    def _columns(self, batch: Any) -> Sequence[Any]:
        names = [slot.name for slot in self._slots]
        if isinstance(batch, Mapping):
            odd = sorted(map(str, batch.keys() ^ set(names)))
            if odd:
                has, wants = ", ".join(map(str, batch)), ", ".join(names)
                raise FeedError(f"samples of {self._dataset} have {has}, and the feeds are {wants}", var=odd[0])
            return [batch[name] for name in names]
        if not isinstance(batch, tuple):
            if len(names) == 1:
                return [batch]
            raise FeedTypeError(f"samples of {self._dataset} must be tuples or dicts, for the feeds {', '.join(names)}")
        if len(batch) != len(names):
            text = f"samples of {self._dataset} have {len(batch)} parts, but there are {len(names)} feeds"
            raise FeedError(f"{text}: {', '.join(names)}")
        return batch


def _fed(slot: Slot, column: Any) -> dict[str, Any]:
    """What one feed gets. What does not fit as a whole is looked at sample by sample: the error names the sample."""
    if isinstance(column, np.ndarray) and len(column) and not slot.is_ragged and misfit(column, slot.dtype) is None:
        inner = slot.shape[1:]
        if column[0].size == math.prod(inner):
            return {slot.name: column.astype(slot.dtype, copy=False).reshape(len(column), *inner)}
    return slot.of_samples(column)


class _Measures:
    """What a validation measures, with the parameters of the training."""

    def __init__(self, build: Callable[..., Any], trained: Program, scope: Scope) -> None:
        program = Program()
        with program_guard(program, Program()), unique_name.guard():
            made = _called("build_validation_func", build)
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise TypeError(
                f"build_validation_func must return the network and variables to measure, not {_shown(made)}"
            )
        self._measured = _by_name("build_validation_func", made[1])
        for name, var in self._measured.items():
            if any(d != 1 for d in var.shape[1:]) or (var.shape and var.shape[0] not in (-1, 1)):
                raise ProgramError(
                    f"{name} has the shape {list(var.shape)}; a metric is one number for a batch, or one for each sample",
                    var=var.name,
                    site=var.site,
                )
        for var in program.list_vars():
            _check_shared(var, trained)
        self._program, self._scope = program.clone(for_test=True), scope
        self._feeds = _Feeds("validation_dataset", "build_validation_func", program)
        self._exe = Executor()

    def of(self, batch: Any) -> dict[str, float]:
        """Means of a batch."""
        fetched = list(self._measured.values())
        out = self._exe.run(self._program, self._feeds.of(batch), fetched, scope=self._scope)
        return {name: float(np.mean(value, dtype=np.float64)) for name, value in zip(self._measured, out, strict=True)}


def _called(what: str, build: Callable[..., Any]) -> Any:
    """What it makes. TensorLayer's functions have a parameter for each part of a sample."""
    try:
        inspect.signature(build).bind()
    except TypeError:
        raise TypeError(
            f"{what} is called without arguments: declare the feeds inside of it, with graph.data, in place of parameters"
        ) from None
    return build()


def _check_shared(var: Variable, trained: Program) -> None:
    """Refuses a parameter of a validation that the training does not have."""
    if not var.persistable:
        return
    found = trained._graph.var(var.name)
    if found is not None and found[:2] == var._form[:2]:
        return
    what = "does not have" if found is None else "has with another shape or type"
    raise ProgramError(
        f"build_validation_func makes `{var.name}` (at {var.site}), which build_training_func {what}: make the same layers in the same "
        "order, or give parameters their names with ParamAttr",
        var=var.name,
        site=var.site,
    )


def _by_name(what: str, given: Any) -> dict[str, Variable]:
    """Variables by the names that numbers get: those of a dict, or their own."""
    if isinstance(given, Variable):
        given = [given]
    named = given if isinstance(given, Mapping) else {getattr(var, "name", ""): var for var in given or ()}
    for var in named.values():
        if not isinstance(var, Variable):
            raise TypeError(f"{what} must return variables, a list or a dict of them, and there is {_shown(var)}")
    return {str(name): var for name, var in named.items()}


def _shown(made: Any) -> str:
    if isinstance(made, (tuple, list)):
        return f"a {type(made).__name__} of {len(made)}: {', '.join(type(one).__name__ for one in made)}"
    return f"a {type(made).__name__}"


__all__ = ["Trainer"]
