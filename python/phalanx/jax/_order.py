"""Tokens, by which JAX keeps the order of our calls between compiled functions; and errors, which travel with them.

JAX puts the token of an ordered effect on the devices of the next function before each call, in Python, even if it is
there already. This takes longer than a small collective. So our tokens are passed on as they are.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

import jax

from phalanx import _phalanx


def pass_on(effect: Any) -> None:
    """Tokens of this effect stay where they are if the next function runs there. Without what this needs of JAX, nothing changes."""
    try:
        from jax._src import core, dispatch

        kind, token = dispatch.RuntimeTokenSet, core.Token
        place = kind.get_token_input
    except (ImportError, AttributeError):
        return

    @functools.wraps(place)
    def passed(self: Any, asked: Any, devices: Any) -> Any:
        if asked is effect:
            last = self.current_tokens.get(asked)
            if isinstance(last, token) and len(devices) == 1 and last._buf.devices() == {devices[0]}:
                return last
        return place(self, asked, devices)

    kind.get_token_input = passed


def forget() -> None:
    """Drops the tokens of this thread. Those of a call that failed would fail the next one, too."""
    try:
        from jax._src import dispatch

        dispatch.runtime_tokens.clear()
    except (ImportError, AttributeError):
        return


def is_traced() -> bool:
    """Whether a function is being traced; if that cannot be told, no."""
    try:
        from jax._src import core

        return not core.trace_state_clean()
    except (ImportError, AttributeError):
        return False


def translated(error: Exception) -> Exception | None:
    """The exception of ours behind an error of XLA's, which keeps only its text."""
    match = re.search(r"\[phalanx failure ([0-9]+)\]", str(error))
    found: Exception | None = _phalanx.native_failure(int(match[1])) if match else None
    return found


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Inside of it, errors of collectives in compiled functions are Phalanx's own exceptions, with rank and cause.

    XLA keeps only the text of an error. The block waits at its end for what was started in it.
    """
    try:
        yield
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        # Ours or not: what was ordered behind it fails, too.
        forget()
        found = translated(error)
        if found is None:
            raise
        raise found from error


__all__ = ["errors", "forget", "is_traced", "pass_on", "translated"]
