"""Loaders, which read ahead of training in a thread, and files (:mod:`phalanx.graph.saving`).

>>> import numpy as np
>>> from phalanx import graph
>>> main = graph.Program()
>>> with graph.program_guard(main):
...     x = graph.data("x", [None, 2])
...     y = x * 2.0
>>> loader = DataLoader.from_generator(feed_list=[x], capacity=4)
>>> _ = loader.set_sample_generator(lambda: (np.full(2, i, "float32") for i in range(5)), batch_size=2, drop_last=False)
>>> exe = graph.Executor(graph.CPUPlace())
>>> [exe.run(main, feed=data, fetch_list=[y])[0].shape for data in loader()]
[(2, 2), (2, 2), (1, 2)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import ref

from phalanx._channel import Prefetch
from phalanx.graph import data_feeder
from phalanx.graph._forms import Group
from phalanx.graph.compiler import count
from phalanx.graph.data_feeder import Slot
from phalanx.graph.errors import EOFException, FeedError, ProgramError, StrategyError
from phalanx.graph.program import Variable, default_main_program
from phalanx.graph.reader import batch, shuffle
from phalanx.graph.saving import (
    load_inference_model,
    load_params,
    load_persistables,
    save_inference_model,
    save_params,
    save_persistables,
)

Reader = Callable[[], Iterable[Any]]
Batches = Callable[[], Iterator[dict[str, Any]]]
_ENDS = (StopIteration, EOFException)


def grouped(batches: Iterable[dict[str, Any]], places: int, drop_last: bool) -> Iterator[Group]:
    """A batch for each place; the last group may be smaller, or is dropped."""
    group = Group(places)
    for each in batches:
        group.append(each)
        if len(group) == places:
            yield group
            group = Group(places)
    if group and not drop_last:
        yield group


# What the thread runs stands outside of the class: a thread that knew its loader would keep it alive.
def _from_lists(slots: Sequence[Slot], lists: Reader) -> Iterator[dict[str, Any]]:
    for samples in lists():
        yield data_feeder.of_samples(slots, samples) if slots else data_feeder.unnamed_samples(samples)


def _from_batches(slots: Sequence[Slot], batches: Reader) -> Iterator[dict[str, Any]]:
    for each in batches():
        yield data_feeder.of_batch(slots, each) if slots else data_feeder.unnamed_batch(each)


def _groups(batches: Batches, places: int, drop_last: bool, as_lists: list[str] | None) -> Iterator[Any]:
    for group in grouped(batches(), places, drop_last):
        # Without names, everything in the order of the reader.
        yield group if as_lists is None else [[each[name] for name in as_lists or each] for each in group]


def _declared() -> list[Variable]:
    """All feeds of the default program, in the order of their declaration."""
    return [v for v in default_main_program().list_vars() if v.is_data and not v.name.endswith("@LENGTHS")]


class GeneratorLoader:
    """A reader in a thread, made by :meth:`DataLoader.from_generator`.

    An ``iterable`` loader yields feeds: a list with a dict for each place. Any other belongs to the program of its
    variables: after ``start()`` every run without a feed takes the next batches, one for each device, until
    ``EOFException``; then, or at any time, ``reset()`` and ``start()`` begin again. A run that fails before it starts,
    because of a wrong name for example, takes no batch: the next run gets the same batches.
    """

    def __init__(
        self,
        feed_list: Sequence[Variable] | None,
        capacity: int,
        iterable: bool = True,
        return_list: bool = False,
        drop_last: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise StrategyError(f"capacity={capacity!r}; it must be a whole number from 1", var="capacity")
        if timeout_s is not None and not timeout_s > 0:
            raise StrategyError(f"timeout_s={timeout_s!r}; it must be more than 0, or None", var="timeout_s")
        if isinstance(feed_list, Variable):
            raise TypeError("feed_list must be a list of variables, not one variable")
        variables = _declared() if feed_list is None else list(feed_list)
        if not variables and not (feed_list is None and return_list and iterable):
            raise FeedError(
                "feed_list is empty; name the variables that the loader feeds, or pass return_list=True for arrays alone"
            )
        self.queue = _Queue(self)
        self._slots = [Slot.of(v) for v in variables]
        odd = next((v for v in variables if v.program is not variables[0].program), None)
        if odd is not None:
            raise ProgramError(f"`{variables[0].name}` and `{odd.name}` are of different programs", var=odd.name)
        self._program = variables[0].program if variables else default_main_program()
        self.queue_capacity = capacity
        self.iterable = iterable
        self._names = [slot.name for slot in self._slots]
        self._as_lists = self._names if return_list else None
        self._drop_last = drop_last
        self._timeout_s = timeout_s
        self._places = 1
        self._batches: Batches | None = None
        self._running: Prefetch | None = None
        # Batches that the thread has given, and no run has used yet.
        self._waiting: list[dict[str, Any]] = []
        if not iterable:
            variables[0].program._readers.append(self)

    def set_sample_generator(
        self, reader: Reader, batch_size: int, drop_last: bool = True, places: Any = None
    ) -> GeneratorLoader:
        """From a reader of samples, put together to batches; at the end a smaller one, or none."""
        return self.set_sample_list_generator(_batched(reader, batch_size, drop_last), places)

    def set_sample_list_generator(self, reader: Reader, places: Any = None) -> GeneratorLoader:
        """From a reader of lists of samples."""
        return self._set(partial(_from_lists, self._slots, _callable(reader)), places)

    def set_batch_generator(self, reader: Reader, places: Any = None) -> GeneratorLoader:
        """From a reader of whole batches: arrays for all variables in order, or a dict of them."""
        return self._set(partial(_from_batches, self._slots, _callable(reader)), places)

    def _set(self, batches: Batches, places: Any) -> GeneratorLoader:
        if self._running is not None:
            raise FeedError("the loader is running; call reset() before you set another reader")
        self._batches = batches
        # Without iteration the executor knows the places.
        self._places = (count(places) or 1) if self.iterable else 1
        return self

    def _source(self) -> Batches:
        if self._batches is None:
            raise FeedError("the loader has no reader yet: call set_batch_generator, or a similar function")
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        if not self.iterable:
            raise FeedError("the loader was made with iterable=False: call start(), and run without a feed")
        groups = partial(_groups, self._source(), self._places, self._drop_last, self._as_lists)
        # The thread reads groups ahead: `capacity` batches in all.
        return Prefetch(groups, max(1, self.queue_capacity // self._places), self._timeout_s, _ENDS)

    def __call__(self) -> Iterator[Any]:
        """An epoch."""
        return iter(self)

    def start(self) -> None:
        """Begins an epoch; for loaders that are not iterable."""
        if self.iterable:
            raise FeedError("the loader is iterable: write `for data in loader():`")
        if self._running is not None:
            raise FeedError("the loader is already running; call reset() before start()")
        self._running = Prefetch(self._source(), self.queue_capacity, self._timeout_s, _ENDS)

    def reset(self) -> None:
        """Ends the epoch, even if it is not complete."""
        if self._running is not None:
            self._running.close()
        self._running = None
        self._waiting.clear()

    def _take(self, places: int) -> Group:
        """The next batches, one for each place."""
        if self._running is None:
            names = ", ".join(f"`{name}`" for name in self._names)
            raise FeedError(
                f"{names}: not fed, and the loader that gives them was not started; call start()", var=self._names[0]
            )
        while len(self._waiting) < places:
            each = next(self._running, None)
            if each is None:
                break
            self._waiting.append(each)
        group = Group(places, self._waiting[:places])
        if len(group) < places and (self._drop_last or not group):
            raise EOFException(
                f"the loader of {', '.join(self._names)} has no more batches: call reset(), then start()"
            )
        del self._waiting[:places]
        return group

    def _give_back(self, group: Group) -> None:
        """Takes back batches that no run has used; the next run gets them."""
        self._waiting[:0] = group


class _Queue:
    """What reads ahead, as older scripts see it."""

    def __init__(self, loader: GeneratorLoader) -> None:
        self._loader = ref(loader)

    def _whole(self) -> GeneratorLoader:
        loader = self._loader()
        if loader is None:
            raise FeedError("the loader of this queue is gone")
        return loader

    def capacity(self) -> int:
        """The most batches in it."""
        return self._whole().queue_capacity

    def size(self) -> int:
        """How many batches were taken from the thread and not used by a run."""
        return len(self._whole()._waiting)

    def close(self) -> None:
        """Ends the epoch."""
        self._whole().reset()


def _callable(reader: Any) -> Reader:
    if not callable(reader):
        raise TypeError(f"a reader must be a function that returns a generator, not a {type(reader).__name__}")
    made: Reader = reader
    return made


def _batched(given: Reader, batch_size: int, drop_last: bool) -> Reader:
    return batch(_callable(given), batch_size, drop_last)


class DataLoader:
    """Makes loaders."""

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
        keep_order: bool = True,
        *,
        timeout_s: float | None = None,
    ) -> GeneratorLoader:
        """A loader that reads ``capacity`` batches ahead.

        * ``feed_list``: the variables that a batch has values for, in the order of the reader's; by default all feeds of
          the default program, in the order of their declaration.
        * ``capacity``: the most batches in the queue.
        * ``iterable``: whether it yields feeds (``for data in loader():``), or belongs to the program and is started.
        * ``return_list``: whether it yields lists of arrays, in the order of ``feed_list``, instead of dicts. Where neither
          ``feed_list`` nor the program names variables, these are the arrays that the reader gives.
        * ``drop_last``: whether the last batches, if there are fewer than devices, are dropped; otherwise some devices are idle.
        * ``use_double_buffer`` and ``keep_order`` have no effect: there is one thread, and order is always kept.
        * ``use_multiprocess`` must be ``False``: a reader may start processes itself.
        * ``timeout_s`` (not in Paddle): how long a run waits for the reader; ``None``: without limit.
        """
        if use_multiprocess:
            raise StrategyError(
                "use_multiprocess=True is not supported: readers run in a thread; start processes in your own reader",
                var="use_multiprocess",
            )
        if capacity is None:
            raise FeedError("from_generator needs capacity, the most batches that are read ahead")
        return GeneratorLoader(feed_list, capacity, iterable, return_list, drop_last, timeout_s)


class PyReader(GeneratorLoader):
    """A loader under its older names."""

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        if capacity is None:
            raise FeedError("PyReader needs capacity, the most batches that are read ahead")
        super().__init__(feed_list, capacity, iterable, return_list)

    def decorate_sample_generator(
        self, sample_generator: Reader, batch_size: int, drop_last: bool = True, places: Any = None
    ) -> None:
        """From a reader of samples."""
        self.set_sample_generator(sample_generator, batch_size, drop_last, places)

    def decorate_sample_list_generator(self, reader: Reader, places: Any = None) -> None:
        """From a reader of lists of samples."""
        self.set_sample_list_generator(reader, places)

    def decorate_batch_generator(self, reader: Reader, places: Any = None) -> None:
        """From a reader of whole batches."""
        self.set_batch_generator(reader, places)

    def decorate_paddle_reader(self, reader: Reader, places: Any = None) -> None:
        """From a reader of lists of samples."""
        self.set_sample_list_generator(reader, places)

    def decorate_tensor_provider(self, reader: Reader, places: Any = None) -> None:
        """From a reader of whole batches."""
        self.set_batch_generator(reader, places)


__all__ = [
    "DataLoader",
    "GeneratorLoader",
    "PyReader",
    "batch",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "shuffle",
]
