"""The collectives, under Horovod's module name."""

from __future__ import annotations

from phalanx._build import gloo_enabled, mpi_enabled, mpi_threads_supported
from phalanx._world import (
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
from phalanx.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from phalanx.reductions import Adasum, Average, Max, Min, Product, Sum
from phalanx.tensorflow.collectives import (
    allgather,
    allreduce,
    alltoall,
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
from phalanx.timeline import start_timeline, stop_timeline

from horovod.common import util as _util  # isort: skip
from horovod.common.basics import HorovodBasics as _HorovodBasics  # isort: skip

#: Scripts reach through it to what has public names, too.
_basics = _HorovodBasics(__file__, "mpi_lib")
#: Which reduction ``op`` and the old ``average`` mean.
handle_average_backwards_compatibility = _util.get_average_backwards_compatibility_fun(_basics)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_enabled",
    "mpi_threads_supported",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
