"""What trainers of torch and of static programs have in common: data, rates, steps and metrics of all ranks.

* TRAIN-1: in each epoch every sample counts once, whatever the number of ranks, also if another number of them goes on.
* TRAIN-2: all ranks make the same steps. A rank that has no batch left takes part without samples.
* TRAIN-3: metrics are means over all samples of all ranks: those that one process would find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import islice
from os import PathLike
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, TypeVar

from phalanx import _world
from phalanx.data.dataset import Dataset, DatasetIterator, _whole
from phalanx.distributed._log import warn
from phalanx.distributed._loop import SAVE_SECS, Loop
from phalanx.distributed._words import check_settings, exchanged
from phalanx.distributed.hooks import LoggingTensorHook, SessionRunHook, StopAtStepHook

#: How often the speed is printed, where anything is.
COUNT_STEPS = 100
#: Sums of numbers by name, each with the number of samples that it is of.
Sums = dict[str, tuple[float, int]]
Self = TypeVar("Self", bound="Training")


class Recipe(NamedTuple):
    """What a training is built from."""

    training: Callable[[], Any]
    validation: Callable[..., Any] | None
    optimizer: Callable[..., Any]
    optimizer_args: Mapping[str, Any]


class Training:
    """A whole training in one object; a subclass knows how to build a network, to make a step and to evaluate a batch."""

    #: What optimizers call their learning rate.
    _rate_key: ClassVar[str]
    session: Loop
    training_network: Any

    def __init__(
        self,
        training_dataset: Dataset[Any],
        build_training_func: Callable[[], Any],
        optimizer: Callable[..., Any],
        optimizer_args: Mapping[str, Any],
        batch_size: int = 32,
        prefetch_size: int | None = None,
        checkpoint_dir: str | PathLike[str] | None = None,
        scaling_learning_rate: bool | str = True,
        log_step_size: int | None = 1,
        validation_dataset: Dataset[Any] | None = None,
        build_validation_func: Callable[..., Any] | None = None,
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
        for name, function in (("build_training_func", build_training_func), ("optimizer", optimizer)):
            if not callable(function):
                raise TypeError(f"{name} must be a function or a class, not {function!r}")
        if not max_iteration >= 1:
            raise ValueError(f"max_iteration must be a number from 1, not {max_iteration!r}")
        self._rates = Rates.of(self._rate_key, optimizer_args, scaling_learning_rate, warmup_steps)
        batch_size = _whole("batch_size", batch_size, 1)
        order = _dataset("training_dataset", training_dataset)
        if shuffle_buffer is not None:
            order = order.shuffle(shuffle_buffer, shuffle_seed)
        _world.init()
        self._rank, self._size = _world.rank(), _world.size()
        self._validation: Dataset[Any] | None = None
        self._metrics: dict[str, float] | None = None
        self._validated: int | None = None
        settings = {
            "num_epochs": num_epochs,
            "max_iteration": max_iteration,
            "batch_size": batch_size,
            "shuffle_buffer": shuffle_buffer,
            "shuffle_seed": shuffle_seed,
            "scaling_learning_rate": scaling_learning_rate,
            "warmup_steps": warmup_steps,
            self._rate_key: self._rates.base,
            "validation_dataset": None if validation_dataset is None else "a data set",
        }
        failure, logged = None, None
        try:
            if max_iteration < self._size:
                raise ValueError(
                    f"max_iteration is {max_iteration!r}, and a step of {self._size} ranks takes {self._size} batches, one of each: "
                    f"give it a number from {self._size}"
                )
            self._batches = Batches(order, self._rank, self._size, batch_size, num_epochs, prefetch_size)
            if validation_dataset is not None:
                own = _dataset("validation_dataset", validation_dataset).shard(self._size, self._rank)
                self._validation = own.batch(batch_size)
            logged = self._build(Recipe(build_training_func, build_validation_func, optimizer, optimizer_args))
        except Exception as why:
            failure = why
        shards = {"training_dataset": _shards(training_dataset), "validation_dataset": _shards(validation_dataset)}
        mine = {"settings": {name: repr(value) for name, value in settings.items()}, "shards": shards}
        told = exchanged("trainer.begin", mine, failure, "building the trainer")
        check_settings([each["settings"] for each in told], "trainers")
        _check_shards([each["shards"] for each in told])
        every = list(hooks or ())
        if max_iteration != math.inf:
            every.append(StopAtStepHook(last_step=int(max_iteration) // self._size))
        self.session = self._begun(
            checkpoint_dir=checkpoint_dir,
            hooks=every,
            chief_only_hooks=[] if log_step_size is None else [LoggingTensorHook(logged, every_n_iter=log_step_size)],
            save_checkpoint_secs=SAVE_SECS if checkpoint_dir is None else save_checkpoint_secs,
            log_step_count_steps=None if log_step_size is None else COUNT_STEPS,
        )

    # What a kind of training knows.

    def _build(self, recipe: Recipe) -> Any:
        """Makes the network and its optimizer; what is logged."""
        raise NotImplementedError

    def _begun(self, **options: Any) -> Loop:
        """The session, which saves ``_batches``, too."""
        raise NotImplementedError

    def _prepared(self, batch: Any) -> Any:
        """A batch as :meth:`_step` takes it. Errors in it are told to all ranks before the step."""
        return batch

    def _step(self, batch: Any, counts: list[int]) -> None:
        """One step. ``counts``: the samples of each rank; a rank that has none gets no batch."""
        raise NotImplementedError

    def _evaluating(self) -> AbstractContextManager[Any]:
        """Within it batches are evaluated."""
        return nullcontext()

    def _evaluate(self, batch: Any) -> Mapping[str, Any]:
        """The metrics of a batch."""
        raise NotImplementedError

    # What users call.

    @property
    def global_step(self) -> int:
        """Steps of the whole training so far."""
        return self.session.global_step

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self._rate_of(self.global_step + 1)

    def _rate_of(self, step: int) -> float:
        return self._rates.at(step - 1, self._size)

    def close(self) -> None:
        """Ends the training on all ranks: its last step is saved. :meth:`train_and_validate_to_end` does that by itself."""
        self.session.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.session.__exit__(kind, error, trace)

    def train_on_batch(self) -> bool:
        """One step of all ranks. ``False``: no rank has a batch left, or the session has stopped."""
        if self.session.should_stop():
            return False
        batch, counts = self._next()
        while not any(counts):
            if not self._batches.begin_epoch():
                self.session._end_with(self._batches.why_over())
                return False
            batch, counts = self._next()
        self._batches.count(sum(counts))
        self._step(batch, counts)
        return True

    @property
    def validation_metrics(self) -> dict[str, float]:
        """Means over all samples of all ranks, as the last validation has found them; the first use validates."""
        if self._validation is None:
            raise AttributeError("validation is not set up: give validation_dataset and build_validation_func")
        return self.validate() if self._metrics is None else self._metrics

    def validate(self) -> dict[str, float]:
        """Validates now, on all ranks: means over all samples of all ranks. A validation set without samples has none."""
        if self._validation is None:
            raise ValueError("there is nothing to validate: give validation_dataset and build_validation_func")
        sums: Sums = {}
        failure = None
        try:
            with self._evaluating():
                for batch in self._validation:
                    numbers = self._evaluate(batch)
                    if not isinstance(numbers, Mapping):
                        raise TypeError(f"validation must give numbers by name, not a {type(numbers).__name__}")
                    add(sums, numbers, n_samples(batch))
        except Exception as why:
            failure = why
        self._metrics = means(exchanged("trainer.metrics", sums, failure, "validation"))
        self._validated = self.global_step
        return self._metrics

    def train_and_validate_to_end(self, validate_step_size: int = 50) -> None:
        """Trains until the data end; validates after every ``validate_step_size`` steps and at the end.

        After SIGTERM it does not validate: there is time to save, and no more.
        """
        every = _whole("validate_step_size", validate_step_size, 1)
        with self.session:
            if self._validation is not None:
                mine = {"validate_step_size": repr(every)}
                check_settings(exchanged("trainer.steps", mine, None, "validation"), "trainers")
            while self.train_on_batch():
                if self.global_step % every == 0:
                    self._validate_once()
            self._validate_once()

    def _validate_once(self) -> None:
        """Validates this step, unless that was done or the process is asked to end."""
        stopped = self.session.stopped
        if (
            self._validation is None
            or self._validated == self.global_step
            or (stopped is not None and stopped.is_asked)
        ):
            return
        self.validate()

    def _next(self) -> tuple[Any, list[int]]:
        """The next batch of this rank in this epoch, if it has one, and the samples of each rank's."""
        batch, n, failure = None, 0, None
        try:
            batch = self._batches.next()
            if batch is not None:
                n, batch = n_samples(batch), self._prepared(batch)
        except Exception as why:
            failure = why
        return batch, exchanged("trainer.samples", n, failure, "reading a batch")

    def _numbers_of_step(self, numbers: Mapping[str, float], counts: list[int]) -> Mapping[str, float]:
        """What hooks see of a step in which a rank has no samples: that rank's see the mean of the others."""
        sums: Sums = {}
        if counts[self._rank]:
            add(sums, numbers, counts[self._rank])
        of_all = means(exchanged("trainer.numbers", sums, None, "a step"))
        return numbers if counts[self._rank] else of_all


