"""What sessions of static programs and of torch have in common: hooks, boundaries between steps, checkpoints, the end.

* LOOP-1: every rank meets the others once after each step, and once when the session begins and when it ends.
* LOOP-2: a hook that raises ends its step like any other; all ranks then stop together.
* LOOP-3: the session of a parameter server serves until the workers have left, and makes no steps.
* LOOP-4: a checkpoint holds one state of each object; ranks that have different ones do not save.
* LOOP-5: an exception that leaves a session on one rank is an error on all ranks: those that do not hear of it in a step or after it
  lose their world.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import fspath
from os.path import abspath
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakSet

from phalanx import _phalanx, _world
from phalanx.distributed._lazy import Lazy
from phalanx.distributed._log import log
from phalanx.distributed._options import SAVE_SECS, Options, check_empty, savers
from phalanx.distributed._plain import digest
from phalanx.distributed._unsaved import Unsaved
from phalanx.distributed._words import check_alike, check_hooks, exchanged
from phalanx.distributed.hooks import (
    ProfilerHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    SummarySaverHook,
)
from phalanx.exceptions import PhalanxError, SessionError
from phalanx.summary import FileWriter

HEARD_SECS = 2.0

Self = TypeVar("Self", bound="Loop")
#: Fetches that hooks have added, and what becomes of them.
Step = Callable[[list[Any]], tuple[Any, list[Any], Callable[[], Mapping[str, float]]]]

_counted = (-1, 0)
_sessions: WeakSet[Loop] = WeakSet()


def _number() -> int:
    """Which session of this process this is; ranks count alike."""
    global _counted
    age, n = _counted
    n = n + 1 if age == _world.age() else 1
    _counted = (_world.age(), n)
    return n


@dataclass(frozen=True)
class Stopped:
    """Why a session has stopped. ``is_asked``: the system has asked the process to end, and the training is not finished."""

    step: int
    rank: int
    by: str
    why: str
    is_asked: bool


@dataclass
class _Failure:
    by: str
    why: str
    error: Exception | None = None


class Loop:
    """A training loop that resumes by itself and stops on all ranks after the same step."""

    _rank: int | None
    #: How long a rank that leaves by an exception waits until the others hear of it.
    _heard_secs = HEARD_SECS
    #: Steps may have different numbers, so that one which a step lacks may come later.
    _has_varied_numbers = False

    def __init__(self, options: Options) -> None:
        options = options.checked()
        self._set_out(options)
        if not _phalanx.is_initialized():
            _world.init()
        every, chief = options.everything()
        save_dir, keep, keep_every = savers(self._dir, [*every, *chief])
        if save_dir is None and options.shards != "each":
            raise ValueError("shards needs checkpoint_dir or a CheckpointSaverHook: without them nothing is saved")
        is_chief = _phalanx.place()[0] == 0
        self._save_dir = save_dir
        if self._dir is None and save_dir is not None and (is_chief or options.shards == "each"):
            check_empty(save_dir)
        hooks = [*every, *chief] if is_chief else every
        self._hooks = [hook for hook in hooks if is_chief or not getattr(hook, "_only_chief", False)]
        self._given = hooks
        self._nth = _number()
        self._core = _phalanx.SessionCore(self._nth, save_dir, keep, keep_every, options.shards == "rank0", True)
        self._rank = self._core.rank
        _sessions.add(self)
        try:
            self._create()
        except BaseException as why:
            self._abandon(why)
            raise

    def _set_out(self, options: Options, is_over: bool = False) -> None:
        """What a session has before it meets other ranks; ``is_over``: it never does (LOOP-3)."""
        self._dir = None if options.checkpoint_dir is None else fspath(options.checkpoint_dir)
        self._grace = float(options.stop_grace_period_secs)
        self._rank = None
        self._step = 0
        self._began = time.monotonic()
        self._stop: tuple[str, str] | None = None
        self._caller = "the program"
        self._failure: _Failure | None = None
        self._is_closed, self._saves, self._is_broken = is_over, False, False
        self._stopped: Stopped | None = None
        self._ending = ("the program", "the session was closed")
        self._unsaved: Unsaved | None = None
        #: The other ranks come to a boundary next, and not to a step.
        self._is_at_boundary = True
        self._writers: dict[str, FileWriter] = {}

    def _create(self) -> None:
        words = [word for word in (hook._word() for hook in self._given) if word is not None]
        check_hooks(exchanged("session.hooks", words, None, "comparing hooks"))
        for hook in self._hooks:
            self._call(hook, hook.begin)
        self._step = self._restore(self._dir is not None)
        self._began = time.monotonic()
        for hook in self._hooks:
            self._call(hook, hook.after_create_session, self, self)
        self._cross()
        if self._save_dir is not None:
            self._unsaved = Unsaved(self, self._core, self._save_dir, self._step, self._grace)

    # What a kind of session knows.

    def _restore(self, resumes: bool) -> int:
        """Takes the newest checkpoint, or what the chief begins with; the steps that are in it."""
        raise NotImplementedError

    def _save(self, about: str) -> None:
        """Has the state saved."""
        raise NotImplementedError

    def _load(self, saver: Any, path: str, strict: bool) -> None:
        """Loads parameters on all ranks."""
        raise NotImplementedError

    def _extra(self) -> dict[str, Any]:
        """What is said of a checkpoint, besides its step; ``forms`` are states of objects, by what they are called."""
        return {}

    def _record(self, on: bool) -> None:
        """Begins or ends the recording of steps."""
        raise NotImplementedError

    def _write_trace(self, folder: str) -> None:
        """Writes the recording of the last step."""

    def _leave_step(self, why: str, is_ended: bool) -> Callable[[], bool]:
        """Tells ranks that wait for this one in a step that it makes no more. With ``is_ended`` it waits for them, else for no rank.

        What it gives says whether they have been told.
        """
        raise NotImplementedError

    def _check_names(self, hook: str, names: Sequence[str]) -> None:
        """Refuses names of numbers that no step has, as far as that is known before the first one."""

    # What users call.

    @property
    def global_step(self) -> int:
        """Steps of the whole training so far."""
        return self._step

    @property
    def rank(self) -> int:
        """This process's rank; rank 0 is the chief. A parameter server has none."""
        if self._rank is None:
            raise SessionError(
                "a parameter server is no rank of the session: it has served until the workers had ended"
            )
        return self._rank

    @property
    def is_chief(self) -> bool:
        """Whether this rank restores, logs and writes summaries for all."""
        return self._rank == 0

    @property
    def checkpoint_dir(self) -> str | None:
        """Where the session resumes from and saves to."""
        return self._dir

    @property
    def stopped(self) -> Stopped | None:
        """Why the session has stopped; the same on all ranks."""
        return self._stopped

    def should_stop(self) -> bool:
        """Whether the session has stopped; the same on all ranks after each step."""
        return self._stopped is not None or self._is_closed or self._is_broken

    def request_stop(self, why: str = "it was requested") -> None:
        """All ranks stop after this step, or after the next one of this rank."""
        self._stop = self._stop or (self._caller, str(why))

    def save(self) -> None:
        """All ranks save after this step, or after the next one of this rank."""
        self._saves = True

    def close(self) -> None:
        """Ends the session on all ranks: its last step is saved, and ``done`` tells evaluators that no more comes."""
        if self._is_closed:
            return
        if self._is_broken:
            self._release(self._grace)
            return
        try:
            self._end()
        except BaseException as why:
            # What is being saved is still written, and nothing of it stays.
            self._abandon(why)
            raise

    def _end(self) -> None:
        if self._stopped is None:
            self._leave_step("", True)
        for hook in self._hooks:
            self._call(hook, hook.end, self)
        before = self._stopped
        self._stop = None if before is not None else self._ending
        self._cross(closing=True)
        # All steps are made: to be asked to end changes nothing any more.
        self._stopped = before or (self._stopped and replace(self._stopped, is_asked=False))
        is_done = before is None or not before.is_asked
        self._is_closed = True
        try:
            self._core.close(is_done, self._grace)
        finally:
            self._release()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self.close()
            return False
        if self._is_end_of_data(error):
            self._end_with(f"they ended on rank {self.rank}: {_text(error)}")
            self.close()
            if self.is_chief and self._stopped is not None:
                log(f"training has ended after step {self._step}: the data: {self._stopped.why}")
            return True
        self._abandon(error)
        return False

    def _is_end_of_data(self, error: BaseException) -> bool:
        # Also those of readers and data sets: EOFException, OutOfRangeError; and of next().
        return isinstance(error, (EOFError, StopIteration)) and not self.should_stop()

    def _end_with(self, why: str) -> None:
        """The data end; with that reason the session is closed."""
        self._ending = ("the data", why)

    # One step.

    def _run(self, args: SessionRunArgs, call: Step) -> Any:
        if self.should_stop():
            raise SessionError("the session has ended: look at should_stop() before each step")
        context = SessionRunContext(self, args, self._step + 1)
        asked = [self._call(hook, hook.before_run, context) for hook in self._hooks]
        result, results, values = call([one.fetches if isinstance(one, SessionRunArgs) else None for one in asked])
        self._step += 1
        self._is_at_boundary = True
        seen = Lazy(values)
        for hook, own in zip(self._hooks, results, strict=True):
            self._call(hook, hook.after_run, context, SessionRunValues(own, seen))
        self._cross()
        return result

    def _call(self, hook: SessionRunHook, method: Callable[..., Any], *args: Any) -> Any:
        """Calls a hook; what it raises ends the session at the next boundary (LOOP-2)."""
        self._caller = type(hook).__name__
        try:
            return method(*args)
        except PhalanxError:
            # Of an exchange between ranks, which failed on all of them.
            raise
        except Exception as why:
            if self._failure is None:
                self._failure = _Failure(type(hook).__name__, _text(why), why)
            return None
        finally:
            self._caller = "the program"

    def _cross(self, closing: bool = False) -> None:
        failure, stop, saves = self._failure, self._stop, self._saves
        self._stop, self._saves = None, False
        fail = None if failure is None else (failure.by, failure.why)
        try:
            saves, stopped = self._core.cross(self._step, stop, fail, saves)
        except BaseException as why:
            self._is_broken = True
            if not isinstance(why, Exception):
                # The program may keep the session, and other ranks may never come.
                self._release()
            if failure is not None and failure.error is not None and isinstance(why, SessionError):
                raise _noted(failure.error, why) from None
            raise
        # They come to a step next, also while this rank saves; after a stop there are none.
        self._is_at_boundary = stopped is not None
        if saves and not (closing and self._core.newest() == self._step):
            # Ranks that end each by itself may have taken different numbers of batches.
            self._save(json.dumps(self._about(not closing or self._stopped is not None), allow_nan=False))
        if self._unsaved is not None:
            self._unsaved.made(self._step, saves)
        if stopped is not None:
            self._stopped = Stopped(*stopped)

    def _about(self, is_even: bool) -> dict[str, Any]:
        """What is said of a checkpoint. ``is_even``: all ranks have made the same steps, and have the same states (LOOP-4)."""
        extra: dict[str, Any] = {}
        failure = None
        try:
            extra = self._extra()
        except Exception as why:
            failure = why
        forms: dict[str, Any] = extra.pop("forms", {})
        if is_even and self._core.n_ranks > 1:
            own = {name: digest(form) for name, form in forms.items()}
            check_alike(exchanged("session.states", own, failure, "saving"))
        elif failure is not None:
            raise failure
        epoch = next(filter(_is_epoch, (form.get("epoch") for form in forms.values() if isinstance(form, dict))), 0)
        return {"step": self._step, "epoch": epoch, "seed": 0, "run": 0, "world": 0, **extra}

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _act(self, hook: SessionRunHook, actions: Sequence[_phalanx.HookAction]) -> None:
        by = type(hook).__name__
        for kind, text, number in actions:
            if kind == "stop":
                self._stop = self._stop or (by, text)
            elif kind == "fail":
                self._failure = self._failure or _Failure(by, text)
            elif kind == "save":
                self._saves = True
            elif kind == "log" and self.is_chief:
                log(text)
            elif kind == "summary" and self.is_chief:
                folder = getattr(hook, "output_dir", None) or (
                    self._dir if isinstance(hook, SummarySaverHook) else None
                )
                if folder is not None:
                    self._writer(folder).add_scalar(text, number, self._step)
            elif kind == "profile":
                assert isinstance(hook, ProfilerHook), "nobody else records"
                hook._is_on = bool(number)
                self._record(hook._is_on)

    def _writer(self, folder: str) -> FileWriter:
        if folder not in self._writers:
            self._writers[folder] = FileWriter(folder)
        return self._writers[folder]

    # The end.

    def _abandon(self, error: BaseException) -> None:
        """Ends the session without the others, which learn of it at the end of their step, or in it."""
        if self._is_closed:
            return
        if not self._is_broken:
            self._is_broken = True
            why = _text(error)
            is_alone = self._core.n_ranks == 1
            is_told = _nobody_told if is_alone or self._is_at_boundary else self._leave_step(why, False)
            # Other ranks that are about to end a step hear of it, and say so.
            may_live_on = isinstance(error, Exception)
            knows = is_told()
            patience = max(0.5, min(self._grace, HEARD_SECS if knows else self._heard_secs))
            if not may_live_on and not is_alone:
                patience = 0.0
            has_left = self._core.leave(self._step, "the program", why, patience, None if knows else is_told)
            if may_live_on and not is_alone and not has_left and not is_told():
                self._give_up(why)
            # What is being saved needs all ranks, and those that have heard of it wait for that, too.
            self._release((self._grace if may_live_on else HEARD_SECS) if has_left else 0.0)
        else:
            self._release(self._grace if isinstance(error, Exception) else 0.0)

    def _give_up(self, why: str) -> None:
        """Ends the world (LOOP-5): the other ranks wait somewhere for this one, whose process may live on."""
        try:
            _phalanx.give_up(f"its program left the session after step {self._step}: {why}")
        except PhalanxError:
            # It has ended already, which others have said.
            return

    def _release(self, secs: float = 0.0) -> None:
        """Gives the directory back, once what is being saved is written; waits no longer than that for it."""
        self._is_closed = True
        if self._unsaved is not None:
            self._unsaved.close()
        try:
            self._core.close(False, secs)
        except (PhalanxError, TimeoutError, OSError) as why:
            if secs > 0.0:
                log(f"the last checkpoint was not written: {why}")
        finally:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()


