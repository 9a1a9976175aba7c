"""Saves and loads the variables of a static program as checkpoints, for :class:`LoadCheckpoint` and without a session.

>>> import tempfile
>>> from phalanx import graph
>>> main, startup = graph.Program(), graph.Program()
>>> with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
...     w = graph.layers.create_parameter([2], name="w", is_bias=True)
...     _ = graph.Executor().run(startup)
...     graph.global_scope()["w"] = [1.0, 2.0]
...     path = Saver(main).save(None, tempfile.mkdtemp(), global_step=7)
...     graph.global_scope()["w"] = [0.0, 0.0]
...     left = Saver(main).restore(None, path)
...     graph.global_scope()["w"]
array([1., 2.], dtype=float32)
>>> path.name
'checkpoint-7'
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from phalanx import _phalanx
from phalanx.distributed._loop import is_saved_to
from phalanx.graph.compiler import CompiledProgram
from phalanx.graph.program import Program, Variable, default_main_program
from phalanx.graph.scope import global_scope


class Saver:
    """The variables of a program, or some of them: ``var_list`` has variables or their names."""

    def __init__(
        self, program: Program | CompiledProgram | None = None, var_list: Sequence[Variable | str] | None = None
    ) -> None:
        program = program._program if isinstance(program, CompiledProgram) else program
        if program is not None and not isinstance(program, Program):
            raise TypeError(f"a Saver takes a Program, not a {type(program).__name__}")
        self._program = program
        self._only = None if var_list is None else [v if isinstance(v, str) else v.name for v in var_list]

    def _graph(self) -> _phalanx.GraphProgram:
        graph = (self._program or default_main_program())._graph
        if self._only is None:
            return graph
        kinds = {name: kind for name, kind in graph.vars() if kind in ("parameter", "state")}
        for name in self._only:
            if name not in kinds:
                raise ValueError(f"var_list has {name!r}, which is not a parameter or a state of the program")
        part = _phalanx.GraphProgram()
        for name in self._only:
            found = graph.var(name)
            assert found is not None, "it has a kind"
            part.declare(name, found[0], found[1], graph.kind(name), ("saver", 0))
        return part

    def save(self, session: Any, path: str | PathLike[str], global_step: int | None = None) -> Path:
        """Writes ``checkpoint-<step>`` into the directory, and returns its path. One rank calls it.

        The step is that of the session, unless it is given. A directory to which a session saves is refused: what a
        Saver writes does not have all that a session needs to go on.
        """
        step = global_step if global_step is not None else getattr(session, "global_step", None)
        if step is None:
            raise ValueError("save needs a session or global_step")
        if is_saved_to(fspath(path)):
            raise ValueError(f"a session saves to {fspath(path)}: call session.save(), or save elsewhere")
        graph, scope = (self._program or default_main_program())._graph, _scope(session)
        names = [name for name, kind in graph.vars() if kind in ("parameter", "state")]
        only = names if self._only is None else self._only
        return _phalanx.CheckpointFile.save_graph(path, int(step), graph, scope._store, only)

    def restore(self, session: Any, path: str | PathLike[str], strict: bool = True) -> list[str]:
        """Loads a checkpoint, or the newest one of a directory, on this rank; what it has left, with ``strict=False``."""
        found = _phalanx.CheckpointFile(path)
        left = found.load_graph(self._graph(), _scope(session)._store, "subset" if strict else "partial")
        return [] if strict else left


def _scope(session: Any) -> Any:
    return getattr(session, "_scope", None) or global_scope()


__all__ = ["Saver"]
