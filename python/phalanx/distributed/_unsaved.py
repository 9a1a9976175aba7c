"""Steps that nobody saves: those of a session that the program forgets to close."""

from __future__ import annotations

import os
from typing import Any
from weakref import finalize

from phalanx.distributed._log import warn


class Unsaved:
    """The steps of one session that no checkpoint has. If it is collected, or the process ends, before it is closed, one line says so."""

    def __init__(self, session: Any, folder: str, step: int) -> None:
        self._folder, self._step, self._saved, self._process = folder, step, step, os.getpid()
        # It does not keep the session alive: of that it knows nothing.
        self._told = finalize(session, self._tell)

    def made(self, step: int, is_saved: bool) -> None:
        """The session has made this step."""
        self._step = step
        self._saved = step if is_saved else self._saved

    def close(self) -> None:
        """The session was closed, or left by an exception."""
        self._told.detach()

    def _tell(self) -> None:
        # A forked child has not made these steps.
        if self._step > self._saved and self._process == os.getpid():
            first, last = self._saved + 1, self._step
            which = f"step {last} is" if first == last else f"steps {first} to {last} are"
            warn(f"the session that saves to {self._folder} was not closed, so {which} not saved: use `with`, or call close()")


__all__ = ["Unsaved"]
