"""A whole training in one object, after TensorLayer's ``Trainer``: data are divided among ranks, the learning rate follows their number,
checkpoints are kept, and metrics cover all samples of all ranks.

>>> import torch
>>> import phalanx.torch as hvd
>>> from phalanx import data
>>> def build():
...     model = torch.nn.Linear(2, 1)
...     return model, lambda batch: (model(torch.as_tensor(batch).float()) ** 2).mean()
>>> samples = data.from_list([[1.0, 2.0]] * 24)
>>> trainer = hvd.Trainer(samples, build, torch.optim.SGD, {"lr": 0.1}, batch_size=4, num_epochs=2, log_step_size=None)
>>> trainer.train_and_validate_to_end()
>>> trainer.global_step
12
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from typing import Any

import torch

from phalanx import _world
from phalanx.data import Dataset
from phalanx.distributed import LoggingTensorHook, SessionRunHook, StopAtStepHook
from phalanx.distributed._loop import SAVE_SECS
from phalanx.objects import gather_bytes
from phalanx.reductions import Max, Sum
from phalanx.torch.collectives import allreduce
from phalanx.torch.optimizer import DistributedOptimizer
from phalanx.torch.session import Session

#: What a step or an evaluation of one batch says: numbers by name.
Numbers = Mapping[str, Any]


class Trainer:
    """Trains a model with all ranks until the data end or ``max_iteration`` is reached.

    ``training_dataset`` is a ``phalanx.data.Dataset`` of samples; every rank reads its shard in batches of ``batch_size``, for
    ``num_epochs`` epochs. ``build_training_func()`` returns the model and a function that computes the loss of a batch, or the loss and a
    dict of numbers to log. ``optimizer`` is a class of ``torch.optim``, made with ``optimizer_args``, which are not changed.

    ``scaling_learning_rate``: ``True`` multiplies the rate by the number of ranks, ``"sqrt"`` by its root, ``False`` leaves it.
    ``warmup_steps``: the rate rises from that of one rank to the scaled one. ``max_iteration`` counts steps of one rank: with n ranks
    training ends after ``max_iteration // n`` steps.

    Ranks whose shard is shorter take part with gradients of zero until the last one has ended. ``validation_dataset`` and
    ``build_validation_func(batch)``, which returns numbers by name, give :attr:`validation_metrics`: means over all samples of all ranks.
    """

    def __init__(
        self,
        training_dataset: Dataset[Any],
        build_training_func: Callable[[], tuple[torch.nn.Module, Callable[[Any], Any]]],
        optimizer: Callable[..., torch.optim.Optimizer],
        optimizer_args: Mapping[str, Any],
        batch_size: int = 32,
        prefetch_size: int | None = None,
        checkpoint_dir: str | PathLike[str] | None = None,
        scaling_learning_rate: bool | str = True,
        log_step_size: int | None = 1,
        validation_dataset: Dataset[Any] | None = None,
        build_validation_func: Callable[[Any], Numbers] | None = None,
        max_iteration: float = math.inf,
        *,
        num_epochs: int | None = 100,
        warmup_steps: int = 0,
        shuffle_buffer: int | None = None,
        shuffle_seed: int = 0,
        hooks: Iterable[SessionRunHook] | None = None,
        save_checkpoint_secs: float | None = SAVE_SECS,
    ) -> None:
        if (validation_dataset is None) != (build_validation_func is None):
            raise ValueError("give validation_dataset and build_validation_func, or neither")
        if "lr" not in optimizer_args:
            raise ValueError("optimizer_args has no lr, which is scaled by the number of ranks: give it a value")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must be a number from 0, not {warmup_steps!r}")
        _world.init()
        self._rank, self._size = _world.rank(), _world.size()
        self._validation = (validation_dataset, build_validation_func)
        self._batch_size, self._warmup = batch_size, warmup_steps
        self._base = float(optimizer_args["lr"])
        self._rate = self._base * _factor(scaling_learning_rate, self._size)
        self.training_network, self._loss = build_training_func()
        made = optimizer(self.training_network.parameters(), **{**optimizer_args, "lr": self._rate})
        self._optimizer = DistributedOptimizer(made, self.training_network.named_parameters())
        self._batches = _batches(
            training_dataset, self._size, self._rank, batch_size, num_epochs, prefetch_size, shuffle_buffer, shuffle_seed
        )
        every = list(hooks or ())
        if max_iteration != math.inf:
            every.append(StopAtStepHook(last_step=max(int(max_iteration) // self._size, 1)))
        logging = [] if log_step_size is None else [LoggingTensorHook(["loss"], every_n_iter=log_step_size)]
        self.session = Session(
            self.training_network,
            self._optimizer,
            [self._batches],
            checkpoint_dir=checkpoint_dir,
            hooks=every,
            chief_only_hooks=logging,
            save_checkpoint_secs=SAVE_SECS if checkpoint_dir is None else save_checkpoint_secs,
        )
        self._metrics: dict[str, float] | None = None

    @property
    def global_step(self) -> int:
        """Steps of the whole training so far."""
        return self.session.global_step

    @property
    def learning_rate(self) -> float:
        """What the next step uses."""
        if self.global_step >= self._warmup:
            return self._rate
        return self._base + (self._rate - self._base) * self.global_step / self._warmup

    def train_on_batch(self) -> bool:
        """One step of all ranks. ``False``: no rank has a batch left, or the session has stopped."""
        if self.session.should_stop():
            return False
        batch = next(self._batches, None)
        if not _any(batch is not None, self._size):
            return False
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.session.run(self._step, batch)
        return True

    def _step(self, batch: Any) -> dict[str, Any]:
        self._optimizer.zero_grad()
        numbers: dict[str, Any] = {}
        if batch is not None:
            result = self._loss(batch)
            loss, numbers = result if isinstance(result, tuple) else (result, {})
            loss.backward()
            numbers = {"loss": loss, **numbers}
        self._optimizer.step()
        return numbers

    @property
    def validation_metrics(self) -> dict[str, float]:
        """Means over all samples of all ranks, as the last validation has found them; the first use validates."""
        if self._validation[0] is None:
            raise AttributeError("validation is not set up: give validation_dataset and build_validation_func")
        if self._metrics is None:
            self._metrics = self._validated()
        return self._metrics

    def _validated(self) -> dict[str, float]:
        dataset, evaluate = self._validation
        assert dataset is not None and evaluate is not None, "asked before"
        was_training = self.training_network.training
        self.training_network.eval()
        sums: dict[str, float] = {}
        n_samples = 0
        with torch.no_grad():
            for batch in dataset.shard(self._size, self._rank).batch(self._batch_size):
                n = _n_samples(batch)
                n_samples += n
                for name, value in evaluate(batch).items():
                    sums[name] = sums.get(name, 0.0) + float(value) * n
        self.training_network.train(was_training)
        return _means(sums, n_samples)

    def train_and_validate_to_end(self, validate_step_size: int = 50) -> None:
        """Trains until the data end; validates after every ``validate_step_size`` steps and at the end."""
        has_validation = self._validation[0] is not None
        with self.session:
            while self.train_on_batch():
                if has_validation and self.global_step % validate_step_size == 0:
                    self._metrics = self._validated()
            if has_validation:
                self._metrics = self._validated()


class _Batches(Iterator[Any]):
    """The batches of this rank, epoch after epoch. Its position is part of a checkpoint."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._iterator = dataset.make_one_shot_iterator()

    def __next__(self) -> Any:
        return next(self._iterator)

    def state_dict(self) -> dict[str, int]:
        return self._iterator.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._iterator.load_state_dict(state)