class Rates:
    """The learning rate: scaled by the number of ranks, after a rise from that of one rank."""

    def __init__(self, base: float, scaling: str, warmup: int) -> None:
        self.base, self.warmup, self._scaling = base, warmup, scaling

    @classmethod
    def of(cls, key: str, args: Mapping[str, Any], scaling: bool | str, warmup: int) -> Rates:
        """The one that a trainer's arguments ask for."""
        if key not in args:
            raise ValueError(f"optimizer_args has no {key}, which is scaled by the number of ranks: give it a value")
        rate = args[key]
        if isinstance(rate, (bool, str)) or not hasattr(rate, "__float__") or not math.isfinite(float(rate)):
            raise ValueError(f"{key} of optimizer_args must be a number, which the trainer scales, not {rate!r}")
        if isinstance(scaling, bool):
            scaling = "linear" if scaling else "none"
        if scaling not in ("linear", "sqrt", "none"):
            raise ValueError(f'scaling_learning_rate is True, "sqrt" or False, not {scaling!r}')
        return cls(float(rate), scaling, _whole("warmup_steps", warmup, 0))

    def scaled(self, n_ranks: int) -> float:
        """After the warm-up."""
        factors = {"linear": float(n_ranks), "sqrt": math.sqrt(n_ranks), "none": 1.0}
        return self.base * factors[self._scaling]

    def at(self, step: int, n_ranks: int) -> float:
        """Of the step after ``step`` steps.

        >>> [Rates(0.1, "linear", 2).at(step, 4) for step in range(4)]
        [0.1, 0.25, 0.4, 0.4]
        """
        scaled = self.scaled(n_ranks)
        return scaled if step >= self.warmup else self.base + (scaled - self.base) * step / self.warmup


