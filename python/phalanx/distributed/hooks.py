"""Hooks: they look at the steps of a session and say what shall happen. Their names are TensorFlow's and TensorLayer's.

>>> class Steps(SessionRunHook):
...     def after_run(self, run_context, run_values):
...         if run_context.step == 3:
...             run_context.request_stop("three steps are enough")

A hook of your own may raise: then all ranks stop after that step, and every rank is told which rank and which hook it
was.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from phalanx import _phalanx
from phalanx.distributed._log import warn

if TYPE_CHECKING:
    from phalanx.distributed._loop import Loop
    from phalanx.distributed.saver import Saver


@dataclass
class SessionRunArgs:
    """What is run: fetches and feeds. A hook that returns one from ``before_run`` has its fetches added."""

    fetches: Any
    feed_dict: Any = None


@dataclass
class SessionRunValues:
    """What came of a step: ``results`` of the hook's own fetches, and all fetched numbers by name."""

    results: Any
    values: Mapping[str, float] = field(default_factory=dict)


class SessionRunContext:
    """The step that a hook looks at."""

    def __init__(self, session: Loop, original_args: SessionRunArgs, step: int) -> None:
        self._session, self._args, self._step = session, original_args, step
        self._stops = False

    @property
    def session(self) -> Loop:
        """The session."""
        return self._session

    @property
    def original_args(self) -> SessionRunArgs:
        """What ``run`` was called with."""
        return self._args

    @property
    def step(self) -> int:
        """The number of this step in the whole training, from 1."""
        return self._step

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has requested a stop in this step."""
        return self._stops

    def request_stop(self, why: str = "it was requested") -> None:
        """All ranks stop after this step."""
        self._stops = True
        self._session.request_stop(why)


class SessionRunHook:
    """Override what you need. The order is ``begin``, ``after_create_session``, then for each step ``before_run`` and
    ``after_run``, and at last ``end``. After an error ``end`` is not called.
    """

    def begin(self) -> None:
        """The session is about to be made."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """The session has its values. ``coord`` is the session, too: it has ``request_stop()`` and ``should_stop()``."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """A step is about to run; what is returned is fetched as well."""
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """A step has ended."""

    def end(self, session: Any) -> None:
        """The session is about to end."""

    def _word(self) -> tuple[str, str] | None:
        """What ranks compare before a session begins: which of them act on the hook, and how it is called."""
        return None


class _Decided(SessionRunHook):
    """A hook whose decisions are made by the compiled module; the session does what they say."""

    #: One rank's clock decides, or only one rank has something to do.
    _only_chief = False
    output_dir: str | None = None

    def __init__(self, make: Callable[[], _phalanx.SessionHook], tensors: Any = None) -> None:
        self._make = make
        self._core = make()
        self._tensors = _named(tensors)
        self._look_anew()

    def begin(self) -> None:
        """Begins anew, so that a hook can be used by one session after the other."""
        self._core = self._make()
        self._look_anew()

    def _look_anew(self) -> None:
        #: Names that no step has had so far, and numbers that one has had.
        self._missing = set(self._tensors.values())
        self._known: list[str] = []
        self._has_looked = False

    def _word(self) -> tuple[str, str] | None:
        return ("chief", type(self).__name__) if self._only_chief else None

    def after_create_session(self, session: Any, coord: Any) -> None:
        session._check_names(type(self).__name__, list(self._tensors.values()))
        session._act(self, self._core.begin(session.global_step))

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        run_context.session._act(self, self._core.before(run_context.step))
        return SessionRunArgs(list(self._tensors.values())) if self._tensors else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        session = run_context.session
        seen = self._seen(session, run_values.values)
        if seen is not None:
            session._act(self, self._core.after(run_context.step, session._seconds(), seen))

    def end(self, session: Any) -> None:
        session._act(self, self._core.end(session.global_step))
        if self._has_looked and self._missing and session.is_chief:
            numbers = f"the numbers of a step were {', '.join(self._known)}" if self._known else "no step had numbers"
            warn(f"{type(self).__name__} looked at {_quoted(self._missing)}, and no step had a number of that name: {numbers}")

    def _seen(self, session: Loop, values: Mapping[str, float]) -> list[tuple[str, float]] | None:
        """The values under the names that this hook has for them; ``None``: it has nothing to look at.

        A name that the first step with numbers does not have is told, and refused where each step has the same numbers.
        """
        self._has_looked = True
        if self._missing and values:
            is_first = not self._known
            self._known = list(values)
            self._missing -= values.keys()
            if self._missing and is_first:
                text = (
                    f"{type(self).__name__} looks at {_quoted(self._missing)}, and the step has no number of that name: its numbers are "
                    f"{', '.join(values)}"
                )
                if not session._has_varied_numbers:
                    raise ValueError(text)
                if session.is_chief:
                    warn(f"{text}; the hook waits for a step that has it")
        own = {tag: values[name] for tag, name in self._tensors.items() if name in values}
        return list({**values, **own}.items())


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def _named(tensors: Any) -> dict[str, str]:
    """Names of tensors by tags."""
    if tensors is None:
        return {}
    if isinstance(tensors, Mapping):
        return {str(tag): _name(tensor) for tag, tensor in tensors.items()}
    each = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return {_name(tensor): _name(tensor) for tensor in each}


def _name(tensor: Any) -> str:
    name = tensor if isinstance(tensor, str) else getattr(tensor, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"a tensor is given by its name, or is a variable of a program, not a {type(tensor).__name__}")
    return name


class StopAtStepHook(_Decided):
    """All ranks stop after ``num_steps`` steps of this session, or after step ``last_step`` of the whole training.

    A training that has ``last_step`` steps already makes no more.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        steps, last = _number_of_steps("num_steps", num_steps), _number_of_steps("last_step", last_step)
        super().__init__(lambda: _phalanx.SessionHook.stop_at_step(steps, last))


