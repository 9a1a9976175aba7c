"""Evaluates the checkpoints of a training, beside it or after it.

>>> import tempfile
>>> from phalanx import distributed, graph
>>> main, startup, folder = graph.Program(), graph.Program(), tempfile.mkdtemp()
>>> with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
...     w = graph.layers.create_parameter([2], name="w", is_bias=True)
...     _ = graph.Executor().run(startup)
...     path = distributed.Saver(main).save(None, folder, global_step=5)
...     def measure(checkpoint):
...         checkpoint.load(main)
...         return float(graph.global_scope()["w"].sum())
...     distributed.evaluate_continuously(folder, measure, max_time_secs=0)
[(5, 0.0)]
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from phalanx import _phalanx
from phalanx.distributed._log import log, warn
from phalanx.distributed.task import TaskSpec, TaskSpecDef
from phalanx.exceptions import CheckpointError
from phalanx.summary import FileWriter


class EvaluatedCheckpoint:
    """One checkpoint, as ``evaluate_continuously`` gives it."""

    def __init__(self, found: _phalanx.CheckpointFile) -> None:
        self._found = found

    @property
    def step(self) -> int:
        """The training steps that are in it."""
        return self._found.step

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._found.path

    @property
    def about(self) -> dict[str, Any]:
        """What was said of it: step, epoch, seed, world, sampler and more."""
        made: dict[str, Any] = json.loads(self._found.about())
        return made

    def load(self, into: Any = None, strict: bool = True, scope: Any = None) -> list[str]:
        """Loads parameters into a program's scope, a ``Scope`` or a torch model; ``None`` is the default program.

        What the checkpoint has besides, an optimizer's state for example, is left out. ``strict``: what it does not
        have is an error; otherwise that stays as it is, and its names are returned.
        """
        strictness = "subset" if strict else "partial"
        if hasattr(into, "state_dict"):
            from phalanx.torch._state import load_model

            return load_model(self._found, into, strictness)
        from phalanx.graph.compiler import CompiledProgram
        from phalanx.graph.program import Program, default_main_program
        from phalanx.graph.scope import Scope, global_scope

        if isinstance(into, Scope):
            into, scope = None, into
        program = into._program if isinstance(into, CompiledProgram) else into
        program = default_main_program() if program is None else program
        if not isinstance(program, Program):
            raise TypeError(f"a checkpoint is loaded into a program or a torch model, not into a {type(into).__name__}")
        left = self._found.load_graph(program._graph, (scope or global_scope())._store, strictness)
        return [] if strict else left

    def __repr__(self) -> str:
        return f"EvaluatedCheckpoint(step={self.step}, path={str(self.path)!r})"


def evaluate_continuously(
    checkpoint_dir: str | PathLike[str],
    fn: Callable[[EvaluatedCheckpoint], Any],
    newest_only: bool = True,
    max_time_secs: float | None = None,
    output_path: str | PathLike[str] | None = None,
    task_spec: TaskSpecDef | None = None,
) -> list[tuple[int, Any]]:
    """Calls ``fn`` with each checkpoint as soon as it is written, until the training has ended; steps and what ``fn`` returned.

    ``newest_only``: of several new ones, only the newest. ``max_time_secs``: ends after this time, even if the
    training goes on. What ``fn`` returns, a number or a dict of numbers, is written to ``output_path`` for
    TensorBoard, at the step of the checkpoint. A checkpoint that is deleted before it is loaded is skipped, and one
    whose files are damaged is skipped and named. The directory need not exist yet.

    ``task_spec``: the evaluator that this process is, from ``use_last_worker_as_evaluator()``; ``None`` for what the
    environment says. The evaluator of a job waits for the training of that job: a mark ``done`` that was written before
    the job began does not end it. Without a job every mark does.
    """
    spec = TaskSpec() if task_spec is None else task_spec
    if task_spec is not None and not task_spec.is_evaluator():
        raise ValueError(
            f"task_spec is {task_spec!r}, which is not an evaluator: call use_last_worker_as_evaluator() on all ranks, or "
            "leave task_spec out to evaluate a training of another job"
        )
    job_began = _phalanx.Task.job_began() if spec is not None and spec.is_evaluator() else None
    follower = _phalanx.CheckpointFollower(checkpoint_dir, newest_only, job_began)
    ended = follower.ended()
    if ended is False:
        log(f"{checkpoint_dir}: an earlier training has ended; the evaluator waits for the one of this job")
    elif ended:
        log(f"{checkpoint_dir}: the training has ended (`done`); the evaluator does not wait for another one")
    until = None if max_time_secs is None else time.monotonic() + max_time_secs
    writer = None if output_path is None else FileWriter(output_path)
    results: list[tuple[int, Any]] = []
    try:
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            found, _ = follower.next(left)
            for skipped in follower.take_skipped():
                log(f"a checkpoint is not whole and was skipped: {skipped}")
            if found is None:
                return results
            try:
                value = fn(EvaluatedCheckpoint(found))
            except FileNotFoundError:
                if found.path.exists():
                    raise
                log(f"the checkpoint of step {found.step} was deleted before it was evaluated; it is skipped")
                continue
            except CheckpointError:
                # One that is whole, and does not fit, is a mistake of the program.
                damage = found.damage()
                if damage is None:
                    raise
                warn(f"a checkpoint is not whole and was skipped: step {found.step}: {damage}")
                continue
            results.append((found.step, value))
            if writer is not None and value is not None:
                writer.add_summary(value if isinstance(value, Mapping) else {"evaluation": value}, found.step)
                writer.flush()
    finally:
        if writer is not None:
            writer.close()


__all__ = ["EvaluatedCheckpoint", "evaluate_continuously"]