class Batches:
    """The batches of this rank. All ranks are in the same epoch, and one has at most one batch more than another in it.

    The position is the epoch and how many samples of it all ranks have taken together: the first ones of one order. So
    any number of ranks can go on there (TRAIN-1).
    """

    def __init__(
        self,
        order: Dataset[Any],
        rank: int,
        size: int,
        batch_size: int,
        num_epochs: int | None,
        prefetch_size: int | None,
    ) -> None:
        # What ranks would shuffle apart is refused here, and not in the first step.
        order.shard(size, rank)
        self._order, self._rank, self._size, self._batch_size = order, rank, size, batch_size
        self._n_epochs = None if num_epochs is None else _whole("num_epochs", num_epochs, 1)
        self._n_ahead = None if prefetch_size is None else _whole("prefetch_size", prefetch_size, 1)
        self._epoch = self._n_taken = 0
        self._iterator: DatasetIterator[Any] | None = None

    def next(self) -> Any:
        """The next batch of this rank in this epoch; ``None`` if there is none."""
        if self._iterator is None:
            epoch, begin = self._epoch, self._n_taken
            rest = Dataset(lambda: self._rest(epoch, begin))
            own = rest.shard(self._size, self._rank).batch(self._batch_size)
            self._iterator = (own if self._n_ahead is None else own.prefetch(self._n_ahead)).iterator()
        return next(self._iterator, None)

    def _rest(self, epoch: int, begin: int) -> Iterator[Any]:
        """The samples of an epoch that are left."""
        with closing(self._order.iterator(epoch)) as elements:
            n = sum(1 for _ in islice(elements, begin))
            if n < begin and self._rank == 0:
                warn(
                    f"the training was saved after sample {begin} of epoch {epoch}, and training_dataset has {n} samples now: this epoch "
                    "has no more; give it the data set that it was saved with"
                )
            yield from elements

    def why_over(self) -> str:
        """Why there are no more batches."""
        if self._n_taken == 0:
            return "training_dataset has no samples"
        return f"epoch {self._epoch} was the last one: num_epochs is {self._n_epochs}"

    def count(self, n: int) -> None:
        """All ranks together have taken this number of samples."""
        self._n_taken += n

    def begin_epoch(self) -> bool:
        """Goes to the next epoch; ``False`` if this was the last one, or there are no samples at all."""
        if self._n_taken == 0 or self._epoch + 1 == self._n_epochs:
            return False
        self._epoch, self._n_taken, self._iterator = self._epoch + 1, 0, None
        return True

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "samples": self._n_taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch, self._n_taken = (_whole(key, state[key], 0) for key in ("epoch", "samples"))
        self._iterator = None


