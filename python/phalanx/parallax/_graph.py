"""A static program as what a session trains."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phalanx import _world
from phalanx.distributed.hooks import CheckpointSaverHook, ProfilerHook, SessionRunHook
from phalanx.distributed.session import DistributedSession, Scaffold
from phalanx.graph.compiler import CompiledProgram
from phalanx.graph.program import Program
from phalanx.graph.strategy import ExecutionStrategy
from phalanx.parallax._unused import say_unused
from phalanx.parallax.config import ParallaxConfig
from phalanx.parallax.session import GLOBAL_STEP, TRAIN_OP

_KEEP = 1_000_000


class GraphTrained:
    """A program, trained by allreduce."""

    def __init__(self, program: Program | CompiledProgram, config: ParallaxConfig, sync: bool) -> None:
        plain = program._program if isinstance(program, CompiledProgram) else program
        self._program, self._worker = plain, _world.rank()
        tables = _sparse_tables(plain)
        self.strategy = _strategy(config, sync, tables)
        say_unused(config, self.strategy)
        if config.sess_config is not None and not isinstance(config.sess_config, ExecutionStrategy):
            raise TypeError(
                f"sess_config of a program is an ExecutionStrategy, not a {type(config.sess_config).__name__}"
            )
        self._tables = tables
        ckpt = config.ckpt_config
        self._session = DistributedSession(
            checkpoint_dir=ckpt.ckpt_dir,
            scaffold=Scaffold(program=program, devices=1),
            hooks=_hooks(config),
            save_checkpoint_secs=None,
            config=config.sess_config,
            log_step_count_steps=None,
        )
        if config.export_graph_path is not None:
            os.makedirs(config.export_graph_path, exist_ok=True)
            Path(config.export_graph_path, f"worker-{self._worker}_metagraph").write_text(f"{plain}\n")

    @property
    def names(self) -> list[str]:
        """What can be fetched and fed."""
        return [name for name, _ in self._program._graph.vars()]

    @property
    def step(self) -> int:
        """Steps so far."""
        return self._session.global_step

    def has_stopped(self) -> bool:
        """Whether the session has."""
        return self._session.should_stop()

    def run(self, names: Sequence[str], feeds: list[dict[str, Any]]) -> dict[str, list[Any]]:
        """One step."""
        wanted = [name for name in names if name not in (TRAIN_OP, GLOBAL_STEP)]
        if not wanted and TRAIN_OP not in names:
            return {}
        out = self._session.run(wanted, feed_dict=feeds[0])
        return {TRAIN_OP: [None], **{name: [value] for name, value in zip(wanted, out, strict=True)}}

    def call(self, fn: Callable[..., Any], feeds: list[dict[str, Any]]) -> Any:
        """A program has its step."""
        raise TypeError(
            f"a program is run by the names of its variables, not by a function ({fn!r}, {len(feeds)} feeds)"
        )

    def explain(self) -> str:
        """Each parameter, and how it is trained."""
        lines = [f"{self.strategy}: programs are trained by allreduce"]
        for name, kind in self._program._graph.vars():
            if kind == "parameter":
                how = "rows by allgather" if name in self._tables else "allreduce"
                lines.append(f"  {name}: {how}")
        return "\n".join(lines)

    def counters(self) -> dict[str, int]:
        """Of the engine."""
        return {f"allreduce_{name}": n for name, n in _world.counters().items() if name in ("operations", "bytes")}

    def close(self) -> None:
        """Ends it in order."""
        self._session.close()

    def abandon(self, error: BaseException) -> None:
        """The others learn of the exception."""
        self._session.__exit__(type(error), error, error.__traceback__)


def _strategy(config: ParallaxConfig, sync: bool, tables: set[str]) -> str:
    if not sync or config.run_option == "PS" or config._ps.staleness is not None:
        raise ValueError(
            'tables of a Program are not on servers yet: use run_option="MPI" and sync=True, or a model of torch'
        )
    if config.run_option == "HYBRID" and tables:
        raise ValueError(
            f'sparse tables of a Program ({", ".join(sorted(tables))}) are not on servers yet: use run_option="MPI", or a model of torch'
        )
    if tables and not config.average_sparse and _world.size() > 1:
        raise ValueError("rows of a Program are averaged over all workers: set average_sparse=True")
    return "MPI"


def _sparse_tables(program: Program) -> set[str]:
    """Parameters whose gradients are rows."""
    merged = [op.inputs[0] for op in program.global_block().ops if op.type == "merge_rows"]
    return {name.removesuffix("@GRAD") for name in merged}


def _hooks(config: ParallaxConfig) -> list[SessionRunHook]:
    ckpt, profile = config.ckpt_config, config.profile_config
    hooks: list[SessionRunHook] = [
        CheckpointSaverHook(str(ckpt.ckpt_dir), save_secs=secs, save_steps=steps, keep=_KEEP)
        for steps, secs in ((ckpt.save_ckpt_steps, None), (None, ckpt.save_ckpt_secs))
        if steps is not None or secs is not None
    ]
    spans = [(step, step + 1) for step in profile.profile_steps or ()]
    spans += [(profile.profile_range[0], profile.profile_range[1])] if profile.profile_range is not None else []
    ranks = None if profile.profile_worker is None else [profile.profile_worker]
    folder = Path(os.fspath(profile.profile_dir or "."), socket.gethostname(), f"worker:{_world.rank()}", "run_meta")
    return hooks + [ProfilerHook(range=span, ranks=ranks, output_dir=folder) for span in spans]


__all__ = ["GraphTrained"]
