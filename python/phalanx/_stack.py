"""Reports this program's stack to ranks that wait for it, and the exception that ends it to the launcher. ``init()`` installs both.

>>> [function for _, _, function in where()][-1:] != []
True
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from importlib.util import find_spec
from types import FrameType, TracebackType
from typing import Any

from phalanx import _phalanx
from phalanx.exceptions import FailureError

#: The frame that a person looks for, and those that called it.
_MOST = 4


def _folders() -> tuple[str, ...]:
    """Directories of code that is not the user's."""
    own = os.path.dirname(os.path.abspath(__file__))
    return tuple(folder + os.sep for folder in [own, *filter(None, map(_folder, ("torch", "horovod")))])


def _folder(name: str) -> str | None:
    try:
        spec = find_spec(name)
    except ValueError:  # Something stands in for it.
        return None
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None


_ours: tuple[str, ...] = ()


def where() -> list[tuple[str, int, str]]:
    """File, line and function of the main thread, innermost first: outside phalanx and torch, and its callers."""
    ident = threading.main_thread().ident
    frame: FrameType | None = sys._current_frames().get(ident) if ident is not None else None
    return _outside(_stack(frame))


def _stack(frame: FrameType | None) -> list[tuple[str, int, str]]:
    stack = []
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return stack


def _outside(stack: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    def is_own(file: str) -> bool:
        return not file.startswith(_ours) and not file.startswith("<frozen ")

    first = next((i for i, (file, _, _) in enumerate(stack) if is_own(file)), 0)
    return stack[first : first + _MOST]


def install() -> None:
    """Reports an exception that ends this process to the launcher, too, from now on."""
    global _ours
    _ours = _ours or _folders()
    # Once: a hook that was installed since then calls ours.
    if "main" not in _previous:
        _previous["main"] = sys.excepthook
        sys.excepthook = _at_exception
    if "thread" not in _previous:
        _previous["thread"] = threading.excepthook
        threading.excepthook = _at_thread_exception


_previous: dict[str, Any] = {}


def _at_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    try:
        # Ctrl-C is not a failure: the user knows.
        if not issubclass(kind, KeyboardInterrupt):
            _tell("follows" if _follows(error) else "own", kind, error, trace)
    finally:
        _previous["main"](kind, error, trace)


def _at_thread_exception(args: threading.ExceptHookArgs) -> None:
    try:
        if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
            _tell("thread", args.exc_type, args.exc_value, args.exc_traceback)
    finally:
        _previous["thread"](args)


def _follows(error: BaseException | None) -> bool:
    """Whether it was raised because another rank failed, directly or through other exceptions."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        # Errors of static programs say it themselves: they have another base.
        if isinstance(error, FailureError) or getattr(error, "follows", False):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _tell(whose: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _phalanx.tell_failure(whose, "".join(traceback.format_exception(kind, error, trace)))


__all__ = ["install", "where"]
