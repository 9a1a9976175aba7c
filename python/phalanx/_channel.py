"""A thread that reads ahead, with a bounded queue between it and the training thread.

No thread polls, and every wait can be ended: by the other side, by closing the queue, by Ctrl-C, by a time limit.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from phalanx.exceptions import ForkedError

# What no queue gives.
_NEVER = object()


class Channel:
    """The batches that were read and not taken yet.

    The garbage collector may close it at any moment and in any thread, so it must not wait for a lock. It has two
    queues, one of items and one of free places; a side waits only if it has nothing to do.
    """

    def __init__(self, capacity: int) -> None:
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        self._is_closed = False
        for _ in range(capacity):
            self._room.put(None)

    def put(self, item: Any) -> bool:
        """Adds an item once the queue has a free place; False if the queue was closed."""
        self._room.get()
        if not self._is_closed:
            self._items.put((True, item))
        return not self._is_closed

    def end(self, error: BaseException | None = None) -> None:
        """Ends the queue, with an error or because there are no more items."""
        # Twice: Ctrl-C may lose one.
        for _ in range(2):
            self._items.put((False, error))

    def close(self) -> None:
        """Closes the queue: wakes both sides and drops the items that were read."""
        self._is_closed = True
        items, self._items = self._items, SimpleQueue()
        items.put((False, None))
        self._room.put(None)

    def take(self, timeout_s: float | None) -> tuple[bool, Any]:
        """The next item, with True; at the end False and the error, or ``None`` if that was already returned."""
        # Looked at in this order: what is seen after it was closed is not waited for.
        items = self._items
        if self._is_closed:
            return False, None
        # An item and its room go in one step: no signal is handled between two calls that no bytecode makes.
        get = iter(partial(items.get, timeout=timeout_s), _NEVER)
        make_room = iter(partial(self._room.put, None), _NEVER)
        try:
            (is_item, item), _ = next(zip(get, make_room))  # noqa: B905
        except Empty:
            raise TimeoutError(f"the reader gave no batch for {timeout_s} s") from None
        if not is_item:
            # For a reader that asks again. No element comes after the end.
            items.put((False, None))
        return is_item, item


def _read(channel: Channel, make: Callable[[], Iterable[Any]]) -> None:
    """The thread. It refers only to the queue, not to its reader, so that it keeps no other object alive."""
    try:
        items = iter(make())
        try:
            for item in items:
                if not channel.put(item):
                    break
        finally:
            # What the user's generator holds is let go here, in the thread that used it.
            close = getattr(items, "close", None)
            if close is not None:
                close()
    except BaseException as why:
        channel.end(why)
    else:
        channel.end()


class Prefetch(Iterator[Any]):
    """Reads ahead what ``make`` returns, in a thread. The thread ends when this is closed, collected, or at exit.

    A thread cannot be ended inside the user's code: if the reader blocks, the thread ends when the reader returns. It
    never keeps the process from ending.

    ``ends`` are the errors that callers take for the end of the data; a reader that raises one has failed.

    >>> list(Prefetch(lambda: range(5), 2))
    [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        make: Callable[[], Iterable[Any]],
        capacity: int,
        timeout_s: float | None = None,
        ends: tuple[type[Exception], ...] = (StopIteration,),
    ) -> None:
        channel = Channel(capacity)
        self._channel = channel
        self._timeout_s = timeout_s
        self._ends = ends
        self._process = os.getpid()
        self._end = weakref.finalize(self, channel.close)
        self._has_failed = False
        self.thread = threading.Thread(target=_read, args=(channel, make), name="phalanx-reader", daemon=True)
        self.thread.start()

    def __next__(self) -> Any:
        if os.getpid() != self._process:
            raise ForkedError("the reader belongs to the process that started it, not to its forked child")
        is_item, item = self._channel.take(self._timeout_s)
        if is_item:
            return item
        if self._has_failed:
            raise RuntimeError("the reader has already failed; start it again")
        if item is None:
            raise StopIteration
        self._has_failed = True
        if isinstance(item, self._ends):
            # It must not pass for the end of the data.
            raise RuntimeError(f"the reader raised {item!r}") from item
        raise item

    def close(self) -> None:
        """Ends the thread; what was read ahead is lost."""
        self._end()


__all__ = ["Channel", "Prefetch"]
