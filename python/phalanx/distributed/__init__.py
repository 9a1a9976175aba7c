"""Tasks of a cluster, sessions, hooks and evaluators, with TensorLayer's names.

>>> from phalanx import distributed
>>> spec = distributed.TaskSpecDef("worker", 1, worker_hosts="a:2222,b:2222")
>>> spec.num_workers, spec.shard_index, spec.is_master()
(2, 1, False)
>>> distributed.StopAtStepHook(last_step=100).__class__.__name__
'StopAtStepHook'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from phalanx.distributed.evaluator import EvaluatedCheckpoint, evaluate_continuously
from phalanx.distributed.hooks import (
    CheckpointSaverHook,
    EarlyStoppingHook,
    LoadCheckpoint,
    LoggingTensorHook,
    NanTensorHook,
    ProfilerHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StepCounterHook,
    StopAtStepHook,
    StopAtTimeHook,
    SummarySaverHook,
)
from phalanx.distributed.task import DeviceFn, TaskSpec, TaskSpecDef, create_task_spec_def

if TYPE_CHECKING:
    from phalanx.distributed.saver import Saver
    from phalanx.distributed.session import DistributedSession, Scaffold, create_distributed_session

#: These need numpy, which torch's sessions do not.
_LATER = {
    "DistributedSession": "session",
    "Saver": "saver",
    "Scaffold": "session",
    "create_distributed_session": "session",
}


def __getattr__(name: str) -> object:
    """Imports what needs numpy when it is first used."""
    if name in _LATER:
        return getattr(import_module(f"phalanx.distributed.{_LATER[name]}"), name)
    raise AttributeError(f"module 'phalanx.distributed' has no attribute {name!r}")


__all__ = [
    "CheckpointSaverHook",
    "DeviceFn",
    "DistributedSession",
    "EarlyStoppingHook",
    "EvaluatedCheckpoint",
    "LoadCheckpoint",
    "LoggingTensorHook",
    "NanTensorHook",
    "ProfilerHook",
    "Saver",
    "Scaffold",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "StopAtTimeHook",
    "SummarySaverHook",
    "TaskSpec",
    "TaskSpecDef",
    "create_distributed_session",
    "create_task_spec_def",
    "evaluate_continuously",
]