def _dataset(name: str, given: Any) -> Dataset[Any]:
    if not isinstance(given, Dataset):
        raise TypeError(
            f"{name} must be a phalanx.data.Dataset, not a {type(given).__name__}: data.from_list() makes one"
        )
    return given


def _shards(given: Any) -> str | None:
    """How a data set was sharded before the trainer got it."""
    shards: tuple[tuple[int, int], ...] = getattr(given, "_shards", ())
    return "".join(f".shard({num}, {index})" for num, index in shards) or None


def _check_shards(told: list[Mapping[str, str | None]]) -> None:
    """Refuses data sets that ranks have divided already: each of them would train with a share of its share."""
    for rank, each in enumerate(told):
        for name, own in told[0].items():
            if each[name] != own:
                found = f"{name}{own or ''} on rank 0, {name}{each[name] or ''} on rank {rank}"
                raise ValueError(
                    f"{name} is sharded already ({found}), and the trainer gives each rank its share: leave .shard() out"
                )


def n_samples(batch: Any) -> int:
    """How many samples a batch has.

    >>> n_samples(([1, 2, 3], ["a", "b", "c"])), n_samples({"x": [1, 2]})
    (3, 2)
    """
    if isinstance(batch, Mapping):
        return n_samples(next(iter(batch.values())))
    return n_samples(batch[0]) if isinstance(batch, tuple) else len(batch)


def add(sums: Sums, numbers: Mapping[str, Any], n: int) -> None:
    """Adds the means of ``n`` samples."""
    for name, value in numbers.items():
        total, so_far = sums.get(name, (0.0, 0))
        sums[name] = (total + float(value) * n, so_far + n)


def means(of_ranks: Iterable[Mapping[str, tuple[float, int]]]) -> dict[str, float]:
    """Means over the samples of all ranks; a rank without samples has no names.

    >>> means([{"loss": (6.0, 2)}, {}, {"loss": (3.0, 1)}])
    {'loss': 3.0}
    """
    sums: Sums = {}
    for each in of_ranks:
        for name, (value, n) in each.items():
            total, so_far = sums.get(name, (0.0, 0))
            sums[name] = (total + value, so_far + n)
    return {name: value / n for name, (value, n) in sorted(sums.items()) if n}


__all__ = ["Training"]
