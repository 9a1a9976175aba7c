"""Data-parallel training with Keras 3; the same interface as ``horovod.keras``, on the backends TensorFlow, torch and JAX."""

from __future__ import annotations

import warnings
from typing import Any

import phalanx.numpy as _collectives
from phalanx import objects as _objects
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
from phalanx._keras_callbacks import broadcast_weights as _broadcast_weights
from phalanx._keras_callbacks import weights_of as _weights_of
from phalanx._world import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from phalanx.keras import callbacks, elastic
from phalanx.keras._optimizer import Compression, DistributedOptimizer, PartialDistributedOptimizer, load_model
from phalanx.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from phalanx.reductions import Adasum, Average, Max, Min, Product, Sum
from phalanx.timeline import start_timeline, stop_timeline


def _array(value: Any) -> Any:
    import keras
    import numpy as np

    return np.asarray(keras.ops.convert_to_numpy(value), order="C")


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces values of all ranks: numbers, arrays or tensors; returns an array.

    ``average`` is the old word for ``op``. Values are sent as they are, so ``compression`` is ``Compression.none``.
    """
    if compression not in (None, Compression.none):
        raise ValueError("compression is for gradients: pass it to DistributedOptimizer, and leave it out here")
    if average is not None and op is not None:
        raise ValueError("average and op are the same argument: pass op alone, such as op=Sum")
    if average is not None and not isinstance(average, bool):
        raise ValueError(f"average must be True or False, not {average!r}: pass a reduction as op=")
    if average is not None:
        warnings.warn("average is deprecated: pass op=Average or op=Sum", DeprecationWarning, stacklevel=2)
        op = Average if average else Sum
    op = Average if op is None else op
    return _collectives.allreduce(_array(value), name, op, prescale_factor, postscale_factor, process_set)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenates the rows of all ranks; returns an array."""
    return _collectives.allgather(_array(value), name, process_set)


def broadcast(
    value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the value of ``root_rank`` on every rank, as an array."""
    return _collectives.broadcast(_array(value), root_rank, name, process_set)


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """Reduces the rows and returns to each rank its share of them, as an array."""
    return _collectives.reducescatter(_array(value), name, op, process_set)


def broadcast_model(model: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> None:
    """Gives the variables of ``root_rank``'s model and optimizer to every rank."""
    _broadcast_weights(_weights_of(model), root_rank, process_set)


def broadcast_global_variables(root_rank: int) -> None:
    """Refused: Keras 3 has no global variables."""
    raise RuntimeError(
        "Keras 3 has no global variables: add callbacks.BroadcastGlobalVariablesCallback(0) to fit(), or call broadcast_model(model)"
    )


broadcast_object = _objects.broadcast_object
allgather_object = _objects.allgather_object

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_model",
    "broadcast_object",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
