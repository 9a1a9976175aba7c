"""Sessions that train static programs, with TensorLayer's names.

>>> import numpy as np
>>> from phalanx import distributed, graph
>>> main, startup = graph.Program(), graph.Program()
>>> with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
...     x = graph.data("x", [None, 1])
...     loss = graph.layers.mean(graph.layers.square(graph.layers.fc(x, 1, bias_attr=False)))
...     _ = graph.optimizer.SGD(learning_rate=0.1).minimize(loss)
...     with distributed.DistributedSession(hooks=[distributed.StopAtStepHook(num_steps=3)]) as session:
...         while not session.should_stop():
...             value = session.run(loss, feed_dict={"x": np.ones([4, 1], "float32")})
>>> session.global_step, session.stopped.by
(3, 'StopAtStepHook')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, makedirs, path
from typing import Any

import numpy as np

from phalanx import _phalanx
from phalanx.data.sampler import Sampler
from phalanx.distributed._log import log, tell
from phalanx.distributed._loop import SAVE_SECS, Loop, Options, extra_of, join
from phalanx.distributed._plain import filled, hollow
from phalanx.distributed._words import exchanged
from phalanx.distributed.hooks import SessionRunArgs, SessionRunHook
from phalanx.distributed.saver import Saver
from phalanx.exceptions import CheckpointError, SessionError
from phalanx.graph import _feed, _prune
from phalanx.graph._feed import Fetch
from phalanx.graph.compiler import CompiledProgram, _loss_of
from phalanx.graph.errors import FetchError, LossError, StrategyError
from phalanx.graph.executor import begin
from phalanx.graph.parallel_executor import ParallelExecutor
from phalanx.graph.program import Program, Variable, default_main_program, default_startup_program
from phalanx.graph.scope import Scope, global_scope
from phalanx.graph.strategy import BuildStrategy, ExecutionStrategy


@dataclass
class Scaffold:
    """What a session trains: the default programs, unless others are given.

    ``loss`` is what was minimized, unless it is given. ``devices`` is the number of devices of each rank. ``state`` are
    objects with ``state_dict()`` and ``load_state_dict()`` that are saved and resumed, too, such as a
    ``phalanx.data.Sampler``. Their states consist of numbers, texts, lists, tuples and dicts. All ranks begin with those of
    rank 0, and they must stay the same on all ranks.
    """

    program: Program | CompiledProgram | None = None
    startup: Program | None = None
    loss: Variable | str | None = None
    build_strategy: BuildStrategy | None = None
    devices: int | None = None
    state: Sequence[Any] = ()


class DistributedSession(Loop):
    """Trains a static program with all ranks: resumes by itself, saves beside the training, stops on all ranks after one step.

    - ``task_spec``: who this process is; ``None`` for the world of ``phalanx run``, or this process alone. A parameter
      server serves until the workers have ended; its session makes no steps.
    - ``checkpoint_dir``: the newest whole checkpoint in it is taken over, and the session saves there. Without it
      nothing is saved.
    - ``scaffold``: what is trained. Variables that the scope does not have are initialized by the startup program.
    - ``hooks`` are called on all ranks, ``chief_only_hooks`` on rank 0.
    - ``save_checkpoint_secs``: how often to save, besides at the end; ``None``: only when a hook or SIGTERM asks for
      it.
    - ``save_summaries_steps``, ``save_summaries_secs``: how often fetched numbers are written to ``checkpoint_dir``
      for TensorBoard.
    - ``config``: an ``ExecutionStrategy``.
    - ``stop_grace_period_secs``: how long :meth:`close` waits until the last checkpoint is written.
    - ``log_step_count_steps``: how often steps per second are printed; ``None``: never.
    - ``shards``: ``"each"``: each rank writes its share of a checkpoint to a directory that all hosts see;
      ``"rank0"``: ranks send their shares to rank 0, which writes all of it, so that only rank 0's directory counts.

    An exception inside of the ``with`` block ends the session at once, without the mark ``done``; the other ranks are
    told. The end of the data, a ``StopIteration`` or an ``EOFError`` such as ``OutOfRangeError``, ends it on all ranks in
    good order; :attr:`stopped` says so. Without ``with``, call :meth:`close`: the last steps are saved by it.
    """

    #: Other ranks hear of it in their next step, and keep their world.
    _heard_secs = 10.0

    def __init__(
        self,
        task_spec: Any = None,
        checkpoint_dir: str | PathLike[str] | None = None,
        scaffold: Scaffold | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        chief_only_hooks: Iterable[SessionRunHook] | None = None,
        save_checkpoint_secs: float | None = SAVE_SECS,
        save_summaries_steps: int | None = None,
        save_summaries_secs: float | None = None,
        config: ExecutionStrategy | None = None,
        stop_grace_period_secs: float = 120,
        log_step_count_steps: int | None = 100,
        shards: str = "each",
    ) -> None:
        options = Options(
            checkpoint_dir,
            hooks,
            chief_only_hooks,
            save_checkpoint_secs,
            save_summaries_steps,
            save_summaries_secs,
            stop_grace_period_secs,
            log_step_count_steps,
            shards,
        )
        if scaffold is not None and not isinstance(scaffold, Scaffold):
            raise TypeError(f"scaffold must be a Scaffold, not a {type(scaffold).__name__}")
        if config is not None and not isinstance(config, ExecutionStrategy):
            raise TypeError(f"config must be an ExecutionStrategy, not a {type(config).__name__}")
        options.checked()
        if not join(task_spec):
            self._set_out(options, is_over=True)
            return
        made = scaffold or Scaffold()
        self._program = _program(made.program)
        self._scope = global_scope()
        if made.build_strategy is not None and made.build_strategy.async_mode:
            raise StrategyError("async_mode has no steps to count: use ParallelExecutor for it", var="async_mode")
        loss = made.loss if made.loss is not None else _loss_of(self._program)
        if loss is None:
            raise LossError("the program has nothing to learn: call minimize() of an optimizer first")
        self._loss = loss if isinstance(loss, str) else loss.name
        initialise(self._scope, self._program, made.startup or default_startup_program())
        self._exe = self._executor(loss, made, config)
        self._has_left = False
        if hasattr(made.state, "state_dict"):
            raise TypeError(
                f"Scaffold.state takes a list of objects, not a {type(made.state).__name__}: write state=[…]"
            )
        self._state = list(made.state)
        for one in self._state:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise TypeError(
                    f"Scaffold.state has a {type(one).__name__}, which has no state_dict() and load_state_dict()"
                )
        super().__init__(options)

    def _executor(self, loss: Variable | str, made: Scaffold, config: ExecutionStrategy | None) -> ParallelExecutor:
        """What makes the steps."""
        return ParallelExecutor(
            loss_name=loss,
            main_program=self._program,
            exec_strategy=config,
            build_strategy=made.build_strategy,
            scope=self._scope,
            devices=made.devices,
        )

    def run(self, fetches: Any = None, feed_dict: Any = None) -> Any:
        """One step. ``fetches`` is a variable or its name, a list or a dict of them; what is returned has the same form.

        Hooks see every fetched variable that is one number; that of several devices is their mean.
        """
        form = _Form(fetches)
        return self._run(SessionRunArgs(fetches, feed_dict), lambda extra: self._train(form, extra, feed_dict))

    def _train(
        self, form: _Form, extra: list[Any], feed_dict: Any
    ) -> tuple[Any, list[Any], Callable[[], Mapping[str, float]]]:
        forms = [_Form(fetches, "mean") for fetches in extra]
        fetched = [*form.fetch, *(one for each in forms for one in each.fetch)]
        try:
            out = self._exe.run(fetched, feed=feed_dict)
        except BaseException:
            # The other ranks have it, too, or were told of it: telling them again would wait for them.
            self._has_left = True
            raise
        at = len(form.fetch)
        results = []
        for each in forms:
            results.append(each.filled(out[at : at + len(each.fetch)]))
            at += len(each.fetch)
        return form.filled(out[: len(form.fetch)]), results, lambda: self._numbers(fetched, out)

    def _numbers(self, fetched: list[Any], out: list[Any]) -> dict[str, float]:
        values: dict[str, float] = {}
        for one, value in zip(fetched, out, strict=True):
            name = _name(one)
            found = self._program._graph.var(name)
            if found is not None and all(d == 1 for d in found[1]) and not isinstance(value, list):
                values[name] = float(np.mean(value))
        return values

    # What the loop asks for.

    def _restore(self, resumes: bool) -> int:
        found = None
        if resumes:
            found = self._core.restore_graph(self._program._graph, self._scope._store, None, "exact", True)
        if found is None:
            self._begin_alike()
            return 0
        states = extra_of(found).get("state")
        if states is None and self._state:
            raise CheckpointError(
                f"the checkpoint {found[1]} has no state of a session, and Scaffold.state has {len(self._state)} objects: "
                "a Saver or a session in Rust has made it; begin with LoadCheckpoint and another checkpoint_dir, or go on "
                "without Scaffold.state"
            )
        states = states or []
        if len(states) != len(self._state):
            raise CheckpointError(
                f"the checkpoint {found[1]} has the states of {len(states)} objects, and Scaffold.state has {len(self._state)}"
            )
        for one, state in zip(self._state, states, strict=True):
            one.load_state_dict(filled(state, {}))
        return tell(found, self.is_chief)

    def _forms(self) -> dict[str, Any]:
        named = {f"Scaffold.state[{i}]": one for i, one in enumerate(self._state)}
        return {f"{name}, a {type(one).__name__}": hollow(one.state_dict(), name) for name, one in named.items()}

    def _begin_alike(self) -> None:
        """Other ranks take over the states of the chief's objects, as they do when they go on from a checkpoint."""
        if self._core.n_ranks == 1:
            return
        forms: dict[str, Any] = {}
        failure = None
        try:
            forms = self._forms()
        except Exception as why:
            failure = why
        mine = forms if self.is_chief else list(forms)
        told = exchanged("session.begin", mine, failure, "reading the states of Scaffold.state")
        for rank, names in enumerate(told[1:], 1):
            if names != list(told[0]):
                text = f"Scaffold.state has {', '.join(names) or 'nothing'} on rank {rank}, {', '.join(told[0]) or 'nothing'} on rank 0"
                raise SessionError(f"{text}: give all ranks the same objects", rank=rank)
        for one, form, wanted in zip(self._state, forms.values(), told[0].values(), strict=True):
            if form != wanted:
                one.load_state_dict(filled(wanted, {}))

    def _extra(self) -> dict[str, Any]:
        forms = self._forms()
        sampler = next((one.state_dict() for one in self._state if isinstance(one, Sampler)), None)
        return {"sampler": sampler, "extra": {"state": list(forms.values())}, "forms": forms}

    def _save(self, about: str) -> None:
        # All ranks save after the same step.
        self._exe.gather()
        self._core.save_graph(self._program._graph, self._scope._store, about)

    def _load(self, saver: Any, path: str, strict: bool) -> None:
        if saver is not None and not isinstance(saver, Saver):
            raise TypeError(f"saver must be a Saver or None, not a {type(saver).__name__}")
        graph = self._program._graph if saver is None else saver._graph()
        strictness = "subset" if strict else "partial"
        found = self._core.restore_graph(graph, self._scope._store, path, strictness, False)
        if found is not None and not strict and self.is_chief:
            for left in found[3]:
                log(f"{path}: left as it is: {left}")

    def _record(self, on: bool) -> None:
        self._exe.record(on)

    def _write_trace(self, folder: str) -> None:
        trace = self._exe.trace()
        if trace is not None:
            makedirs(folder, exist_ok=True)
            with open(path.join(folder, f"timeline-{self.global_step}.rank{self.rank}.json"), "w") as file:
                file.write(trace)

    def _leave_step(self, why: str, is_ended: bool) -> Callable[[], bool]:
        if self._has_left or self._core.n_ranks == 1:
            return lambda: True
        self._has_left = True
        executor = self._exe._exe
        assert isinstance(executor, _phalanx.GraphParallelExecutor), "async_mode was refused"
        executor.give_up(why, is_ended)
        # They are told when they come to a step, and then to the boundary, too.
        return lambda: is_ended

    def _check_names(self, hook: str, names: Sequence[str]) -> None:
        odd = next((name for name in names if self._program._graph.var(name) is None), None)
        if odd is not None:
            raise ValueError(
                f"{hook} looks at {odd!r}, which is not a variable of the program: give it a variable, such as the loss, which is "
                f"called {self._loss!r}"
            )


