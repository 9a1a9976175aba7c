"""Functions of a test, run on real ranks: processes that the launcher started.

Ranks are started once for each number of them and used again: every call begins with ``init()`` and ends with
``shutdown()``. What kills ranks, or must see a process end, passes ``fresh=True`` and gets processes of its own.
"""

from __future__ import annotations

import inspect
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")
#: Everything that ranks do in one call takes no longer, however busy the machine is.
DEADLINE_S = 120.0


class RankError(AssertionError):
    """A function raised on a rank."""


class Ranks:
    """Processes that wait for functions to run."""

    def __init__(self, n: int, env: dict[str, str] | None = None, hosts: str | None = None) -> None:
        self.n = n
        self._folder = tempfile.TemporaryDirectory(prefix="phalanx-test-")
        address = os.path.join(self._folder.name, "s")
        listener = Listener(address, "AF_UNIX", backlog=n)
        listener._listener._socket.settimeout(DEADLINE_S)  # type: ignore[attr-defined]
        self.launcher = launch(n, [sys.executable, str(WORKER), address], env=env or {}, hosts=hosts)
        connections = [listener.accept() for _ in range(n)]
        listener.close()
        by_rank = {connection.recv(): connection for connection in connections}
        self.connections: list[Connection] = [by_rank[rank] for rank in range(n)]

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], deadline_s: float) -> list[Any]:
        """The results of all ranks; an exception of any is raised here. A rank that died has the result ``None``."""
        order = (inspect.getfile(inspect.unwrap(function)), function.__qualname__, args)
        for connection in self.connections:
            connection.send(order)
        results: dict[int, Any] = {}
        errors: dict[int, str] = {}
        until = time.monotonic() + deadline_s
        while len(results) + len(errors) < self.n:
            missing = [r for r in range(self.n) if r not in results and r not in errors]
            ready = wait([self.connections[r] for r in missing], timeout=max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(
                    f"{function.__qualname__}: no answer from ranks {missing} in {deadline_s} s; {errors}"
                )
            for rank in [r for r in missing if self.connections[r] in ready]:
                try:
                    is_good, value = pickle.loads(self.connections[rank].recv_bytes())
                except EOFError:
                    is_good, value = True, None
                (results if is_good else errors)[rank] = value
        if errors:
            text = "\n".join(f"--- rank {rank}:\n{error}" for rank, error in sorted(errors.items()))
            raise RankError(text)
        return [results[rank] for rank in range(self.n)]

    def end(self) -> None:
        """Ends the processes."""
        for connection in self.connections:
            connection.close()
        try:
            self.launcher.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._folder.cleanup()

    def kill(self) -> None:
        """Ends them now: the launcher ends its ranks when it is told to."""
        self.launcher.send_signal(signal.SIGTERM)
        try:
            self.launcher.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.launcher.kill()
            self.launcher.wait()


def launch(n: int, command: list[str], **options: Any) -> subprocess.Popen[Any]:
    """The launcher, running this command on this number of ranks; ``hosts`` are names with slots, all of this machine."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_"))}
    env["OMP_NUM_THREADS"] = "1"
    env.update(options.pop("env", {}))
    hosts = options.pop("hosts", None)
    where = [] if hosts is None else ["-H", hosts, "--rsh", "env PHALANX_HOST_ID={host}"]
    words = [sys.executable, "-m", "phalanx", "run", "-np", str(n), *where, "--", *command]
    return subprocess.Popen(words, env=env, **options)


_pools: dict[int, Ranks] = {}


def run_ranks(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    fresh: bool = False,
    env: dict[str, str] | None = None,
    hosts: str | None = None,
    deadline_s: float = DEADLINE_S,
) -> list[Any]:
    """What the function gives on each of `n` ranks. It stands in a test's file, outside of any other function.

    `env` is for fresh ranks only. `hosts` makes ranks fresh: with `a:3,b:1` three share a host, and one has another.
    """
    fresh = fresh or hosts is not None
    assert fresh or env is None
    ranks = Ranks(n, env, hosts) if fresh else _pools.pop(n, None) or Ranks(n)
    try:
        results = ranks.call(function, args, deadline_s)
    except RankError:
        ranks.end()
        raise
    except BaseException:
        ranks.kill()
        raise
    if fresh:
        ranks.end()
    else:
        _pools[n] = ranks
    return results


def end_all() -> None:
    """Ends all ranks that still wait."""
    while _pools:
        _pools.popitem()[1].end()
