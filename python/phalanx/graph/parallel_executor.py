"""Runs a program on several devices at once.

>>> import numpy as np
>>> from phalanx import graph
>>> main, startup = graph.Program(), graph.Program()
>>> with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
...     x = graph.data("x", [None, 1])
...     loss = graph.layers.mean(graph.layers.fc(x, 1, bias_attr=False))
...     _ = graph.optimizer.SGD(learning_rate=0.5).minimize(loss)
...     _ = graph.Executor().run(startup)
...     exe = graph.ParallelExecutor(use_cuda=False, loss_name=loss.name, main_program=main, devices=2)
...     losses, = exe.run(fetch_list=[loss], feed={"x": np.ones([4, 1], "float32")})
>>> losses.shape
(2,)
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakKeyDictionary, ref

from phalanx import _phalanx
from phalanx._accord import Accord
from phalanx.graph import _feed, _numbers, _printing, _profiling, _values
from phalanx.graph._fitting import Fitted
from phalanx.graph._flags import checks_numbers
from phalanx.graph._hogwild import Asynchronous
from phalanx.graph._taken import Taken
from phalanx.graph.errors import (
    EOFException,
    FeedError,
    FetchError,
    GraphError,
    LossError,
    StrategyError,
    UninitialisedError,
)
from phalanx.graph.places import no_cuda
from phalanx.graph.program import Program, Variable, default_main_program
from phalanx.graph.scope import Scope, global_scope
from phalanx.graph.strategy import BuildForm, BuildStrategy, ExecutionStrategy

STARTUP = "; run the startup program first: Executor(CPUPlace()).run(default_startup_program())"


def explained(why: UninitialisedError) -> UninitialisedError:
    """With what to do about it."""
    return UninitialisedError(str(why) + STARTUP, var=why.var, site=why.site, wanted=why.wanted, got=why.got)


class ParallelExecutor:
    """Runs a program on several devices; each gets its share of what is fed.

    ``devices`` is their number; the default is ``CPU_NUM``, or one for each core. ``loss_name`` names the variable that
    was minimized. With ``share_vars_from``, it uses the parameters that the other executor has after its last run.
    """

    #: What of the program is on servers; ``phalanx.parallax`` says so.
    _tables: _phalanx.GraphTables | None = None

    def __init__(
        self,
        use_cuda: bool = False,
        loss_name: str | Variable | None = None,
        main_program: Program | None = None,
        share_vars_from: ParallelExecutor | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        build_strategy: BuildStrategy | None = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Scope | None = None,
        *,
        devices: int | None = None,
    ) -> None:
        no_cuda(use_cuda)
        program = default_main_program() if main_program is None else main_program
        _check(Program, main_program=program)
        _check(ParallelExecutor, share_vars_from=share_vars_from)
        _check(ExecutionStrategy, exec_strategy=exec_strategy)
        _check(BuildStrategy, build_strategy=build_strategy)
        _check(Scope, scope=scope)
        build: BuildStrategy = (build_strategy or BuildStrategy())._copy()
        build.check_nan_inf = build.check_nan_inf or checks_numbers()
        execution: ExecutionStrategy = (exec_strategy or ExecutionStrategy())._copy()
        if num_trainers != 1 or trainer_id != 0:
            build.num_trainers, build.trainer_id = num_trainers, trainer_id
        if devices is not None and (isinstance(devices, bool) or not isinstance(devices, int) or devices < 1):
            raise StrategyError(
                f"devices={devices!r}; it must be a whole number from 1", var="devices", got=repr(devices)
            )
        loss = loss_name.name if isinstance(loss_name, Variable) else loss_name
        if loss:
            _check_ranks()
        self._scope = _shared_scope(share_vars_from, scope)
        self._program = program.clone()
        # Loaders may still come.
        self._program._readers = program._readers
        self._program._origin = (ref(program), "executor")
        self._has_run = self._records = False
        self._check = build.check_nan_inf
        self._pieces = build.accumulate
        self._accord: Accord | None = None
        self._number = self._numbered(program) if loss else None
        self._exe: Asynchronous | _phalanx.GraphParallelExecutor
        # The one of the last run.
        self._ran: Asynchronous | _phalanx.GraphParallelExecutor
        # Those for feeds of other sizes, in the same scope.
        self._fitted = Fitted()
        self._others: WeakKeyDictionary[Program, _phalanx.GraphParallelExecutor] = WeakKeyDictionary()
        if build.async_mode and program._prints:
            raise StrategyError(
                "Print shows values when a run ends, but async_mode has many updates in one; leave it out"
            )
        if build.async_mode:
            self._exe = self._ran = Asynchronous(self._program, loss, build, execution, devices)
            return

        def made(program: Program) -> _phalanx.GraphParallelExecutor:
            return _phalanx.GraphParallelExecutor(
                program._graph,
                loss or None,
                BuildForm(build),
                execution,
                devices,
                program._seed(),
                self._number,
                self._tables,
            )

        self._made = made
        try:
            self._exe = self._ran = made(self._program)
        except LossError as why:
            raise _explained_loss(program, why) from None
        except GraphError as why:
            raise _explained_rate(program, why) from None
        if self._exe.devices > 1 or (loss and _phalanx.is_initialized() and _phalanx.place()[1] > 1):
            _check_shares(program)
            _check_counts(program)
        if share_vars_from is not None and share_vars_from._has_run:
            self._prepare()
        if loss and _phalanx.is_initialized() and _phalanx.place()[1] > 1:
            self._accord = Accord("a program that ranks train together", self._described)

    def _described(self) -> list[str]:
        """What must be equal on all ranks."""
        lines = [f"line {i}: {line.strip()}" for i, line in enumerate(str(self._program).splitlines(), 1)]
        own = ("trainer_id", "num_threads", "debug_graphviz_path")
        settings = [f"{name}={value}" for name, value in self.effective.items() if name not in own]
        return [*lines, *settings, _numbers.described(self._number)]

    def _numbered(self, program: Program) -> int | None:
        """Which of the executors of equal programs this is."""
        return _numbers.number(program)

    def _prepare(self) -> None:
        try:
            self._exe.prepare(self._scope._store)
        except UninitialisedError as why:
            raise explained(why) from None

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self._exe.devices

    @property
    def effective(self) -> dict[str, Any]:
        """The strategies in effect, with all defaults filled in."""
        return self._exe.effective()

    def run(
        self,
        fetch_list: Any,
        feed: Any = None,
        feed_dict: Any = None,
        return_numpy: bool = True,
        return_merged: bool = True,
    ) -> list[Any]:
        """Runs the program once and returns the fetched values, in the order of ``fetch_list``.

        ``feed`` is a dict of arrays, which are split over the devices (shares differ by one sample at most), or a list
        with a dict for each device. :class:`Replicate` and :class:`PerDevice` change that for single values; Python
        numbers go to all devices. The values of devices are concatenated, or with ``return_merged=False`` returned as a
        list; :class:`Fetch` changes that for single ones. Values that all devices share, such as parameters, are
        returned once. Variables that are not fed come from the loaders of the program that were started.

        With ``BuildStrategy.async_mode``, ``feed`` is an iterator or a list of dicts, or an epoch of a loader. Each
        device takes ``num_iteration_per_run`` batches, one by one, without waiting for the others. Only the loss can be
        fetched: one value per update, in the order of updates; none if there are no more batches. The iterator is called
        whenever a device is free. Its exceptions are raised unchanged, and updates that were made stay.
        """
        if isinstance(self._exe, Asynchronous):
            fetch = _feed.fetches(fetch_list, return_merged)
            return self._run_async(fetch, feed if feed is not None else feed_dict)
        prints = _printing.wanted(self._program)
        with Taken() as taken:
            out = self._run(taken, fetch_list, feed, feed_dict, return_merged, [name for _, name in prints])
        self._has_run = True
        whole, out = len(out) - len(prints), list(out)
        _printing.show(prints, [_values.receive(value) for value in out[whole:]])
        del out[whole:]
        wrap = _values.receive if return_numpy else _values.Tensor
        return [[wrap(each) for each in one] if isinstance(one, list) else wrap(one) for one in out]

    def _run(
        self, taken: Taken, fetch_list: Any, feed: Any, feed_dict: Any, return_merged: bool, shown: list[str]
    ) -> Any:
        wrong: Exception | None = None
        try:
            if checks_numbers() and not self._check:
                raise StrategyError(
                    "FLAGS_check_nan_inf was set after this executor was made; set it before, or set "
                    "BuildStrategy.check_nan_inf",
                    var="FLAGS_check_nan_inf",
                )
            fetch = _feed.fetches(fetch_list, return_merged)
            _feed.check_fetched(self._program, (name for name, _ in fetch))
            fetch += [(name, "concat") for name in shown]
            devices = self._exe.devices
            fed = _feed.feeds(self._program, feed, feed_dict, devices, taken=taken)
            fed = _feed.in_pieces(self._program, fed, devices, self._pieces)
            exe = self._ran = self._fitting(fed)
        except Exception as why:
            wrong = why
        if self._accord is not None and _phalanx.is_initialized():
            self._accord.wait()
        if wrong is not None:
            # Other ranks may wait for this one.
            self._exe.give_up(f"{type(wrong).__name__}: {wrong}", isinstance(wrong, EOFException))
            raise wrong
        taken.begin()
        try:
            with _profiling.run("ParallelExecutor.run", exe, self._records):
                return exe.run(self._scope._store, fed, fetch)
        except UninitialisedError as why:
            raise explained(why) from None
        except (FeedError, FetchError) as why:
            raise _feed.explained(self._program, why) from None

    def _fitting(self, fed: _feed.Feeds) -> _phalanx.GraphParallelExecutor:
        """The executor for the sizes that devices are fed. Ranks, which may be fed different ones, take those that are declared."""
        assert not isinstance(self._exe, Asynchronous), "its runs do not come here"
        if self._accord is not None or self._tables is not None:
            return self._exe
        # What could not be split stays as it is, and is refused.
        alone = self._exe.devices * self._pieces == 1
        alike = ((name, [each[2] for each in lent]) for name, kind, lent in fed if lent and (alone or kind != "split"))
        program = self._fitted.program(
            self._program, ((name, shapes[0]) for name, shapes in alike if shapes == shapes[:1] * len(shapes))
        )
        if program is self._program:
            return self._exe
        exe = self._others.get(program)
        if exe is None:
            exe = self._others[program] = self._made(program)
            exe.record(self._records)
        return exe

    def _run_async(self, fetch: list[tuple[str, str]], feed: Any) -> list[Any]:
        assert isinstance(self._exe, Asynchronous), "a program that learns by itself has this executor"
        try:
            out = self._exe.learn(self._scope._store, fetch, feed)
        except UninitialisedError as why:
            raise explained(why) from None
        self._has_run = True
        return out

    def gather(self) -> None:
        """Puts into the scope what other ranks own: states of the optimizer, with ``ReduceStrategy.Reduce`` on several ranks.

        All ranks must call it. Then the scope can be read and saved whole, until the next run leaves states to their owners
        again. In other strategies everything is in the scope anyway.
        """
        if isinstance(self._exe, Asynchronous):
            return
        if self._accord is not None and _phalanx.is_initialized():
            self._accord.wait()
        try:
            self._exe.gather(self._scope._store)
        except UninitialisedError as why:
            raise explained(why) from None

    def drop_local_exe_scopes(self) -> None:
        """Frees the memory of temporaries; the next run allocates it again."""
        for exe in (self._exe, *self._others.values()):
            exe.drop_scopes()

    def arena_bytes(self) -> int:
        """Bytes of memory that runs currently use besides the scope."""
        return self._exe.arena_bytes()

    def dry_run(self, n_runs: int = 1) -> tuple[int, int, float]:
        """Visits all tasks without computing: returns tasks of one run, tasks visited, nanoseconds for each."""
        return self._exe.dry_run(self._scope._store, n_runs)

    def record(self, on: bool = True) -> None:
        """Begins or ends the recording of when operations run."""
        for exe in (self._exe, *self._others.values()):
            exe.record(on)
        self._records = on

    def trace(self) -> str | None:
        """The last recorded run, as JSON for ``chrome://tracing``."""
        return self._ran.trace()

    def graph_dot(self) -> str:
        """The graph after all passes, for graphviz."""
        return self._exe.to_dot()

    def graph_json(self) -> str:
        """The graph after all passes, as JSON."""
        return self._exe.to_json()