def _number_of_steps(name: str, given: Any) -> int | None:
    """A whole number, also one of numpy's."""
    if given is None:
        return None
    try:
        number = -1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"{name} must be a whole number from 0, not {given!r}")
    return number


class StopAtTimeHook(_Decided):
    """All ranks stop after the step in which the first of them has trained for ``time_running`` seconds.

    Without time, 0 or less, they stop after one step.
    """

    def __init__(self, time_running: float) -> None:
        super().__init__(lambda: _phalanx.SessionHook.stop_at_time(time_running))


class CheckpointSaverHook(_Decided):
    """Saves to ``checkpoint_dir`` every ``save_secs`` seconds or ``save_steps`` steps, and at the end.

    The newest ``keep`` checkpoints stay, and those whose step is a multiple of ``keep_every``. Rank 0's clock
    decides. The directory is that of the session, if it has one; otherwise it must not have checkpoints yet, because
    the session does not go on from them.
    """

    _only_chief = True

    def __init__(
        self,
        checkpoint_dir: str | PathLike[str],
        save_secs: float | None = None,
        save_steps: int | None = None,
        keep: int | None = None,
        keep_every: int | None = None,
    ) -> None:
        super().__init__(lambda: _phalanx.SessionHook.save(save_steps, save_secs))
        self.checkpoint_dir = fspath(checkpoint_dir)
        self.keep, self.keep_every = keep, keep_every
        self._settings = {"save_secs": save_secs, "save_steps": save_steps, "keep": keep, "keep_every": keep_every}

    def _word(self) -> tuple[str, str]:
        given = ", ".join(f"{name}={value!r}" for name, value in self._settings.items() if value is not None)
        return "chief", f"CheckpointSaverHook({given})"


class SummarySaverHook(_Decided):
    """Rank 0 writes fetched numbers for TensorBoard to ``output_dir``: all of them, or ``tensors``.

    Without ``output_dir`` they go to the session's ``checkpoint_dir``.
    """

    _only_chief = True

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | PathLike[str] | None = None,
        tensors: Any = None,
    ) -> None:
        names = list(_named(tensors)) or None
        super().__init__(lambda: _phalanx.SessionHook.summaries(names, save_steps, save_secs), tensors)
        self.output_dir = None if output_dir is None else fspath(output_dir)


class LoggingTensorHook(_Decided):
    """Rank 0 prints numbers every ``every_n_iter`` steps or ``every_n_secs`` seconds: all fetched ones, or ``tensors``.

    ``tensors`` is a list of variables or names, or a dict of them by the names to be printed. The lines go to the
    logger ``phalanx.session``; if the program has set up no logging, to the standard error output.
    """

    _only_chief = True

    def __init__(self, tensors: Any = None, every_n_iter: int | None = None, every_n_secs: float | None = None) -> None:
        names = list(_named(tensors)) or None
        super().__init__(lambda: _phalanx.SessionHook.logging(names, every_n_iter, every_n_secs), tensors)


