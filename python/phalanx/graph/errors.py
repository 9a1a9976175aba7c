"""The errors of programs, feeds and runs, as classes.

All are a :class:`GraphError`; most are also a :class:`ValueError` or a :class:`TypeError`.

>>> issubclass(FeedError, ValueError), issubclass(OpError, RuntimeError)
(True, True)
"""

from __future__ import annotations


class GraphError(Exception):
    """The base class.

    Attributes, where known: ``var`` and ``op`` by name, ``site`` as ``file:line`` of the script, ``wanted`` and
    ``got``, and the ``replica``.
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
    """The program is not valid; ``site`` is the line of the script."""


class ControlFlowError(ProgramError, NotImplementedError):
    """A loop or a branch contains something that is not allowed there: an optimizer, or a layer that keeps statistics."""


class LossError(GraphError, ValueError):
    """The loss is not named, not in the program, not one number, or depends on no parameter."""


class StrategyError(GraphError, ValueError):
    """Strategies contradict each other or the program. The message lists all conflicts."""


class FeedError(GraphError, ValueError):
    """A feed is missing, unknown, or has the wrong type or shape. Nothing has run."""


class FeedTypeError(FeedError, TypeError):
    """The feed is not a dict or a list of dicts, or does not hold arrays. Nothing has run."""


class FetchError(GraphError, ValueError):
    """A fetched variable does not exist or cannot be merged. Nothing has run."""


class UninitialisedError(GraphError, RuntimeError):
    """A parameter has no value yet: run the startup program. Nothing has run."""


class StateError(GraphError, ValueError):
    """The scope has a variable of this name in another type or shape, or does not have it."""


class OpError(GraphError, RuntimeError):
    """An operation failed; ``site`` is the line that added it. Parameters are as before the run."""


class NotFiniteError(OpError):
    """An operation computed a number that is not finite, and ``check_nan_inf`` is on."""


class ProcessError(GraphError, RuntimeError):
    """Another rank failed in this run, or is lost. If only this run failed, all ranks can continue with the next one."""

    #: It is not the first failure.
    follows = True


class SavedError(GraphError, ValueError):
    """A file is damaged, not ours, or does not fit the program; the message lists all misfits. Nothing has changed."""


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
