"""Distributed optimizers of Keras 3 on its backends."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import keras

from phalanx.process_sets import ProcessSet, global_process_set
from phalanx.reductions import Average


class _Elsewhere:
    """What an optimizer gets on torch and JAX: the gradients are reduced as one operation."""

    _phalanx: Any

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduces the gradients, and applies them."""
        grads = list(grads)
        there = [g for g in grads if g is not None]
        reduced = iter(self._phalanx(there) if there else [])
        grads = [None if g is None else next(reduced) for g in grads]
        return super().apply(grads, trainable_variables)  # type: ignore[misc]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
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
    """The optimizer, which from now on applies the gradients of all ranks; it is changed in place.

    On the backends torch and JAX it has ``op`` and ``process_set`` only.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        door = import_module("phalanx.tensorflow")
        return door.DistributedOptimizer(
            optimizer,
            name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression or door.Compression.none,
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
    if backend not in ("torch", "jax"):
        raise ValueError(f"Keras runs on {backend}, which has no collectives: set KERAS_BACKEND=tensorflow, torch or jax")
    others = {
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "compression": compression,
        "gradient_predivide_factor": gradient_predivide_factor != 1.0,
        "backward_passes_per_step": backward_passes_per_step != 1,
        "average_aggregated_gradients": average_aggregated_gradients,
        "num_groups": num_groups,
        "groups": groups,
    }
    for argument, given in others.items():
        if given:
            raise ValueError(f"{argument} is for the TensorFlow backend of Keras; this one is {backend}: leave it out")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"expected an optimizer of Keras, not a {type(optimizer).__name__}")
    if isinstance(optimizer, _Elsewhere):
        raise ValueError("this optimizer is a DistributedOptimizer already: its gradients would be reduced twice")
    door = import_module(f"phalanx.{backend}")

    def reduce(gradients: list[Any]) -> list[Any]:
        return list(door.grouped_allreduce(gradients, op=op, process_set=process_set))

    theirs = type(optimizer)
    object.__setattr__(optimizer, "_phalanx", reduce)
    made = type(theirs.__name__, (_Elsewhere, theirs), {"__module__": theirs.__module__, "__doc__": theirs.__doc__})
    object.__setattr__(optimizer, "__class__", made)
    return optimizer


def load_model(
    filepath: Any, custom_optimizers: Any = None, custom_objects: Any = None, compression: Any = None
) -> Any:
    """Loads a saved model, with its optimizer's state; the optimizer becomes a distributed one."""
    objects = {c.__name__: c for c in custom_optimizers or []}
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
