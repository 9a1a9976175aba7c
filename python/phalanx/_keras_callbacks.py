"""Callbacks without the class of Keras that they need: the same for Keras 3, on any backend, and for tf_keras."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import phalanx.numpy as collectives
from phalanx import _phalanx, _world
from phalanx._accord import Accord
from phalanx._arguments import checked_root
from phalanx.process_sets import ProcessSet, global_process_set, set_id
from phalanx.reductions import Min


def arrays_of(variables: list[Any]) -> list[Any]:
    """The values of variables of any Keras, as arrays."""
    return [_array(v) for v in variables]


def _array(variable: Any) -> Any:
    value = getattr(variable, "value", variable)
    value = value() if callable(value) else value
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.array(value.numpy() if hasattr(value, "numpy") else value)


def weights_of(model: Any, optimizer: Any = None) -> list[Any]:
    """All variables of a model and of its optimizer."""
    optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
    found = list(model.weights)
    if optimizer is not None:
        theirs = optimizer.variables
        found += list(theirs() if callable(theirs) else theirs)
    unique: dict[int, Any] = {id(v): v for v in found}
    return list(unique.values())


def broadcast_weights(variables: list[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Gives the variables of one rank to every rank. Ranks whose variables differ in number, shape or type get an error first."""
    checked_root(root_rank, process_set)
    if len(process_set.ranks) > 1:
        lines = [f"variable {i}, {list(v.shape)} of {_type_name(v)}" for i, v in enumerate(variables)]
        Accord("variables of the model and its optimizer", lambda: lines, process_set).wait()
    wide = [(v, a, a.astype(np.float32) if a.dtype.name == "bfloat16" else a) for v, a in zip(variables, arrays_of(variables), strict=True)]
    under_way = [collectives.broadcast_async(sent, root_rank, f"weights.{i}", process_set) for i, (_, _, sent) in enumerate(wide)]
    for (variable, array, _), pending in zip(wide, under_way, strict=True):
        variable.assign(pending.wait().astype(array.dtype))


def _type_name(variable: Any) -> str:
    dtype = variable.dtype
    return str(getattr(dtype, "name", dtype))


