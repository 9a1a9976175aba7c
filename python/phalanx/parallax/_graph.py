"""A static program as what a session trains."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phalanx import _phalanx, _world
from phalanx.distributed._words import exchanged
from phalanx.distributed.hooks import CheckpointSaverHook, ProfilerHook, SessionRunHook
from phalanx.graph import _feed, _values
from phalanx.graph.compiler import CompiledProgram
from phalanx.graph.program import Program
from phalanx.graph.strategy import ExecutionStrategy
from phalanx.parallax import _auto, _search, partitions
from phalanx.parallax._graph_session import ApartSession, TablesSession
from phalanx.parallax._log import log
from phalanx.parallax._unused import say_unused
from phalanx.parallax.config import ParallaxConfig, _wire_name
from phalanx.parallax.session import GLOBAL_STEP, TRAIN_OP

_KEEP = 1_000_000


class GraphTrained:
    """A program: its variables on servers, reduced between workers, or both."""

    def __init__(self, program: Program | CompiledProgram, config: ParallaxConfig, sync: bool) -> None:
        plain = program._program if isinstance(program, CompiledProgram) else program
        self._program, self._worker, self._owner = plain, _world.rank(), os.getpid()
        self._in_step = sync and config._ps.staleness is None
        _check(config, self._in_step)
        self.strategy, self._why = _strategy(plain, config, self._in_step)
        self._config, self._searches = config, False
        # Until the first step is measured nothing is on servers.
        opened = self._opened("MPI" if self.strategy == _auto.AUTO else self.strategy, sync)
        self._session: TablesSession | ApartSession = (
            TablesSession(opened, program, config.sess_config, config.ckpt_config.ckpt_dir, _hooks(config))
            if self._in_step
            else ApartSession(opened, program, config.sess_config)
        )
        self._has_opened()
        _world._at_shutdown.append(self._end)

    def _has_opened(self) -> None:
        """It is known what servers have."""
        config = self._config
        self._tables: _phalanx.GraphTables = self._session.tables
        self._on_servers = {name for name, *_ in self._tables.names()}
        if not self._on_servers and self.strategy != _auto.AUTO:
            say_unused(config, self.strategy)
        self._say_unchanged(config)
        if config.export_graph_path is not None:
            os.makedirs(config.export_graph_path, exist_ok=True)
            Path(config.export_graph_path, f"worker-{self._worker}_metagraph").write_text(
                f"{self._program}\n{self.explain()}\n"
            )

    def _opened(
        self, option: str, sync: bool, rates: _phalanx.Rates | None = None, samples: int = 1
    ) -> Callable[[], _phalanx.GraphTables]:
        """How the tables are opened, once variables have values."""
        config, graph = self._config, self._program._graph
        ps = config._ps
        places = _phalanx.GraphTables.places(graph, option, rates, samples)
        tables = [name for name, is_served, _ in places if is_served]
        if tables or option not in ("MPI", _auto.AUTO):
            has_rows = any(name in _sparse_tables(self._program) for name in tables)
            self._searches = _search.is_wanted(config, sync, has_rows)
        least = partitions.wanted()
        staleness = ps.staleness if sync else None
        return lambda: _phalanx.GraphTables(
            graph,
            option,
            average=config.average_sparse,
            sync=self._in_step,
            staleness=staleness if staleness is not None and staleness >= 0 else None,
            wire_dtype=_wire_name(ps.wire_dtype),
            partitions=None if self._searches else least,
            search=(least or 1, *_search.TRIAL) if self._searches else None,
            collects=ps.local_aggregation,
            merges=ps.boundary_between_workers_and_servers,
            rates=rates,
            samples=samples,
        )

    def _settle(self, feed: dict[str, Any]) -> None:
        """Measures the first step, before it is made, and opens on servers what is predicted to take less time there."""
        failure, fed, samples = None, [], 1
        try:
            fed = _feed.feeds(self._program, feed)
            samples = max((len(value) for value in feed.values() if getattr(value, "ndim", 0)), default=1)
        except Exception as why:
            failure = why
        samples = max(exchanged("parallax.first", samples, failure, "the feed of the first step"))
        rates = _auto.measured(self._program._graph, fed)
        assert isinstance(self._session, TablesSession), "workers that are not in step do not come here"
        self._session.settle(self._opened(_auto.AUTO, True, rates, samples))
        self.strategy = "HYBRID" if self._session.tables.names() else "MPI"
        self._why = f"the first step was measured, links between hosts have {rates[0] / 1e6:.1f} MB/s"
        self._has_opened()
        _auto.tell(self.strategy, f"{self._why}\n{self._tables.explain()}".rstrip())

    def _say_unchanged(self, config: ParallaxConfig) -> None:
        """Settings that are as they are here."""
        if not self._on_servers or self._worker != 0:
            return
        if not config._ps.boundary_among_servers:
            log.info(
                "boundary_among_servers=False changes nothing: no operation stands between gradients and the rules of servers"
            )
        if not config._ps.replicate_variables and self._in_step:
            log.info(
                "replicate_variables=False changes nothing: a step of a program has one pass, and pulls its copies once"
            )

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
        if self.strategy == _auto.AUTO:
            self._settle(feeds[0])
        computed = [name for name in wanted if name not in self._on_servers]
        begin = time.monotonic()
        try:
            out = self._session.run(computed, feed_dict=feeds[0])
        except BaseException:
            self._tables.crash_trial()
            raise
        values = dict(zip(computed, out, strict=True))
        for name in wanted:
            if name in self._on_servers:
                given = self._tables.value(name)
                assert given is not None, "servers have it"
                values[name] = _values.receive(given)
        self._search(time.monotonic() - begin)
        return {TRAIN_OP: [None], **{name: [value] for name, value in values.items()}}

    def _search(self, seconds: float) -> None:
        own = self._tables.timed(seconds) if self._searches else None
        if own is None:
            return

        def gather(number: float) -> list[float]:
            return exchanged("parallax.trial", number, None, "a trial of partitions")

        wanted = self._tables.end_trial(sum(gather(own)))
        cut = _search.settle(wanted, self._tables.refused_trial, self._tables, gather)
        self._searches = self._tables.found is None
        _search.tell(cut, not self._searches)

    def call(self, fn: Callable[..., Any], feeds: list[dict[str, Any]]) -> Any:
        """A program has its step."""
        raise TypeError(
            f"a program is run by the names of its variables, not by a function ({fn!r}, {len(feeds)} feeds)"
        )

    def explain(self) -> str:
        """Each parameter, how it is trained, and why."""
        return f"{self.strategy}: {self._why}\n{self._tables.explain()}".rstrip()

    def counters(self) -> dict[str, int]:
        """Of the engine and of the tables."""
        engine = {f"allreduce_{name}": n for name, n in _world.counters().items() if name in ("operations", "bytes")}
        if not self._on_servers:
            return engine
        return {**engine, **self._tables.counters()}

    def close(self) -> None:
        """Ends it in order; what servers have learned is in the scope then."""
        if self._end not in _world._at_shutdown:
            return
        self._session.close()
        self._session.bring_back()
        self._end()

    def _end(self) -> None:
        if self._end in _world._at_shutdown:
            _world._at_shutdown.remove(self._end)
        # A forked child inherits what is done at the end, but not the tables.
        if os.getpid() == self._owner:
            self._tables.close()

    def abandon(self, error: BaseException) -> None:
        """The others learn of the exception."""
        if self._end in _world._at_shutdown:
            # It would wait for all workers.
            _world._at_shutdown.remove(self._end)
        self._session.__exit__(type(error), error, error.__traceback__)


def _check(config: ParallaxConfig, in_step: bool) -> None:
    if config.sess_config is not None and not isinstance(config.sess_config, ExecutionStrategy):
        raise TypeError(f"sess_config of a program is an ExecutionStrategy, not a {type(config.sess_config).__name__}")
    if in_step:
        return
    if config.profile_config.profile_dir is not None:
        raise ValueError("ProfileConfig of a program needs workers in step: use sync=True without staleness")


def _strategy(program: Program, config: ParallaxConfig, in_step: bool) -> tuple[str, str]:
    """How it is trained, and why."""
    tables, option = _sparse_tables(program), config.run_option
    if option == "MPI":
        return option, "run_option says so"
    if option is None and not in_step:
        option, why = "PS", "workers that are not in step need servers for everything"
    elif not tables and option != "PS":
        if not in_step:
            raise ValueError(
                'PSConfig.staleness is for tables on servers, and no gradient is sparse: use run_option="PS"'
            )
        return "MPI", "no gradient is sparse, so no server is needed"
    else:
        why = "run_option says so" if option is not None else "some gradients are sparse: their tables are on servers"
    places = _phalanx.GraphTables.places(program._graph, option or "HYBRID")
    chooses = option is None
    refused = [
        (name, reason) for name, is_served, reason in places if not is_served and (option == "PS" or name in tables)
    ]
    if refused and chooses:
        log.info("sparse gradients travel by allgather, not to servers: %s: %s", *refused[0])
        return "MPI", f"servers cannot train a table: {refused[0][0]}: {refused[0][1]}"
    if refused:
        raise ValueError(f'{refused[0][0]!r}: {refused[0][1]}; use run_option="MPI", or None, which chooses')
    reduced = [name for name, is_served, _ in places if not is_served]
    if reduced and not in_step:
        raise ValueError(
            f"workers that are not in step reduce nothing between them, but {', '.join(reduced)} would be reduced: "
            'use run_option="PS"'
        )
    if chooses:
        option, why = _auto.first_choice(_phalanx.GraphTables.table_bytes(program._graph))
        if option != _auto.AUTO:
            _auto.tell(option, why)
    return option or "HYBRID", why


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
