"""Where the time of runs goes: a table on the screen and a file for ``chrome://tracing`` or Perfetto.

>>> import phalanx.graph as fluid
>>> main = fluid.Program()
>>> with fluid.program_guard(main):
...     y = fluid.layers.fill_constant([2], "float32", 1.0) * 2.0
>>> with profiler("CPU", None, profile_path=None):
...     _ = fluid.Executor(fluid.CPUPlace()).run(main, fetch_list=[y])

A ``ParallelExecutor``, or a ``CompiledProgram``, shows its operations; an ``Executor`` shows each run as a whole.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from phalanx.graph._profiling import Profile
from phalanx.graph.errors import StrategyError

_KEYS = ("calls", "total", "max", "min", "ave")
_PATH = "/tmp/profile"


def start_profiler(state: str = "CPU", tracer_option: str = "Default") -> None:
    """Begins to note what runs; ``state`` is ``"CPU"`` or ``"All"``, which is the same here."""
    if state not in ("CPU", "All"):
        raise StrategyError(
            f"profiler: state={state!r}; choose 'CPU' or 'All': there is no GPU", var="state", got=state
        )
    if tracer_option not in ("Default", "OpDetail", "AllOpDetail"):
        raise StrategyError(f"profiler: tracer_option={tracer_option!r} is unknown; leave it out", var="tracer_option")
    if Profile.current is not None:
        raise StrategyError("the profiler is already on; call stop_profiler first")
    Profile.current = Profile()


def reset_profiler() -> None:
    """Forgets what was noted so far."""
    if Profile.current is None:
        raise StrategyError("the profiler is not on; call start_profiler first")
    Profile.current.events.clear()


def stop_profiler(sorted_key: str | None = None, profile_path: str | None = _PATH) -> None:
    """Ends it: writes ``profile_path``, and prints a table if there is a key to sort it by."""
    profile = Profile.current
    if profile is None:
        raise StrategyError("the profiler is not on; call start_profiler first")
    if sorted_key not in (None, "default", *_KEYS):
        raise StrategyError(
            f"profiler: sorted_key={sorted_key!r}; choose one of {', '.join(_KEYS)}, or None", var="sorted_key"
        )
    Profile.current = None
    if profile_path is not None:
        Path(profile_path).write_text(json.dumps({"traceEvents": profile.events}), encoding="utf-8")
    if sorted_key is not None:
        print(_table(profile, sorted_key))


def _table(profile: Profile, key: str) -> str:
    times: dict[str, list[float]] = defaultdict(list)
    for event in profile.events:
        times[event["name"]].append(float(event["dur"]) / 1e3)
    rows = [(name, len(t), sum(t), max(t), min(t), sum(t) / len(t)) for name, t in times.items()]
    if key != "default":
        rows.sort(key=lambda row: row[1 + _KEYS.index(key)], reverse=key != "min")
    lines = [f"{'event':32}{'calls':>8}{'total ms':>12}{'max':>10}{'min':>10}{'ave':>10}"]
    lines += [f"{row[0][:31]:32}{row[1]:8}{row[2]:12.3f}{row[3]:10.3f}{row[4]:10.3f}{row[5]:10.3f}" for row in rows]
    return "\n".join(lines)


@contextmanager
def profiler(
    state: str, sorted_key: str | None = None, profile_path: str | None = _PATH, tracer_option: str = "Default"
) -> Iterator[None]:
    """A context in which runs are noted."""
    start_profiler(state, tracer_option)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


def cuda_profiler(*_: object, **__: object) -> NoReturn:
    """Refused: there is no GPU."""
    raise StrategyError("cuda_profiler: CUDA is not supported; use profiler('CPU')")


__all__ = ["cuda_profiler", "profiler", "reset_profiler", "start_profiler", "stop_profiler"]
