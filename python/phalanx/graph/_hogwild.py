"""Devices that learn without waiting for each other: ``BuildStrategy.async_mode``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from phalanx import _phalanx
from phalanx.graph import _feed
from phalanx.graph._values import Array, Lent
from phalanx.graph.errors import FeedError, FeedTypeError, FetchError, StrategyError
from phalanx.graph.program import Program
from phalanx.graph.strategy import BuildForm, BuildStrategy, ExecutionStrategy

WHAT = "in async_mode feed is batches, one after another: an iterator or a list of dicts"


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
        self._exe = _phalanx.GraphHogwild(program._graph, loss, BuildForm(build), execution, devices)
        self.devices = self._exe.devices
        self._most = self.devices * execution.num_iteration_per_run

    def effective(self) -> dict[str, Any]:
        """The strategies as they hold."""
        return self._exe.effective()

    def prepare(self, store: _phalanx.GraphStore) -> None:
        """There is nothing to share before a run."""

    def learn(self, store: _phalanx.GraphStore, fetch: list[tuple[str, str]], feed: Any) -> list[Array]:
        """Learns from the next batches; gives the loss of each in the order of updates."""
        for name, merge in fetch:
            if name != self._loss:
                raise FetchError(f"in async_mode only the loss `{self._loss}` can be fetched, not `{name}`", var=name)
            if merge == "unmerged":
                raise FetchError("in async_mode devices have no steps in common, so nothing comes unmerged", var=name)
        updates = self._exe.run(store, [self._batch(i, one) for i, one in enumerate(self._taken(feed))])
        losses = np.asarray([loss for _, _, loss in updates], "float64")
        return [losses.copy() for _ in fetch]

    def _taken(self, feed: Any) -> list[Any]:
        if feed is None or isinstance(feed, (str, bytes, Mapping)) or not isinstance(feed, Iterable):
            raise FeedTypeError(f"{WHAT}, not a {type(feed).__name__}")
        if isinstance(feed, (list, tuple)) and len(feed) > self._most:
            raise FeedError(
                f"{len(feed)} batches are fed, but {self.devices} devices take {self._most} in a run; set "
                "num_iteration_per_run, or feed an iterator, of which the rest is for the next run",
                wanted=str(self._most),
                got=str(len(feed)),
            )
        return list(islice(feed, self._most))

    def _batch(self, number: int, one: Any) -> list[tuple[str, Lent]]:
        if not isinstance(one, Mapping):
            raise FeedTypeError(f"{WHAT}; batch {number} is a {type(one).__name__}")
        found = []
        for name, kind, values in _feed.feeds(self._program, one):
            if kind == "each":
                raise FeedError(f"`{name}` of batch {number} is fed for each device, but one takes it all", var=name)
            found.append((name, values[0]))
        return found

    def __getattr__(self, name: str) -> NoReturn:
        raise StrategyError(f"{name} is not there in async_mode: devices have no steps in common", var="async_mode")
