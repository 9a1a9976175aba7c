"""Data-parallel training with the Keras of TensorFlow: Keras 3, or tf_keras with ``TF_USE_LEGACY_KERAS=1``.

The same interface as ``horovod.tensorflow.keras``.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any

import tensorflow as tf

from phalanx.process_sets import ProcessSet, global_process_set
from phalanx.reductions import Average
from phalanx.tensorflow import *  # noqa: F403
from phalanx.tensorflow import Compression
from phalanx.tensorflow import __all__ as _names
from phalanx.tensorflow import optimizer as _optimizer
from phalanx.tensorflow.keras import callbacks

# The star has brought another module of this name.
elastic = _import_module("phalanx.tensorflow.keras.elastic")


def DistributedOptimizer(  # type: ignore[no-redef]
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """As :func:`phalanx.tensorflow.DistributedOptimizer`, with Horovod's order of arguments."""
    return _optimizer.DistributedOptimizer(
        optimizer,
        name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any) -> Any:  # type: ignore[no-redef]
    """As :func:`DistributedOptimizer`; gradients of ``local_layers`` stay on this rank."""
    return _optimizer.with_local_layers(DistributedOptimizer(optimizer, *args, **kwargs), local_layers)


def load_model(
    filepath: Any, custom_optimizers: Any = None, custom_objects: Any = None, compression: Any = Compression.none
) -> Any:
    """Loads a saved model, with its optimizer's state; the optimizer becomes a distributed one."""
    objects = {c.__name__: c for c in custom_optimizers or []}
    objects.update(custom_objects or {})
    model = tf.keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = _optimizer.DistributedOptimizer(model.optimizer, compression=compression)
    return model


__all__ = [*_names, "callbacks", "load_model"]