class Broadcast:
    """Gives the model's and the optimizer's variables of one rank to all before training; later if there are none yet."""

    model: Any

    def __init__(self, root_rank: int, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        if device and "CPU" not in device.upper():
            raise ValueError(f"device={device!r}: variables are sent from the CPU; leave device out")
        self.root_rank = checked_root(root_rank, process_set)
        self.process_set = process_set
        self.broadcast_done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts, if the model has its variables."""
        # Another model may have been trained with this object, and another fit may have failed before its end.
        self.broadcast_done = False
        if self._is_built_everywhere():
            optimizer = getattr(self.model, "optimizer", None)
            build = getattr(optimizer, "build", None)
            if build is not None and not getattr(optimizer, "built", True):
                build(self.model.trainable_variables)
            self._broadcast()
        else:
            # The first steps are made with variables of one's own; no rank shall complain of that.
            _phalanx.alike_hold(set_id(self.process_set), True)

    def _is_built_everywhere(self) -> bool:
        """Ranks broadcast before training together, or after the first batch together."""
        is_built = bool(getattr(self.model, "built", False) and self.model.weights)
        if len(self.process_set.ranks) == 1:
            return is_built
        flag = np.array([int(is_built)], np.int32)
        return bool(collectives.allreduce(flag, "variables.built", op=Min, process_set=self.process_set)[0])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first batch what did not exist before it."""
        if not self.broadcast_done:
            self._broadcast()

    def on_train_end(self, logs: Any = None) -> None:
        """What comes next is compared again, also if no batch has come."""
        _phalanx.alike_hold(set_id(self.process_set), False)

    def _broadcast(self) -> None:
        broadcast_weights(weights_of(self.model), self.root_rank, self.process_set)
        _phalanx.alike_hold(set_id(self.process_set), False)
        self.broadcast_done = True


class MetricAverage:
    """Averages the metrics of an epoch over ranks, so that later callbacks, such as schedules, act alike on all of them."""

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        if device and "CPU" not in device.upper():
            raise ValueError(f"device={device!r}: metrics are reduced on the CPU; leave device out")
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replaces the numbers by their averages."""
        logs = {} if logs is None else logs
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        if len(self.process_set.ranks) > 1:
            Accord("metrics of an epoch", lambda: names, self.process_set).wait()
        if not names:
            return
        mine = np.array([float(logs[name]) for name in names])
        for name, value in zip(names, collectives.allreduce(mine, "metrics", process_set=self.process_set), strict=True):
            logs[name] = float(value)


class LearningRateSchedule:
    """Multiplies the initial learning rate by a factor, or by a function of the epoch, from one epoch to another."""

    model: Any
    params: Any

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr must be the learning rate that is multiplied, such as 0.1 * size()")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch: int = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.staircase = True
            factor = float(multiplier)
            self.multiplier = lambda _epoch: factor

    def on_train_begin(self, logs: Any = None) -> None:
        """Looks up how many steps an epoch has."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise ValueError("the number of steps of an epoch is not known: pass steps_per_epoch")
        momentum: Any = getattr(self.model.optimizer, "momentum", None)
        if self.momentum_correction and momentum:
            warnings.warn(
                "momentum_correction has no effect: the momentum is a constant of the compiled step; pass momentum_correction=False",
                RuntimeWarning,
                stacklevel=2,
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self.current_epoch = epoch
        if self.staircase:
            self._adjust(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate of a batch."""
        if not self.staircase:
            self._adjust(self.current_epoch + batch / float(self.steps_per_epoch or 1))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the learning rate."""
        if logs is not None:
            logs["lr"] = float(_array(self.model.optimizer.learning_rate))

    def _adjust(self, epoch: float) -> None:
        if self.current_epoch < self.start_epoch or (self.end_epoch is not None and self.current_epoch >= self.end_epoch):
            return
        rate = self.model.optimizer.learning_rate
        value = self.initial_lr * self.multiplier(epoch)
        if hasattr(rate, "assign"):
            rate.assign(value)
        else:
            self.model.optimizer.learning_rate = value


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate over the first epochs from that of one rank to that of all, ``initial_lr``."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        if warmup_epochs <= 0:
            raise ValueError(f"warmup_epochs must be more than 0, not {warmup_epochs}: without warm-up leave the callback out")

        def multiplier(epoch: float) -> float:
            # A step early, so that the last one has the full rate.
            epoch += 1.0 / (self.steps_per_epoch or 1)
            n = _world.size()
            return min(1.0, 1.0 / n * (epoch * (n - 1) / warmup_epochs + 1))

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Says when it is over."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose:
            rate = float(_array(self.model.optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: the warm-up is over; the learning rate is {rate:g}.")


class CommitState:
    """Commits a state after a number of batches, again and again, and at the end of each epoch."""

    model: Any

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit must be 1 or more, not {batches_per_commit}")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.left = batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits, if it is time."""
        self.left -= 1
        if self.left == 0:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self._commit()

    def _commit(self) -> None:
        # On JAX the model's variables have their values only once a callback has looked at its model.
        _ = self.model
        self.state.commit()
        self.left = self.batches_per_commit


class UpdateBatchState:
    """Keeps ``state.batch``: the batches of this epoch that are done, from which training goes on after a reset."""

    params: Any

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Looks up how many steps an epoch has."""
        self.steps = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Tells Keras how many batches are left of an epoch that was begun before."""
        if self.params.get("steps"):
            self.steps = self.steps or self.params["steps"]
            self.params["steps"] = self.steps - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts."""
        self.state.batch = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begins anew."""
        self.state.batch = 0


class UpdateEpochState:
    """Keeps ``state.epoch``: the epochs that are done."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts."""
        self.state.epoch = epoch + 1