class StepCounterHook(_Decided):
    """Rank 0 prints how many steps a second are made, and writes it to ``output_dir`` for TensorBoard, if there is one."""

    _only_chief = True

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | PathLike[str] | None = None,
    ) -> None:
        steps = None if every_n_secs is not None and every_n_steps == 100 else every_n_steps
        super().__init__(lambda: _phalanx.SessionHook.step_counter(steps, every_n_secs))
        self.output_dir = None if output_dir is None else fspath(output_dir)


class NanTensorHook(_Decided):
    """All ranks stop when the loss of one of them is not finite; with ``fail_on_nan_loss`` that is an error on all ranks."""

    def __init__(self, loss_tensor: Any = "loss", fail_on_nan_loss: bool = True) -> None:
        loss = _name(loss_tensor)
        super().__init__(lambda: _phalanx.SessionHook.nan(loss, fail_on_nan_loss), [loss])
        self._loss = loss

    def _seen(self, session: Loop, values: Mapping[str, float]) -> list[tuple[str, float]] | None:
        seen = super()._seen(session, values)
        return None if session._has_varied_numbers and self._loss not in values else seen


class EarlyStoppingHook(_Decided):
    """All ranks stop when a number has not become better in ``patience`` looks, one every ``every_n_steps`` steps.

    ``min_delta`` is how much better counts. Each rank looks at its own number; the first that has enough stops all.
    """

    def __init__(
        self,
        tensor: Any = "loss",
        patience: int = 10,
        min_delta: float = 0.0,
        mode: str = "min",
        every_n_steps: int | None = 1,
        every_n_secs: float | None = None,
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f'mode must be "min" or "max", not {mode!r}')
        if patience < 1:
            raise ValueError(f"patience must be a whole number from 1, not {patience!r}")
        name, steps = _name(tensor), None if every_n_secs is not None and every_n_steps == 1 else every_n_steps
        make = _phalanx.SessionHook.early_stopping
        super().__init__(lambda: make(name, mode == "max", min_delta, patience, steps, every_n_secs), [name])


class ProfilerHook(_Decided):
    """Records when the operations of a step run: one step in every ``steps``, or those of ``range``, on ``ranks`` or on all.

    Each recorded step is a file ``timeline-<step>.rank<rank>.json`` in ``output_dir``, for Perfetto or
    ``chrome://tracing``. Only sessions of static programs can be recorded.
    """

    def __init__(
        self,
        steps: int | None = None,
        range: Sequence[int] | None = None,
        ranks: Sequence[int] | None = None,
        output_dir: str | PathLike[str] = ".",
    ) -> None:
        # Also Python's own range, whose end is not in it either.
        span = None if range is None else (min(range, default=0), max(range, default=-1) + 1)
        if range is not None and not _is_builtin_range(range):
            span = (range[0], range[1])
        super().__init__(lambda: _phalanx.SessionHook.profiler(span, steps))
        self.ranks = None if ranks is None else frozenset(ranks)
        self.output_dir = fspath(output_dir)
        self._is_on = False

    def before_run(self, run_context: SessionRunContext) -> None:
        if self.ranks is None or run_context.session.rank in self.ranks:
            super().before_run(run_context)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._is_on and self.output_dir is not None:
            run_context.session._write_trace(self.output_dir)
        super().after_run(run_context, run_values)


def _is_builtin_range(given: Any) -> bool:
    return isinstance(given, range)


class LoadCheckpoint(SessionRunHook):
    """Loads parameters before the first step: rank 0 reads them, and all ranks have them.

    ``checkpoint`` is a checkpoint, or a directory of which the newest one is taken. ``saver`` says what is loaded;
    with ``None`` that is all that the session trains. ``strict``: what the checkpoint does not have, or has in
    another shape, is an error that names all of it; otherwise it is left as it is, and printed. A session that goes
    on from a checkpoint of its own keeps what it has.
    """

    def __init__(self, saver: Saver | None, checkpoint: str | PathLike[str], strict: bool = True) -> None:
        self.saver, self.checkpoint, self.strict = saver, fspath(checkpoint), strict

    def _word(self) -> tuple[str, str]:
        return "all", "LoadCheckpoint"

    def after_create_session(self, session: Any, coord: Any) -> None:
        if session.global_step == 0:
            session._load(self.saver, self.checkpoint, self.strict)


__all__ = [
    "CheckpointSaverHook",
    "EarlyStoppingHook",
    "LoadCheckpoint",
    "LoggingTensorHook",
    "NanTensorHook",
    "ProfilerHook",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "StopAtTimeHook",
    "SummarySaverHook",
]