#: TensorLayer's later name.
create_distributed_session = DistributedSession


def _program(given: Program | CompiledProgram | None) -> Program:
    program = given._program if isinstance(given, CompiledProgram) else given
    program = default_main_program() if program is None else program
    if not isinstance(program, Program):
        raise TypeError(f"a Scaffold has a Program, not a {type(program).__name__}")
    return program


def initialise(scope: Scope, program: Program, startup: Program) -> None:
    """Gives variables that the scope does not have their first values; others keep theirs."""
    wanted = {name for name, kind in program._graph.vars() if kind in ("parameter", "state")}
    missing = wanted - set(scope.names())
    if not missing:
        return
    # All of them get their first values; those that had others get them back.
    kept = {name: scope[name] for name, _ in startup._graph.vars() if name in scope}
    begin(scope, startup, kept)


class _Form:
    """What is fetched, as a list, and how results are given back."""

    def __init__(self, fetches: Any, merge: str | None = None) -> None:
        self._keys: list[Any] | None = None
        self._is_one = False
        if fetches is None:
            fetches = []
        elif isinstance(fetches, Mapping):
            self._keys, fetches = list(fetches), list(fetches.values())
        elif isinstance(fetches, (str, Variable, Fetch)):
            self._is_one, fetches = True, [fetches]
        fetches, _ = _prune.split(fetches)
        if not isinstance(fetches, (list, tuple)):
            raise FetchError(f"fetches must be variables, names, or a list or dict of them, not {fetches!r}")
        self.fetch = [one if merge is None else Fetch(_name(one), merge) for one in fetches]

    def filled(self, out: list[Any]) -> Any:
        """The results in the form of what was asked for."""
        if self._keys is not None:
            return dict(zip(self._keys, out, strict=True))
        return out[0] if self._is_one else out


def _name(one: Any) -> str:
    ((name, _),) = _feed.fetches([one], True)
    return name


__all__ = ["DistributedSession", "Scaffold", "create_distributed_session"]
