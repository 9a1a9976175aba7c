"""The errors as classes. Programming errors and failures are separate classes.

Recovery may retry after a :class:`FailureError`; a :class:`MismatchError` would occur again every time.

>>> issubclass(MismatchError, FailureError), issubclass(RankLostError, FailureError)
(False, True)
"""

from __future__ import annotations

from collections.abc import Sequence


class PhalanxError(RuntimeError):
    """The base class of all errors of communication.

    Attributes, where known: ``rank``, ``ranks``, ``tensor``, ``cause``.
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
    """Ranks submitted different operations under one name. This is a programming error; the engine keeps running."""


class CheckError(PhalanxError):
    """A result of DDL is not what its baseline says. All ranks raise it, with the same rank, tensor and values."""

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        tensor: str | None = None,
        index: int | None = None,
        value: float | None = None,
        baseline: float | None = None,
    ) -> None:
        super().__init__(message, rank=rank, tensor=tensor)
        self.index = index
        self.value = value
        self.baseline = baseline


class UnsupportedError(PhalanxError, ValueError):
    """The operation is not supported for these arguments."""


class NoMpiError(UnsupportedError):
    """MPI was asked for and cannot be used; all ranks raise it, and the engine keeps running."""


class NotInitializedError(PhalanxError, ValueError):
    """``init()`` has not been called, or ``shutdown()`` was called."""


class InitializationError(PhalanxError, ValueError):
    """This process could not join the world: the environment is wrong, or other ranks did not join."""


class ForkedError(PhalanxError):
    """The engine belongs to the process that started it, not to its forked child."""


class RecoveryError(PhalanxError):
    """These processes cannot recover; ``__cause__`` is the failure. Start the job again."""


class FailureError(PhalanxError):
    """Ranks, hosts or networks failed; the program may be right."""


class RankLostError(FailureError):
    """A rank is lost: its process ended, froze, or cannot be reached. ``rank`` and ``cause`` say which and why."""


class ShutDownError(FailureError):
    """Another rank called ``shutdown()`` while this rank still had pending operations."""


class StalledError(FailureError):
    """A tensor waited longer than ``PHALANX_STALL_ABORT``; ``ranks`` are the ranks that did not submit it."""


class SessionError(PhalanxError):
    """A session has stopped on all ranks because of an error of one of them: ``rank`` says which, ``cause`` why."""


class CheckpointError(PhalanxError):
    """A checkpoint cannot be saved or loaded, or does not fit; the message names the files or the tensors."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts were added or removed; this is not a failure. ``skip_sync``: the remaining ranks are already equal."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts were added or removed")
        self.skip_sync = skip_sync


__all__ = [
    "CheckpointError",
    "FailureError",
    "ForkedError",
    "HostsUpdatedInterrupt",
    "InitializationError",
    "MismatchError",
    "NotInitializedError",
    "PhalanxError",
    "RankLostError",
    "RecoveryError",
    "SessionError",
    "ShutDownError",
    "StalledError",
    "UnsupportedError",
]
