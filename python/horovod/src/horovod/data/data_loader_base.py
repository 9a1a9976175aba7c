"""Loaders of batches, and one that reads them ahead in a thread.

>>> class Numbers(BaseDataLoader):
...     def __len__(self):
...         return 3
...     def _iterate(self):
...         yield from range(3)
>>> class Ahead(AsyncDataLoaderMixin, Numbers):
...     pass
>>> loader = Ahead(async_loader_queue_size=2)
>>> list(loader), list(loader)
([0, 1, 2], [0, 1, 2])
>>> loader.close_async_loader()
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, Full, Queue
from typing import Any

#: How often a thread that waits for room or for a batch looks whether the loader was closed.
_LOOK_S = 0.1


class BaseDataLoader:
    """An iterable of batches; subclasses define its length and its batches."""

    def __len__(self) -> int:
        """The number of batches."""
        raise NotImplementedError(f"{type(self).__name__} must define __len__(): the number of its batches")

    def _iterate(self) -> Iterator[Any]:
        """The batches of one epoch."""
        raise NotImplementedError(f"{type(self).__name__} must define _iterate(): a generator of its batches")

    def _process_batch(self, batch: Any) -> Any:
        """Processes a batch before it is yielded."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Reads batches ahead in a thread; list it before the loader among the bases of a class.

    At most ``async_loader_queue_size`` batches are queued; with 0 there is no thread. ``debug_data_loader`` prints what
    the thread does. An exception of the loader is raised in place of its batch.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        super().__init__(*args, **kwargs)
        self.started = False
        self.finished_event = threading.Event()
        if async_loader_queue_size > 0:
            self.queue: Queue[tuple[str, Any]] = Queue(async_loader_queue_size)
            self.thread = threading.Thread(target=self._async_worker, daemon=True)

    def close_async_loader(self) -> None:
        """Ends the thread; batches that were read ahead are dropped."""
        self.finished_event.set()
        if self.started:
            self.thread.join()
            self._debug("closed")

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            for batch in self._iterate():  # type: ignore[attr-defined]
                yield self._process_batch(batch)  # type: ignore[attr-defined]
            return
        if not self.started:
            self.started = True
            self.thread.start()
        while True:
            kind, value = self._take()
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield self._process_batch(value)  # type: ignore[attr-defined]

    def _take(self) -> tuple[str, Any]:
        while True:
            try:
                return self.queue.get(timeout=_LOOK_S)
            except Empty:
                if not self.thread.is_alive() and self.queue.empty():
                    return "error", RuntimeError("this loader was closed or has failed; make a new one")

    def _put(self, kind: str, value: Any = None) -> bool:
        """Whether it could be put before the loader was closed."""
        while not self.finished_event.is_set():
            try:
                self.queue.put((kind, value), timeout=_LOOK_S)
            except Full:
                continue
            self._debug(f"{kind} read ahead")
            return True
        return False

    def _async_worker(self) -> None:
        """The thread: one epoch after the other."""
        try:
            while not self.finished_event.is_set():
                for batch in self._iterate():  # type: ignore[attr-defined]
                    if not self._put("batch", batch):
                        return
                self._put("end")
        except Exception as error:  # It belongs to the thread that waits for the batch.
            self._put("error", error)

    def _debug(self, what: str) -> None:
        if self.debug_data_loader:
            print(f"{type(self).__name__}: {what}")


__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
