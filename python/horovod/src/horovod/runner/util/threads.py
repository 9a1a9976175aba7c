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
    target: Callable[..., Any], args: Sequence[Any] = (), name: str | None = None, daemon: bool = True, silent: bool = False
) -> threading.Thread:
    """Starts a function in a thread of its own. ``silent`` keeps its exceptions quiet."""
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args).__name__}; use (args,) for a single argument")

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