def _explained_loss(program: Program, why: LossError) -> GraphError:
    """With the loss that was minimized, if that is known."""
    if why.var is None or program._graph.var(why.var) is not None:
        return why
    known = [op.inputs[0] for op in program.global_block().ops if op.role == "Loss"]
    if not known:
        return _feed.explained(program, why)
    text = f"{why}; did you mean `{known[0]}`? That is what was minimized"
    return LossError(text, var=why.var, site=why.site, wanted=known[0], got=why.got)


def _explained_rate(program: Program, why: GraphError) -> GraphError:
    """With what to write instead of a learning rate that each device would compute."""
    if why.var not in program._rates:
        return why
    text = (
        f"{why}; it is a learning rate that each device would compute: pass a number, a schedule such as "
        "layers.piecewise_decay, or a variable of layers.create_global_var that is set in the scope"
    )
    return type(why)(text, var=why.var, op=why.op, site=why.site, wanted=why.wanted, got=why.got)


def _check_shares(program: Program) -> None:
    """Refuses gradients of parameters that nothing brings together over devices."""
    ops = program.global_block().ops if program._shares else []
    for name in program._shares:
        if any(op.outputs == [name] for op in ops) and not any(name in op.inputs for op in ops):
            raise StrategyError(
                f"`{name}` of fluid.gradients would be a share of the gradient on each device: use an Executor, or "
                "devices=1, or fetch what append_backward or minimize gives",
                var=name,
            )


