"""Phalanx: write it for one device; march it on many.

``phalanx.torch`` and ``phalanx.numpy`` have the collectives; this package has what both share.

>>> import phalanx
>>> phalanx.init()
>>> phalanx.rank(), phalanx.size()
(0, 1)
"""

from __future__ import annotations

from importlib import import_module

from phalanx import _phalanx
from phalanx._function import RankFailedError, run
from phalanx._world import (
    counters,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from phalanx.exceptions import (
    CheckError,
    FailureError,
    ForkedError,
    InitializationError,
    MismatchError,
    NoMpiError,
    NotInitializedError,
    PhalanxError,
    RankLostError,
    RecoveryError,
    ShutDownError,
    StalledError,
    UnsupportedError,
)
from phalanx.objects import allgather_object, broadcast_object
from phalanx.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from phalanx.reductions import Adasum, Average, Max, Min, Product, Sum

__version__: str = _phalanx.__version__


def __getattr__(name: str) -> object:
    """Imports a submodule when it is first used."""
    if name in (
        "data",
        "ddl",
        "distributed",
        "elastic",
        "graph",
        "jax",
        "keras",
        "numpy",
        "ray",
        "summary",
        "tensorflow",
        "torch",
    ):
        return import_module(f"phalanx.{name}")
    raise AttributeError(f"module 'phalanx' has no attribute {name!r}")


__all__ = [
    "Adasum",
    "Average",
    "CheckError",
    "FailureError",
    "ForkedError",
    "InitializationError",
    "Max",
    "Min",
    "MismatchError",
    "NoMpiError",
    "NotInitializedError",
    "PhalanxError",
    "ProcessSet",
    "Product",
    "RankFailedError",
    "RankLostError",
    "RecoveryError",
    "ShutDownError",
    "StalledError",
    "Sum",
    "UnsupportedError",
    "add_process_set",
    "allgather_object",
    "broadcast_object",
    "counters",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "remove_process_set",
    "run",
    "shutdown",
    "size",
]
