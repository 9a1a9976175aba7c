"""State and the loop around a training function, under Horovod's module name."""

from __future__ import annotations

from phalanx.elastic import HostUpdateResult, ObjectState, State, run_fn

__all__ = ["HostUpdateResult", "ObjectState", "State", "run_fn"]
