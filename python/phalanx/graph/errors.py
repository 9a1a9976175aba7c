"""What is wrong with a program, with what it is fed, or with a run, as classes.

All are a :class:`GraphError`; most are also the :class:`ValueError` or :class:`TypeError` that they would be elsewhere.

>>> issubclass(FeedError, ValueError), issubclass(OpError, RuntimeError)
(True, True)
"""

from __future__ import annotations


class GraphError(Exception):
    """The base of them all.

    Attributes say what it was about, as far as that is known: ``var`` and ``op`` by name, ``site`` as ``file:line``
    of the script, ``wanted`` and ``got``, and the ``replica``.
    """

    def __init__(
        self,
        message: str = "",
        *,
        var: str | None = None,
        op: str | None = None,
        site: str | None = None,
        wanted: str | None = None,
        got: str | None = None,
        replica: int | None = None,
    ) -> None:
        super().__init__(message)
        self.var = var
        self.op = op
        self.site = site
        self.wanted = wanted
        self.got = got
        self.replica = replica


class ProgramError(GraphError, ValueError):
    """The program makes no sense; ``site`` is the line that wrote it."""


class ControlFlowError(ProgramError, NotImplementedError):
    """Something stands within a loop or a branch that cannot: an optimizer, or statistics that a layer keeps."""


class LossError(GraphError, ValueError):
    """The loss is not named, not in the program, not one number, or learns nothing."""


class StrategyError(GraphError, ValueError):
    """Strategies contradict each other or what they are used with. All conflicts are in the message."""


class FeedError(GraphError, ValueError):
    """Something is fed that is missing, unknown, or of the wrong type or shape. Nothing has run."""


class FeedTypeError(FeedError, TypeError):
    """Something is fed that is no dict, no list of dicts, or holds no arrays. Nothing has run."""


class FetchError(GraphError, ValueError):
    """Something is fetched that is not there, or cannot be merged. Nothing has run."""


class UninitialisedError(GraphError, RuntimeError):
    """A parameter has no value yet: run the startup program. Nothing has run."""


class StateError(GraphError, ValueError):
    """The scope has a variable of this name in another type or shape, or does not have it."""


class OpError(GraphError, RuntimeError):
    """An operation failed; ``site`` is the line that added it. Parameters are as before the run."""


class NotFiniteError(OpError):
    """An operation gave a number that is not finite, and ``check_nan_inf`` is on."""


class ProcessError(GraphError, RuntimeError):
    """Another rank failed in this run, or is lost. If it was only this run, all can go on with the next."""

    #: It is not the first failure.
    follows = True


class SavedError(GraphError, ValueError):
    """A file is damaged, not ours, or does not fit the program; all that does not fit is named. Nothing has changed."""


class EOFException(GraphError, EOFError):
    """A reader has no more batches: ``reset()`` it, and ``start()`` it again. Nothing has run."""


__all__ = [
    "ControlFlowError",
    "EOFException",
    "FeedError",
    "FeedTypeError",
    "FetchError",
    "GraphError",
    "LossError",
    "NotFiniteError",
    "OpError",
    "ProcessError",
    "ProgramError",
    "SavedError",
    "StateError",
    "StrategyError",
    "UninitialisedError",
]