def _check_counts(program: Program) -> None:
    """Refuses counts over many runs of which each device would have its own."""
    for op in program.global_block().ops:
        if op.kind == "AucCounts" and op.inputs[2] == op.outputs[0]:
            raise StrategyError(
                f"auc at {op.site} counts over all runs, and each device or rank would have counts of its own: use an "
                "Executor, or devices=1, or fetch the probabilities and use metrics.Auc",
                var=op.outputs[0],
                site=op.site,
            )


def _check_ranks() -> None:
    """Refuses a rank that was started with others and would train alone by mistake."""
    others = os.environ.get("PHALANX_SIZE", "1")
    if others not in ("", "1") and not _phalanx.is_initialized():
        raise StrategyError(
            f"this process was started as one of {others} ranks, but would train alone: call phalanx.init() first",
            got=others,
        )


def _check(kind: type, **given: Any) -> None:
    for name, value in given.items():
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} is a {kind.__name__}, not a {type(value).__name__}")


def _shared_scope(share_vars_from: ParallelExecutor | None, scope: Scope | None) -> Scope:
    if share_vars_from is None:
        return scope or global_scope()
    if scope is not None and scope is not share_vars_from._scope:
        raise StrategyError("share_vars_from: that executor has another scope; pass the same scope")
    return share_vars_from._scope


__all__ = ["ParallelExecutor"]
