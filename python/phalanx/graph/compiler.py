"""Programs that an :class:`Executor` runs in parallel.

>>> from phalanx import graph
>>> compiled = graph.CompiledProgram(graph.Program())
>>> compiled.with_data_parallel() is compiled
True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.graph import _numbers, _prune
from phalanx.graph.errors import StrategyError
from phalanx.graph.parallel_executor import ParallelExecutor
from phalanx.graph.places import CPUPlace
from phalanx.graph.program import Program, Variable
from phalanx.graph.scope import Scope
from phalanx.graph.strategy import BuildStrategy, ExecutionStrategy


class CompiledProgram:
    """A program together with the way in which it is run. Without :meth:`with_data_parallel` it runs on one device.

    What it learns from is then what was minimized, and need not be named.
    """

    def __init__(self, program_or_graph: Program, build_strategy: BuildStrategy | None = None) -> None:
        program = program_or_graph
        if not isinstance(program, Program):
            raise TypeError(f"CompiledProgram takes a Program, got {type(program).__name__}")
        self._program = program
        # Now, because its executors are made in the order of first runs, which may differ between ranks.
        self._number = _numbers.number(program, _numbers.COMPILED)
        self._build = build_strategy
        self._exec: ExecutionStrategy | None = None
        self._loss: str | Variable | None = None
        self._from: CompiledProgram | None = None
        self._devices: int | None = 1
        self._parallel = False
        self._exe: ParallelExecutor | None = None
        self._scope: Scope | None = None
        self._parts: dict[tuple[str, ...], tuple[Program, ParallelExecutor]] = {}

    def with_data_parallel(
        self,
        loss_name: str | Variable | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: CompiledProgram | None = None,
        places: CPUPlace | Sequence[CPUPlace] | int | None = None,
    ) -> CompiledProgram:
        """On these places; without them on ``CPU_NUM``, or one for each core."""
        if self._parallel:
            raise StrategyError("with_data_parallel was already called for this program")
        if share_vars_from is not None and not isinstance(share_vars_from, CompiledProgram):
            raise TypeError(f"share_vars_from must be a CompiledProgram, not a {type(share_vars_from).__name__}")
        source = share_vars_from
        while source is not None:
            if source is self:
                raise StrategyError(
                    "share_vars_from: the program would share its variables with itself; name another program",
                    var="share_vars_from",
                )
            source = source._from
        self._parallel = True
        self._loss, self._exec, self._from = loss_name, exec_strategy, share_vars_from
        self._build = build_strategy or self._build
        self._devices = count(places)
        return self

    @property
    def effective(self) -> dict[str, Any]:
        """The strategies in effect, once it has run."""
        if self._exe is None:
            raise StrategyError("the program has not run yet: call Executor.run first")
        return self._exe.effective

    def gather(self) -> None:
        """What :meth:`ParallelExecutor.gather` does, once it has run."""
        if self._exe is None:
            raise StrategyError("the program has not run yet: call Executor.run first")
        self._exe.gather()

    def _executor(self, scope: Scope) -> ParallelExecutor:
        if self._exe is None:
            self._check_scope(scope)
            self._exe = self._made(self._program, self._loss, scope)
        self._check_scope(scope)
        return self._exe

    def _part(
        self, scope: Scope, parts: _prune.Parts, wanted: tuple[str, ...], feed: Any
    ) -> tuple[ParallelExecutor, Any]:
        """An executor for what these variables need, and what of the feeds that is."""
        self._check_scope(scope)
        part = parts.part(self._program, wanted)
        known = self._parts.get(wanted)
        if known is None or known[0] is not part:
            if len(self._parts) >= _prune.MOST:
                del self._parts[next(iter(self._parts))]
            # Without gradients there is no loss to speak of: it predicts.
            learns = any(op.role == "Loss" for op in part.global_block().ops)
            known = (part, self._made(part, self._loss if learns else None, scope))
            self._parts[wanted] = known
        return known[1], _prune.needed(part, self._program, feed)

    def _made(self, program: Program, loss: str | Variable | None, scope: Scope) -> ParallelExecutor:
        shared = None
        if self._from is not None:
            # It need not have run: what it has learned is in the scope, and that is shared.
            shared = self._from._executor(self._from._scope or scope)
        if not self._parallel:
            loss = _loss_of(program)
        made = _Numbered(
            self._number, False, loss, program, shared, self._exec, self._build, scope=scope, devices=self._devices
        )
        self._scope = scope
        return made

    def _check_scope(self, scope: Scope) -> None:
        if self._scope is not None and scope is not self._scope:
            raise StrategyError("the program was compiled for another scope: make another CompiledProgram for this one")


class _Numbered(ParallelExecutor):
    """One of a compiled program, whose number it has."""

    def __init__(self, number: int | None, *args: Any, **kwargs: Any) -> None:
        self._given = number
        super().__init__(*args, **kwargs)

    def _numbered(self, program: Program) -> int | None:
        return super()._numbered(program) if self._given is None else self._given


def _loss_of(program: Program) -> str | None:
    """What was minimized, if anything was."""
    return next((op.inputs[0] for op in program.global_block().ops if op.role == "Loss"), None)


def count(places: Any) -> int | None:
    """How many places these are; nothing if nobody has said it."""
    if places is None or isinstance(places, int):
        return places
    if isinstance(places, CPUPlace):
        return 1
    odd = [place for place in places if not isinstance(place, CPUPlace)]
    if odd or not places:
        raise StrategyError(f"places must be a list of CPUPlace, got {places!r}")
    return len(places)


__all__ = ["CompiledProgram"]
