"""Recovery from failures in the same processes: state that can be restored, and a loop that restores it.

A training function gets a :class:`State` and commits it now and then. When a collective fails, every rank restores
its last commit; then all ranks restart their engines, take rank 0's state, and call the function again.

>>> import phalanx
>>> from phalanx.elastic import ObjectState, run
>>> phalanx.init()
>>> @run
... def train(state):
...     while state.batch < 3:
...         state.batch += 1
...         state.commit()
...     return state.batch
>>> train(ObjectState(phalanx.broadcast_object, phalanx.rank, batch=0))
3

* ELASTIC-1: a programming error is raised, never retried; nothing is retried more than ``reset_limit`` times.
* ELASTIC-2: ranks begin each attempt together, with rank 0's state unless all of them report that it is already equal.
* ELASTIC-3: no rank returns from the function before all ranks have reached its end, so a rank that fails there can still recover.
"""

from __future__ import annotations

import copy
import functools
import queue
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from phalanx import _world
from phalanx.exceptions import FailureError, HostsUpdatedInterrupt, PhalanxError, RankLostError, RecoveryError
from phalanx.objects import broadcast_object, gather_bytes
from phalanx.process_sets import ProcessSet, registered

Function = TypeVar("Function", bound=Callable[..., Any])

#: How often one call of a function begins again, unless it was told otherwise.
RESET_LIMIT = 100


class HostUpdateResult:
    """What happened to the hosts of a job: flags with Horovod's values."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State:
    """The state of a training function. Subclasses define how it is saved, restored, and made equal on all ranks.

    ``bcast_object`` returns rank 0's object on every rank, ``get_rank`` this rank's number.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Registers functions to call after a reset, e.g. to set what depends on the number of ranks."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called after a reset."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Reports that hosts were added or removed; the next :meth:`commit` acts on it. Any thread may call it."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state in memory; after a failure the function continues from it. All ranks call it together."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises :class:`HostsUpdatedInterrupt` on all ranks if rank 0 knows of hosts that were added or removed."""
        before = latest = self._last_updated_timestamp
        update = HostUpdateResult.no_update
        while True:
            try:
                timestamp, what = self._host_messages.get_nowait()
            except queue.Empty:
                break
            if timestamp > latest:
                latest, update = timestamp, update | what
        before, latest, update = self._bcast_object((before, latest, update))
        self._last_updated_timestamp = latest
        if latest > before:
            raise HostsUpdatedInterrupt(update == HostUpdateResult.removed)

    def save(self) -> None:
        """Saves the current state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restores the saved state."""
        raise NotImplementedError

    def sync(self) -> None:
        """Takes rank 0's state and saves it. All ranks call it together."""
        raise NotImplementedError

    def reset(self) -> None:
        """What a subclass does after a reset."""


class ObjectState(State):
    """A state whose attributes are any objects that can be pickled.

    >>> state = ObjectState(lambda obj: obj, lambda: 0, epoch=0, losses=[])
    >>> state.commit()
    >>> state.epoch, state.losses = 5, [0.1]
    >>> state.restore()
    >>> state.epoch, state.losses
    (0, [])
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = broadcast_object,
        get_rank: Callable[[], int] = _world.rank,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state: dict[str, Any] = copy.deepcopy(kwargs)
        self._take(kwargs)

    def save(self) -> None:
        """Saves copies of the attributes."""
        # Copies, because a list that grows after the commit would otherwise not be what was committed.
        self._saved_state = copy.deepcopy(self._now())

    def restore(self) -> None:
        """Restores the saved values of the attributes."""
        self._take(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        """Takes rank 0's attributes."""
        if self._saved_state:
            self._take(self._bcast_object(self._now()))
            ObjectState.save(self)

    def _take(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def _now(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}


@overload
def run(func: Function) -> Function: ...
@overload
def run(*, reset_limit: int = ...) -> Callable[[Function], Function]: ...
def run(func: Any = None, *, reset_limit: int = RESET_LIMIT) -> Any:
    """Decorates a function, whose first argument is a :class:`State`, so that it continues after failures.

    A failed collective (:class:`FailureError`, or a ``PhalanxError`` that the function raises itself) restores the last
    commit; :class:`HostsUpdatedInterrupt` does not. Then the ranks restart their engines and call the function again, at
    most ``reset_limit`` times. Programming errors, such as :class:`MismatchError`, are raised. So is the loss of a rank,
    as :class:`RecoveryError`: lost ranks are not replaced.
    """
    if func is None:
        return functools.partial(run, reset_limit=reset_limit)
    return run_fn(func, None, reset_limit)


def run_fn(func: Function, reset: Callable[[], None] | None = None, reset_limit: int = RESET_LIMIT) -> Function:
    """As :func:`run`, with another reset function."""
    if reset_limit < 0:
        raise ValueError(f"reset_limit must be a number of attempts, 0 or more, not {reset_limit}")

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        # What the function adds itself, it will add again.
        outer_sets = registered()
        n_resets, skip_sync = 0, False
        while True:
            cause: BaseException
            try:
                if n_resets:
                    state.on_reset()
                if not _all_say(skip_sync, "elastic.skip_sync"):
                    state.sync()
                result = func(state, *args, **kwargs)
                if _world.is_initialized():
                    _all_say(True, "elastic.end")
                return result
            except HostsUpdatedInterrupt as interrupt:
                cause, skip_sync = interrupt, interrupt.skip_sync
            except PhalanxError as failure:
                if not is_retryable(failure):
                    raise
                cause, skip_sync = failure, False
            if isinstance(cause, RankLostError):
                raise _beyond_repair(cause) from cause
            n_resets += 1
            if n_resets > reset_limit:
                text = f"number of resets exceeded its limit, {reset_limit}; cause of the last one: {_text(cause)}"
                raise RecoveryError(text, cause=_text(cause)) from cause
            if isinstance(cause, PhalanxError):
                state.restore()
            (reset or functools.partial(_form_anew, outer_sets, cause))()

    return wrapper  # type: ignore[return-value]


def is_retryable(error: PhalanxError) -> bool:
    """Whether the same call may succeed next time: failures may, mistakes may not (ELASTIC-1).

    >>> from phalanx.exceptions import MismatchError, StalledError
    >>> is_retryable(StalledError("late")), is_retryable(MismatchError("shapes"))
    (True, False)
    """
    # The base class itself is what programs raise, by its name in Horovod.
    return isinstance(error, FailureError) or type(error) is PhalanxError


def _all_say(yes: bool, name: str) -> bool:
    """Whether every rank says yes; no rank continues before all have answered."""
    return all(gather_bytes(bytes([yes]), name))


def _form_anew(sets: list[ProcessSet], cause: BaseException) -> None:
    now = registered()
    kept = [s for s in sets if any(s is other for other in now)]
    try:
        _world.shutdown()
        _world.init(process_sets=kept or None)
    except PhalanxError as error:
        text = f"the ranks could not restart ({error}) after: {_text(cause)}. Start the job again from a checkpoint."
        raise RecoveryError(text, rank=error.rank, cause=str(error)) from cause


def _beyond_repair(lost: RankLostError) -> RecoveryError:
    text = (
        f"{lost}. The other ranks cannot continue without it: lost ranks are not replaced, because elastic "
        "jobs do not exist yet. Start the job again from a checkpoint."
    )
    return RecoveryError(text, rank=lost.rank, cause=lost.cause)


def _text(cause: BaseException) -> str:
    return str(cause) or type(cause).__name__


__all__ = ["HostUpdateResult", "HostsUpdatedInterrupt", "ObjectState", "State", "run", "run_fn"]
