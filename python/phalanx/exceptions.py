"""What goes wrong, as classes: mistakes in the program and failures around it are different ones.

Recovery may retry a :class:`FailureError`; a :class:`MismatchError` comes back every time.

>>> issubclass(MismatchError, FailureError), issubclass(RankLostError, FailureError)
(False, True)
"""

from __future__ import annotations

from collections.abc import Sequence


class PhalanxError(RuntimeError):
    """The base of all errors that ranks cause together.

    Attributes say who and what it was, as far as that is known: ``rank``, ``ranks``, ``tensor``, ``cause``.
    """

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        ranks: Sequence[int] = (),
        tensor: str | None = None,
        cause: str | None = None,
        epoch: int = 0,
    ) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks) if ranks else (() if rank is None else (rank,))
        self.rank = rank if rank is not None else (self.ranks[0] if self.ranks else None)
        self.tensor = tensor
        self.cause = cause
        self.epoch = epoch


class MismatchError(PhalanxError):
    """Ranks submitted different things under one name: the program is wrong. The engine goes on."""


class UnsupportedError(PhalanxError, ValueError):
    """The operation does not exist for these arguments."""


class NotInitializedError(PhalanxError, ValueError):
    """``init()`` was not called yet, or ``shutdown()`` was."""


class InitializationError(PhalanxError, ValueError):
    """The world could not be joined: the environment is wrong, or other ranks did not come."""


class ForkedError(PhalanxError):
    """The engine belongs to the process that started it, not to its forked child."""


class RecoveryError(PhalanxError):
    """What failed cannot be mended within these processes; ``__cause__`` is the failure. Start the job again."""


class FailureError(PhalanxError):
    """Ranks, hosts or networks failed; the program may be right."""


class RankLostError(FailureError):
    """A rank is lost: its process ended, froze, or cannot be reached. ``rank`` and ``cause`` say which and why."""


class ShutDownError(FailureError):
    """Another rank has shut its engine down while this one still wanted something of it."""


class StalledError(FailureError):
    """A tensor waited longer than ``PHALANX_STALL_ABORT`` allows; ``ranks`` did not submit it."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts have come or gone: no failure. ``skip_sync``: the ranks that are left are equal already."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts have come or gone")
        self.skip_sync = skip_sync


__all__ = [
    "FailureError",
    "ForkedError",
    "HostsUpdatedInterrupt",
    "InitializationError",
    "MismatchError",
    "NotInitializedError",
    "PhalanxError",
    "RankLostError",
    "RecoveryError",
    "ShutDownError",
    "StalledError",
    "UnsupportedError",
]