def _is_epoch(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_saved_to(folder: str) -> bool:
    """Whether a session of this process saves there."""
    each = (session._save_dir for session in _sessions if not session._is_closed)
    return any(own is not None and abspath(own) == abspath(folder) for own in each)


def extra_of(found: _phalanx.RestoredFrom) -> dict[str, Any]:
    """What a session has said of a checkpoint; a Saver and sessions of Rust say nothing."""
    extra: dict[str, Any] = json.loads(found[0]).get("extra") or {}
    return extra


def join(task_spec: Any) -> bool:
    """Joins the world: as this task, or as the launcher says. ``False``: it is a parameter server, and has served (LOOP-3)."""
    if task_spec is None:
        _world.init()
        return True
    if task_spec.is_evaluator():
        raise ValueError("an evaluator does not train: call evaluate_continuously(), not a session")
    is_ps: bool = task_spec.is_ps()
    if not (task_spec._has_served if is_ps else _phalanx.is_initialized()):
        task_spec.create_server()
    return not is_ps


def _nobody_told() -> bool:
    return False


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _noted(error: Exception, why: SessionError) -> Exception:
    if hasattr(error, "add_note"):
        error.add_note(f"phalanx: {why}")
    return error


__all__ = ["SAVE_SECS", "Loop", "Options", "Stopped"]
