"""Functions in threads.

>>> done = []
>>> in_thread(done.append, (1,), daemon=True).join()
>>> done
[1]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Starts a function in a new thread. ``silent`` suppresses its exceptions."""
    if not isinstance(args, tuple):
        raise ValueError(f"in_thread passes a tuple on, not a {type(args).__name__}; write (x,) to pass x alone")

    def quietly(*given: Any) -> None:
        try:
            target(*given)
        except Exception:  # The caller wants no word of it.
            if not silent:
                raise

    thread = threading.Thread(target=quietly, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


__all__ = ["in_thread"]
