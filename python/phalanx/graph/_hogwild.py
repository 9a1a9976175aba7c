"""Devices that update without waiting for each other: ``BuildStrategy.async_mode``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from phalanx import _phalanx
from phalanx.graph import _feed
from phalanx.graph._values import Array, Lent
from phalanx.graph.errors import EOFException, FeedError, FeedTypeError, FetchError, StrategyError
from phalanx.graph.program import Program
from phalanx.graph.strategy import BuildForm, BuildStrategy, ExecutionStrategy

WHAT = "in async_mode feed must be a sequence of batches: an iterator or a list of dicts, or loader()"
Lents = list[tuple[str, Lent]]
Reader = Callable[[], "Lents | None"]


class Batches:
    """What an iterator gives, batch by batch: a group for several places is as many batches."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.source = source
        self.waiting: deque[Any] = deque()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        while not self.waiting:
            given = next(self.source)
            is_group = isinstance(given, (list, tuple)) and given and all(isinstance(one, Mapping) for one in given)
            self.waiting.extend(given if is_group else [given])
        return self.waiting.popleft()


class Asynchronous:
    """What a ParallelExecutor has inside, in this mode."""

    def __init__(
        self,
        program: Program,
        loss: str | None,
        build: BuildStrategy,
        execution: ExecutionStrategy,
        devices: int | None,
    ) -> None:
        if not loss:
            raise StrategyError("async_mode is for training: name the loss", var="async_mode")
        self._program = program
        self._loss = loss
        self._exe = _phalanx.GraphHogwild(program._graph, loss, BuildForm(build), execution, devices, program._seed())
        self.devices = self._exe.devices
        self._most = self.devices * execution.num_iteration_per_run
        # An iterator that gave a group of which the last run has not taken all.
        self._rest: Batches | None = None

    def effective(self) -> dict[str, Any]:
        """The strategies in effect."""
        return self._exe.effective()

    def prepare(self, store: _phalanx.GraphStore) -> None:
        """There is nothing to share before a run."""

    def learn(self, store: _phalanx.GraphStore, fetch: list[tuple[str, str]], feed: Any) -> list[Array]:
        """Learns from the next batches; gives the loss of each in the order of updates."""
        for name, merge in fetch:
            if name != self._loss:
                raise FetchError(f"in async_mode only the loss `{self._loss}` can be fetched, not `{name}`", var=name)
            if merge == "unmerged":
                raise FetchError(
                    "in async_mode devices have no common steps, so return_merged=False is not possible", var=name
                )
        if feed is None and self._program._readers:
            updates = self._exe.run(store, self._of_loaders())
        else:
            batches = self._batches(feed)
            try:
                updates = self._exe.run(store, self._of(batches))
            finally:
                self._rest = batches if batches.waiting else None
        losses = np.asarray([loss for _, _, loss in updates], "float64")
        return [losses.copy() for _ in fetch]

    def _batches(self, feed: Any) -> Batches:
        if hasattr(feed, "set_batch_generator"):
            raise FeedTypeError(
                f"{WHAT}; call the loader once per epoch, and feed the result to all runs of that epoch"
            )
        if feed is None or isinstance(feed, (str, bytes, Mapping)) or not isinstance(feed, Iterable):
            raise FeedTypeError(f"{WHAT}, not a {type(feed).__name__}")
        if isinstance(feed, (list, tuple)):
            self._check_list(feed)
        source = iter(feed)
        rest = self._rest
        return rest if rest is not None and rest.source is source else Batches(source)

    def _check_list(self, feed: list[Any] | tuple[Any, ...]) -> None:
        """What is all there is looked at before anything runs."""
        if len(feed) > self._most:
            raise FeedError(
                f"{len(feed)} batches are fed, but {self.devices} devices take {self._most} in a run; set "
                "num_iteration_per_run, or feed an iterator, which keeps the rest for the next run",
                wanted=str(self._most),
                got=str(len(feed)),
            )
        for number, one in enumerate(feed):
            _check_batch(number, one)

    def _of(self, batches: Batches) -> Reader:
        number = -1

        def read() -> Lents | None:
            nonlocal number
            number += 1
            for one in batches:
                _check_batch(number, one)
                return self._lent(number, one)
            return None

        return read

    def _of_loaders(self) -> Reader:
        """Of those that were started. Their end is the end of a run that has got some, or else an exception."""
        number = -1

        def read() -> Lents | None:
            nonlocal number
            number += 1
            try:
                return self._lent(number, None)
            except EOFException:
                if number == 0:
                    raise
                return None

        return read

    def _lent(self, number: int, one: Mapping[Any, Any] | None) -> Lents:
        found = []
        for name, kind, values in _feed.feeds(self._program, one):
            if kind == "each":
                raise FeedError(
                    f"`{name}` of batch {number} is fed for each device, but in async_mode one device takes a whole batch",
                    var=name,
                )
            found.append((name, values[0]))
        return found

    def __getattr__(self, name: str) -> NoReturn:
        raise StrategyError(f"{name} is not available in async_mode: devices have no common steps", var="async_mode")


def _check_batch(number: int, one: Any) -> None:
    if not isinstance(one, Mapping):
        raise FeedTypeError(f"{WHAT}; batch {number} is a {type(one).__name__}")
