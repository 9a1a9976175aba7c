"""Optimizers whose gradients are those of all ranks: of Keras 3, of tf_keras, and of ``tf.compat.v1.train``.

An optimizer becomes a distributed one in place: it keeps its variables and its class's name, so that models save as before
and load without Phalanx.
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from phalanx import _alike
from phalanx._keras_scale import refuse_loss_scale_around, with_loss_scale
from phalanx.process_sets import ProcessSet, global_process_set
from phalanx.reductions import Adasum, Average
from phalanx.tensorflow.compression import Compression
from phalanx.tensorflow.gradients import Reducer
from phalanx.tensorflow.tape import variables_of


class Distributed:
    """What every distributed optimizer has."""

    _phalanx: Reducer

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable stays on this rank."""
        self._phalanx.local.append(getattr(var, "value", var) if not hasattr(var, "ref") else var)

    def reverse_aggregation(self, *_args: Any) -> None:
        """Refused: nothing is reduced twice here."""
        raise NotImplementedError("gradients are reduced once, in apply; there is nothing to reverse")


class _Keras3(Distributed):
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduces the gradients, and applies them."""
        refuse_loss_scale_around(self)
        if trainable_variables is None:
            trainable_variables = self._trainable_variables  # type: ignore[attr-defined]
        variables = list(trainable_variables)
        values = [_inner(v) for v in variables]
        self._phalanx.named(values, [getattr(v, "path", v.name) for v in variables])
        if not self.built:  # type: ignore[attr-defined]
            with tf.init_scope():
                self.build(variables)  # type: ignore[attr-defined]

        def apply(reduced: list[Any]) -> Any:
            return super(_Keras3, self).apply(reduced, variables)  # type: ignore[misc]

        return self._phalanx.stepped(list(grads), values, apply)


class _TfKeras(Distributed):
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduces the gradients, and applies them."""
        refuse_loss_scale_around(self)
        pairs = list(grads_and_vars)
        variables = [v for _, v in pairs]
        build = getattr(self, "build", None)
        if build is not None and not getattr(self, "_built", True):
            with tf.init_scope():
                build(variables)

        def apply(reduced: list[Any]) -> Any:
            both = list(zip(reduced, variables, strict=True))
            return super(_TfKeras, self).apply_gradients(both, *args, **kwargs)  # type: ignore[misc]

        return self._phalanx.stepped([g for g, _ in pairs], variables, apply)


class _Version1(Distributed):
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The gradients of all ranks; with several passes for a step, those of this rank, which are reduced later."""
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        if self._phalanx.passes > 1:
            self._phalanx.build([v for _, v in pairs])
            return pairs
        variables = [v for _, v in pairs]
        return list(zip(self._phalanx.reduced([g for g, _ in pairs], variables), variables, strict=True))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Applies gradients; with several passes for a step, at the last of them."""
        pairs = list(grads_and_vars)
        if self._phalanx.passes == 1:
            return super().apply_gradients(pairs, global_step, name)  # type: ignore[misc]
        variables = [v for _, v in pairs]
        self._create_slots(variables)  # type: ignore[attr-defined]

        def apply(reduced: list[Any]) -> Any:
            both = list(zip(reduced, variables, strict=True))
            return super(_Version1, self).apply_gradients(both, global_step, name)  # type: ignore[misc]

        return self._phalanx.stepped([g for g, _ in pairs], variables, apply)


def _inner(variable: Any) -> Any:
    """The variable of TensorFlow in one of Keras 3."""
    return variable.value if hasattr(variable, "value") and not callable(variable.value) else variable


def _kind_of(optimizer: Any) -> type[Distributed]:
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _Version1
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(optimizer, keras.optimizers.Optimizer) and hasattr(optimizer, "apply"):
        backend = keras.backend.backend()
        if backend != "tensorflow":
            raise ValueError(
                f"Keras runs on {backend}: use phalanx.keras.DistributedOptimizer, or set KERAS_BACKEND=tensorflow"
            )
        return _Keras3
    if hasattr(optimizer, "apply_gradients"):
        return _TfKeras
    raise ValueError(
        f"expected an optimizer of Keras or tf.compat.v1.train, not a {type(optimizer).__name__}: "
        "for others reduce the gradients with DistributedGradientTape"
    )


def distribute(optimizer: Any, kind: type, reducer: Any) -> Any:
    """The same optimizer, with a class that reduces gradients first."""
    if isinstance(getattr(type(optimizer), "_phalanx_kind", None), type):
        raise ValueError("this optimizer is a DistributedOptimizer already: its gradients would be reduced twice")
    theirs = type(optimizer)

    def from_config(_: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        return distribute(theirs.from_config(config, *args, **kwargs), kind, reducer.again())

    names: dict[str, Any] = {"__module__": theirs.__module__, "__doc__": theirs.__doc__, "_phalanx_kind": kind}
    if hasattr(theirs, "from_config"):
        names["from_config"] = classmethod(from_config)
    made = type(theirs.__name__, (kind, theirs), names)
    object.__setattr__(optimizer, "_phalanx", reducer)
    object.__setattr__(optimizer, "__class__", made)
    return optimizer


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The optimizer, which from now on applies the gradients of all ranks; it is changed in place.

    ``backward_passes_per_step``: gradients of this number of passes are added up, and reduced at the last one;
    ``average_aggregated_gradients`` divides them by that number. In a session the sums are local variables: run
    ``tf.compat.v1.local_variables_initializer()``, too. ``name`` and ``use_locking`` belong to the optimizer.
    """
    if use_locking:
        raise ValueError("use_locking belongs to the optimizer: pass it to that one's constructor")
    if op == Adasum:
        raise NotImplementedError(
            "op=Adasum combines changes of parameters, which only phalanx.torch does: use op=Average here"
        )
    kind = _kind_of(optimizer)
    if kind is _Keras3:
        optimizer = with_loss_scale(optimizer)
    reducer = Reducer(
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
    )
    reducer.remedy = _alike.OF_SESSIONS if kind is _Version1 else _alike.OF_KERAS
    return distribute(optimizer, kind, reducer)


def PartialDistributedOptimizer(optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any) -> Any:
    """As :func:`DistributedOptimizer`; gradients of ``local_layers`` stay on this rank."""
    return with_local_layers(DistributedOptimizer(optimizer, *args, **kwargs), local_layers)


def with_local_layers(optimizer: Any, local_layers: Any) -> Any:
    """The distributed optimizer; gradients of these layers stay on this rank."""
    for variable in variables_of(local_layers):
        optimizer.register_local_var(variable)
    return optimizer


__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer"]
