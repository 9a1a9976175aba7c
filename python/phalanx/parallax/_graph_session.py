"""Sessions of programs whose variables are on servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any

from phalanx import _phalanx
from phalanx.distributed._words import exchanged
from phalanx.distributed.hooks import SessionRunHook
from phalanx.distributed.session import DistributedSession, Scaffold, initialise
from phalanx.graph.compiler import CompiledProgram, _loss_of
from phalanx.graph.errors import LossError
from phalanx.graph.parallel_executor import ParallelExecutor
from phalanx.graph.program import Program, Variable, default_startup_program
from phalanx.graph.scope import Scope, global_scope
from phalanx.graph.strategy import BuildStrategy, ExecutionStrategy

Opens = Callable[[], _phalanx.GraphTables]


class TablesExecutor(ParallelExecutor):
    """Runs a program whose tables are on servers."""

    def __init__(
        self,
        tables: _phalanx.GraphTables,
        program: Program,
        loss: Variable | str,
        exec_strategy: ExecutionStrategy | None,
        build_strategy: BuildStrategy | None,
        scope: Scope,
    ) -> None:
        self._tables = tables
        super().__init__(
            loss_name=loss,
            main_program=program,
            exec_strategy=exec_strategy,
            build_strategy=build_strategy,
            scope=scope,
            devices=1,
        )


class TablesSession(DistributedSession):
    """A session whose scope has what servers do not have; a checkpoint has all of it."""

    def __init__(
        self,
        opens: Opens,
        program: Program | CompiledProgram,
        config: ExecutionStrategy | None,
        checkpoint_dir: str | PathLike[str] | None,
        hooks: Sequence[SessionRunHook],
    ) -> None:
        self._opens = opens
        super().__init__(
            checkpoint_dir=checkpoint_dir,
            scaffold=Scaffold(program=program, devices=1, build_strategy=_build_of(program)),
            hooks=hooks,
            save_checkpoint_secs=None,
            config=config,
            log_step_count_steps=None,
        )

    def _executor(self, loss: Variable | str, made: Scaffold, config: ExecutionStrategy | None) -> ParallelExecutor:
        self._made_of = loss, made, config
        self.tables = self._opens()
        return TablesExecutor(self.tables, self._program, loss, config, made.build_strategy, self._scope)

    def settle(self, opens: Opens) -> None:
        """Tables are opened after the session, between two steps: what goes to servers leaves the scope."""
        self._opens = opens
        self._exe = self._executor(*self._made_of)
        place(self.tables, self._scope)

    def _restore(self, resumes: bool) -> int:
        step = super()._restore(resumes)
        place(self.tables, self._scope)
        return step

    def _save(self, about: str) -> None:
        self.tables.gather(self._scope._store)
        super()._save(about)
        self.tables.leave(self._scope._store)

    def _load(self, saver: Any, path: str, strict: bool) -> None:
        self.tables.gather(self._scope._store)
        super()._load(saver, path, strict)
        place(self.tables, self._scope)

    def bring_back(self) -> None:
        """The scope has what servers have learned."""
        if not self._is_broken:
            self.tables.gather(self._scope._store)


class ApartSession:
    """Steps of a worker that does not wait for others: everything that it learns is on servers."""

    def __init__(self, opens: Opens, program: Program | CompiledProgram, config: ExecutionStrategy | None) -> None:
        plain = program._program if isinstance(program, CompiledProgram) else program
        loss = _loss_of(plain)
        if loss is None:
            raise LossError("the program has nothing to learn: call minimize() of an optimizer first")
        self._scope = global_scope()
        initialise(self._scope, plain, default_startup_program())
        self.tables = opens()
        self._exe = TablesExecutor(self.tables, plain, loss, config, _build_of(program), self._scope)
        self.global_step, self._is_closed = 0, False
        place(self.tables, self._scope)

    def should_stop(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def run(self, fetches: Sequence[str], feed_dict: Any = None) -> Any:
        """One step."""
        out = self._exe.run(list(fetches), feed=feed_dict)
        self.global_step += 1
        return out

    def close(self) -> None:
        """No more steps; waits until all workers have made theirs."""
        self._is_closed = True
        exchanged("parallax.apart", None, None, "the end of the training")

    def bring_back(self) -> None:
        """The scope has what servers have learned."""
        self.tables.gather(self._scope._store)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True


def place(tables: _phalanx.GraphTables, scope: Scope) -> None:
    """Puts what rank 0 has in its scope onto servers; then scopes have only what servers do not have."""
    failure = None
    try:
        tables.fill(scope._store)
    except Exception as why:
        failure = why
    exchanged("parallax.rows", None, failure, "writing the first rows of tables")
    tables.leave(scope._store)


def _build_of(program: Program | CompiledProgram) -> BuildStrategy | None:
    return program._build if isinstance(program, CompiledProgram) else None


__all__ = ["ApartSession", "TablesSession", "place"]
