"""Data-parallel training with TensorFlow; the same interface as ``horovod.tensorflow``.

Collectives run in eager code, in ``tf.function`` and in sessions of ``tf.compat.v1``. They are native operations, which
are compiled on first use; see :func:`is_native`.
"""

from __future__ import annotations

from phalanx._build import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
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
from phalanx.exceptions import FailureError, MismatchError, PhalanxError, RankLostError, ShutDownError, StalledError
from phalanx.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from phalanx.reductions import Adasum, Average, Max, Min, Product, Sum
from phalanx.tensorflow import _errors, elastic
from phalanx.tensorflow._ops import is_native, use_native
from phalanx.tensorflow.collectives import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from phalanx.tensorflow.compression import Compression
from phalanx.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from phalanx.tensorflow.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from phalanx.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from phalanx.timeline import start_timeline, stop_timeline

_errors.install()


def __getattr__(name: str) -> object:
    """Imports what needs Keras when it is first used."""
    if name == "SyncBatchNormalization":
        from phalanx.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    if name == "keras":
        from importlib import import_module

        return import_module("phalanx.tensorflow.keras")
    raise AttributeError(f"module 'phalanx.tensorflow' has no attribute {name!r}")


__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "FailureError",
    "Max",
    "Min",
    "MismatchError",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "PhalanxError",
    "ProcessSet",
    "Product",
    "RankLostError",
    "ShutDownError",
    "StalledError",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "counters",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "is_native",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "use_native",
]