def _batches(
    dataset: Dataset[Any],
    size: int,
    rank: int,
    batch_size: int,
    num_epochs: int | None,
    prefetch_size: int | None,
    shuffle_buffer: int | None,
    shuffle_seed: int,
) -> _Batches:
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"training_dataset must be a phalanx.data.Dataset, not a {type(dataset).__name__}: data.from_list() makes one"
        )
    own = dataset.shard(size, rank)
    if shuffle_buffer is not None:
        own = own.shuffle(shuffle_buffer, shuffle_seed)
    own = own.batch(batch_size).repeat(num_epochs)
    return _Batches(own if prefetch_size is None else own.prefetch(prefetch_size))


def _factor(scaling: bool | str, size: int) -> float:
    known: dict[bool | str, float] = {True: float(size), "linear": float(size), "sqrt": math.sqrt(size), False: 1.0}
    if scaling not in known:
        raise ValueError(f'scaling_learning_rate is True, "sqrt" or False, not {scaling!r}')
    return known[scaling]


def _any(has: bool, size: int) -> bool:
    """Whether any rank has one."""
    if size == 1:
        return has
    return bool(allreduce(torch.tensor([has], dtype=torch.uint8), name="trainer.has_batch", op=Max)[0])


def _means(sums: Mapping[str, float], n_samples: int) -> dict[str, float]:
    """Means over all ranks. A rank without samples gets the names from the others."""
    words = gather_bytes(json.dumps(sorted(sums)).encode() + b"\n", "trainer.names")
    names = sorted({name for line in words.splitlines() for name in json.loads(line)})
    values = torch.tensor([float(n_samples), *(sums.get(name, 0.0) for name in names)], dtype=torch.float64)
    total = allreduce(values, name=f"trainer.metrics.{len(names)}", op=Sum).tolist()
    return {name: value / max(total[0], 1.0) for name, value in zip(names, total[1:], strict=True)}


def _n_samples(batch: Any) -> int:
    first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0] if isinstance(batch, tuple) else batch
    return len(first)


__all__ = ["Trainer"]
