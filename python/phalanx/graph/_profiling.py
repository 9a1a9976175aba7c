"""What runs note while a profiler is on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Profile:
    """Events of runs, in Chrome's format: name, begin and duration in microseconds."""

    current: Profile | None = None

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.begin = time.perf_counter()

    def now(self) -> float:
        """Microseconds since it began."""
        return (time.perf_counter() - self.begin) * 1e6


@contextmanager
def run(what: str, exe: Any = None, records: bool = False) -> Iterator[None]:
    """Notes a run; of an executor that can, its operations too. It records afterwards if it did before."""
    profile = Profile.current
    if profile is None:
        yield
        return
    start = profile.now()
    if exe is not None:
        exe.record(True)
    try:
        yield
    finally:
        profile.events.append({"name": what, "ph": "X", "ts": start, "dur": profile.now() - start, "pid": 0, "tid": 0})
        if exe is not None:
            try:
                _note(profile, exe.trace(), start)
            finally:
                exe.record(records)


def _note(profile: Profile, recorded: str | None, start: float) -> None:
    """Operations of a run, beside it."""
    found = json.loads(recorded) if recorded is not None else []
    for event in found["traceEvents"] if isinstance(found, dict) else found:
        if event.get("ph") == "X":
            profile.events.append({**event, "ts": float(event["ts"]) + start, "pid": 1})
