"""Distributed optimizers of Keras 3 on its backends."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import keras

from phalanx import _alike
from phalanx._arguments import checked_op
from phalanx._keras_callbacks import arrays_of
from phalanx._keras_scale import has_loss_scale, refuse_loss_scale_around, with_loss_scale
from phalanx.process_sets import ProcessSet, checked_kind, global_process_set, set_id
from phalanx.reductions import Average


class _Elsewhere:
    """What an optimizer gets on torch and JAX: the gradients are reduced as one operation."""

    _phalanx: Any
    _phalanx_compare: Any

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduces the gradients, and applies them."""
        refuse_loss_scale_around(self)
        grads = list(grads)
        return super().apply(self._reduced(grads, trainable_variables), trainable_variables)  # type: ignore[misc]

    def _reduced(self, grads: list[Any], variables: Any) -> list[Any]:
        known = list(getattr(self, "_trainable_variables", []))
        own: list[Any] = known if variables is None else list(variables)
        # A stateless step is given arrays, which have no names.
        named = known if len(known) == len(own) else own
        names = [str(getattr(v, "path", None) or f"parameter {i}") for i, v in enumerate(named)]
        # Keras itself complains of another number of variables.
        there_too = [pair for pair, g in zip(zip(names, own, strict=True), grads, strict=False) if g is not None]
        if there_too:
            # In the first step of a loop of one's own the optimizer does not know them yet.
            self._phalanx_compare(there_too, known or own)
        there = [g for g in grads if g is not None]
        reduced = iter(self._phalanx(there) if there else [])
        return [None if g is None else next(reduced) for g in grads]


class _Scaled(_Elsewhere):
    """With a loss scale: that optimizer's stateless step, which JAX takes, does not pass through ``apply``."""

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Reduces the gradients, and applies them."""
        reduced = self._reduced(list(grads), trainable_variables)
        return super().stateless_apply(optimizer_variables, reduced, trainable_variables)  # type: ignore[misc]


if keras.backend.backend() == "tensorflow":
    Compression: Any = import_module("phalanx.tensorflow.compression").Compression
else:

    class Compression:  # type: ignore[no-redef]
        """The values for ``compression``; on this backend of Keras only ``none`` is accepted."""

        none = None
        fp16 = "fp16"
        bf16 = "bf16"


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

    On the backends torch and JAX it has ``op`` and ``process_set`` only. Under the policy mixed_float16 the optimizer gets
    its loss scale first, and what is returned is another object.
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
    checked_kind(process_set)
    op = checked_op(op)
    door = import_module(f"phalanx.{backend}")

    def reduce(gradients: list[Any]) -> list[Any]:
        return list(door.grouped_allreduce(gradients, op=op, process_set=process_set))

    def compare(named: list[tuple[str, Any]], variables: list[Any]) -> None:
        if backend == "jax":
            values = {name: getattr(v, "value", v) for name, v in named}
            import_module("phalanx.jax._primitive").compare(values, set_id(process_set), "keras", variables, _alike.OF_ANY_KERAS)
            return
        lines = tuple(f"{list(v.shape)} of {v.dtype}" for _, v in named)
        name = f"parameters.keras.{_alike.digest(lines)}"
        if len(process_set.ranks) > 1:
            words = lambda: _alike.words(_alike.OF_ANY_KERAS, [name for name, _ in named])  # noqa: E731
            _alike.compare(name, set_id(process_set), words, variables, lambda: arrays_of([v for _, v in named]))

    return _distribute(with_loss_scale(optimizer), reduce, compare)


def _distribute(optimizer: Any, reduce: Any, compare: Any) -> Any:
    theirs = type(optimizer)

    def from_config(_: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        return _distribute(theirs.from_config(config, *args, **kwargs), reduce, compare)

    names = {"__module__": theirs.__module__, "__doc__": theirs.__doc__, "from_config": classmethod(from_config)}
    made = type(theirs.__name__, (_Scaled if has_loss_scale(optimizer) else _Elsewhere, theirs), names)
    object.__setattr__(optimizer, "_phalanx", reduce)
    object.__setattr__(optimizer, "_phalanx_compare", compare)
    object.__setattr__(optimizer, "__class__", made)
    return optimizer


def PartialDistributedOptimizer(optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any) -> Any:
    """As :func:`DistributedOptimizer`; gradients of ``local_layers`` stay on this rank. For the TensorFlow backend."""
    backend = keras.backend.backend()
    if backend != "tensorflow" and local_layers:
        raise ValueError(f"local_layers is for the TensorFlow backend of Keras; this one is {backend}: leave it out")
    made = DistributedOptimizer(optimizer, *args, **kwargs)
    if local_layers:
        import_module("phalanx.tensorflow.optimizer").with_local_layers(made, local_layers)
    return made


def load_model(
    filepath: Any, custom_optimizers: Any = None, custom_objects: Any = None, compression: Any = None
) -> Any:
    """Loads a saved model, with its optimizer's state; the optimizer becomes a distributed one."""
    objects = {c.__name__: c for c in custom_optimizers or []}
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
