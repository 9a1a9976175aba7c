"""Steps that nobody saves: those of a session that the program forgets to close."""

from __future__ import annotations

import atexit
import os
from typing import Any
from weakref import finalize

from phalanx import _phalanx
from phalanx.distributed._log import warn
from phalanx.exceptions import PhalanxError


class Unsaved:
    """The steps of one session that no checkpoint has. If it is collected, or the process ends, before it is closed, rank 0 says so.

    The save under way, in which all ranks take part, is written first; they wait for it no longer than ``grace`` seconds.
    """

    def __init__(self, session: Any, core: _phalanx.SessionCore, folder: str, step: int, grace: float) -> None:
        self._core, self._folder, self._grace, self._process = core, folder, grace, os.getpid()
        self._step = self._written = self._asked = step
        # It does not keep the session alive: of that it knows nothing.
        self._told = finalize(session, self._tell)
        # Before the world ends, which was registered earlier: other ranks take part in a save.
        self._told.atexit = False
        atexit.register(self._told)

    def made(self, step: int, is_saved: bool) -> None:
        """The session has made this step, and has asked for it to be saved."""
        self._step = step
        if is_saved and step != self._asked:
            # A save waits for the one before it.
            self._written, self._asked = self._asked, step

    def close(self) -> None:
        """The session was closed, or left by an exception."""
        self._told.detach()
        atexit.unregister(self._told)

    def _tell(self) -> None:
        # A forked child has not made these steps.
        if self._process != os.getpid():
            return
        saved, why = self._asked, ""
        try:
            self._core.close(False, self._grace)
        except (PhalanxError, TimeoutError, OSError) as error:
            saved, why = self._written, f" ({error})"
        if self._step > saved and self._core.rank == 0:
            first, last = saved + 1, self._step
            which = f"step {last} is" if first == last else f"steps {first} to {last} are"
            warn(f"the session that saves to {self._folder} was not closed, so {which} not saved{why}: use `with`, or call close()")


__all__ = ["Unsaved"]
