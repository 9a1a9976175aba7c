"""Runs a program on one device, one operation after the other; also runs startup programs.

>>> import numpy as np
>>> from phalanx import graph
>>> main, startup = graph.Program(), graph.Program()
>>> with graph.program_guard(main, startup):
...     y = graph.data("x", [None, 2]) * 3.0
>>> graph.Executor(graph.CPUPlace()).run(main, feed={"x": np.ones([1, 2], "float32")}, fetch_list=[y])
[array([[3., 3.]], dtype=float32)]
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from phalanx import _phalanx
from phalanx.graph import _feed, _printing, _profiling, _prune, _values
from phalanx.graph._fitting import Fitted
from phalanx.graph._flags import checks_numbers
from phalanx.graph._taken import Taken
from phalanx.graph._values import Lent
from phalanx.graph.compiler import CompiledProgram
from phalanx.graph.errors import FeedError, FetchError, StateError, UninitialisedError
from phalanx.graph.parallel_executor import explained
from phalanx.graph.places import CPUPlace
from phalanx.graph.program import Program, default_main_program
from phalanx.graph.scope import Scope, global_scope

ALONE = (
    "rank {} of {} trains this program alone: an Executor runs a Program on one device, without the other ranks; "
    "use ParallelExecutor(loss_name=…), or CompiledProgram(…).with_data_parallel(loss_name=…), to train together"
)


def begin(scope: Scope, startup: Program, kept: Mapping[str, Any]) -> None:
    """Gives all variables of a startup program their first values, but these those that they had.

    A variable that the scope has in another shape is replaced, as in Paddle.
    """
    for name, value in kept.items():
        known = startup._graph.var(name)
        if known is not None and (_values.name(known[0]), tuple(known[1]) or (1,)) != (value.dtype.name, value.shape):
            wanted, got = f"{_values.name(known[0])}{known[1]}", f"{value.dtype}{list(value.shape)}"
            text = f"the scope has `{name}` as {got}, and the program as {wanted}"
            raise StateError(
                f"{text}; run the startup program, which replaces it, or take another scope",
                var=name,
                wanted=wanted,
                got=got,
            )
    scope._store.initialise(startup._graph, startup.random_seed)
    arrays = {name: value for name, value in startup._given.items() if not isinstance(value, str)}
    for name, value in {**arrays, **kept}.items():
        scope[name] = value
    # Copies are of what training begins with.
    for name, of in startup._given.items():
        if isinstance(of, str) and name not in kept:
            found = startup._graph.var(name)
            scope[name] = scope[of] if found is None else np.reshape(scope[of], found[1])


class Executor:
    """Runs programs. A program without operations is a startup program: it initializes the variables that it declares."""

    def __init__(self, place: CPUPlace | None = None, *, check_nan_inf: bool = False) -> None:
        if place is not None and not isinstance(place, CPUPlace):
            raise TypeError(f"place must be a CPUPlace, not a {type(place).__name__}")
        self._check = check_nan_inf
        self._made: WeakKeyDictionary[Program, tuple[tuple[int, int, bool], _phalanx.GraphExecutor]]
        self._made = WeakKeyDictionary()
        self._parts = _prune.Parts()
        self._fitted = Fitted()
        self._has_warned = False

    def run(
        self,
        program: Program | CompiledProgram | None = None,
        feed: Any = None,
        fetch_list: Any = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Runs the program once and returns the fetched values, in the order of ``fetch_list``.

        With ``use_prune`` only the operations that the fetched values need run, and only their feeds are needed:
        fetching the loss alone changes no parameter. What ``minimize`` returned may be fetched, too: this turns
        ``use_prune`` on and keeps the updates, and returns no value. ``feed_var_name``, ``fetch_var_name`` and
        ``use_program_cache`` have no effect: programs have no such variables, and what was made for one is always kept.
        """
        for what, given in (("feed_var_name", feed_var_name), ("fetch_var_name", fetch_var_name)):
            if not isinstance(given, str):
                raise TypeError(f"{what} is a name, not a {type(given).__name__}; pass scope=… by name")
        scope = scope or global_scope()
        fetch_list, updates = _prune.split(fetch_list)
        use_prune = use_prune or updates is not None
        if isinstance(program, CompiledProgram):
            if use_prune:
                wanted = _prune.targets(program._program, fetch_list, updates)
                exe, feed = program._part(scope, self._parts, wanted, feed)
            else:
                exe = program._executor(scope)
            return exe.run(fetch_list, feed, return_numpy=return_numpy, return_merged=return_merged)
        program = default_main_program() if program is None else program
        if not isinstance(program, Program):
            raise TypeError(f"only a Program or a CompiledProgram can be run, not a {type(program).__name__}")
        if use_prune:
            whole = program
            program = self._parts.part(whole, _prune.targets(whole, fetch_list, updates))
            feed = _prune.needed(program, whole, feed)
        fetch = [name for name, _ in _feed.fetches(fetch_list, True)]
        if not fetch and not feed and not program._graph.ops():
            begin(scope, program, {})
            return []
        return self._run(program, feed, fetch, scope, return_numpy)

    def _run(self, program: Program, feed: Any, fetch: list[str], scope: Scope, return_numpy: bool) -> list[Any]:
        _feed.check_fetched(program, fetch)
        prints = _printing.wanted(program)
        with Taken() as taken:
            feeds: list[tuple[str, Lent]] = []
            states: list[tuple[str, Lent]] = []
            for name, kind, values in _feed.feeds(program, feed, taken=taken):
                if kind == "each" and len(values) != 1:
                    raise FeedError(f"`{name}` is fed for {len(values)} devices, but an Executor has one", var=name)
                found = program._graph.var(name)
                is_state = found is not None and found[2] in ("parameter", "state")
                (states if is_state else feeds).append((name, values[0]))
            program = self._fitted.program(program, ((name, shape) for name, (_, _, shape, _) in feeds))
            executor = self._executor(program)
            before = [(name, scope[name]) for name, _ in states]
            taken.begin()
            try:
                for name, value in states:
                    scope._store.set(name, value)
                with _profiling.run("Executor.run"):
                    out = executor.run(scope._store, feeds, [*fetch, *(name for _, name in prints)])
            except Exception as why:
                # What was fed into the scope is not kept by a run that did not happen.
                for name, old in before:
                    scope[name] = old
                if isinstance(why, UninitialisedError):
                    raise explained(why) from None
                if isinstance(why, (FeedError, FetchError)):
                    raise _feed.explained(program, why) from None
                raise
        _printing.show(prints, [_values.receive(value) for value in out[len(fetch) :]])
        return [(_values.receive if return_numpy else _values.Tensor)(value) for value in out[: len(fetch)]]

    def _executor(self, program: Program) -> _phalanx.GraphExecutor:
        check = self._check or checks_numbers()
        version = program._graph.version, program.random_seed, check
        known = self._made.get(program)
        if known is None or known[0] != version:
            self._warn_alone(program)
            known = (version, _phalanx.GraphExecutor(program._graph, check, program._seed()))
            self._made[program] = known
        return known[1]

    def _warn_alone(self, program: Program) -> None:
        """Warns about a rank that trains alone beside other ranks, which is most often a mistake."""
        if self._has_warned or not _phalanx.is_initialized() or _phalanx.place()[1] == 1:
            return
        if any(op.role == "Optimize" for op in program.global_block().ops):
            self._has_warned = True
            warnings.warn(ALONE.format(*_phalanx.place()), stacklevel=5)

    def close(self) -> None:
        """Frees everything that was made for programs."""
        self._made.clear()
        self._fitted.clear()
        self._parts.clear()


__all__ = ["Executor"]
