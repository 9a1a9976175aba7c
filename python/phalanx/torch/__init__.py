"""Data-parallel training with PyTorch; the same interface as ``horovod.torch``.

>>> import torch
>>> import phalanx.torch as hvd
>>> hvd.init()
>>> model = torch.nn.Linear(2, 1)
>>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
>>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
>>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
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
from phalanx.timeline import start_timeline, stop_timeline
from phalanx.torch import elastic
from phalanx.torch._check import check_equal
from phalanx.torch.collectives import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from phalanx.torch.compression import Compression
from phalanx.torch.distributed import DistributedDataParallel
from phalanx.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from phalanx.torch.optimizer import DistributedOptimizer
from phalanx.torch.served import ServedEmbedding, ServedTables, serve_tables
from phalanx.torch.session import Session
from phalanx.torch.sync_batch_norm import SyncBatchNorm
from phalanx.torch.trainer import Trainer

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "FailureError",
    "Max",
    "Min",
    "MismatchError",
    "PhalanxError",
    "ProcessSet",
    "Product",
    "RankLostError",
    "ServedEmbedding",
    "ServedTables",
    "Session",
    "ShutDownError",
    "StalledError",
    "Sum",
    "SyncBatchNorm",
    "Trainer",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "check_equal",
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
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "serve_tables",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
