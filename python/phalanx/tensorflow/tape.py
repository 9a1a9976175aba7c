"""Tapes whose gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from phalanx.exceptions import UnsupportedError
from phalanx.process_sets import ProcessSet, global_process_set
from phalanx.reductions import Average
from phalanx.tensorflow.compression import Compression
from phalanx.tensorflow.gradients import Reducer


class _Tape:
    """What :func:`DistributedGradientTape` adds to the class of a tape."""

    _phalanx: Reducer

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The gradients of all ranks as one."""
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)  # type: ignore[misc]
        flat = tf.nest.flatten(gradients)
        done = self._phalanx.reduced(flat, tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, done)

    def jacobian(self, *_args: Any, **_kwargs: Any) -> Any:
        """Refused: only ``gradient()`` reduces."""
        raise UnsupportedError("only gradient() is reduced: ask the tf.GradientTape inside, and reduce its jacobian with allreduce()")

    batch_jacobian = jacobian

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable stays on this rank."""
        self._phalanx.local.append(source)


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The tape with gradients of all ranks: ``gradient()`` computes this rank's and reduces them."""
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"expected a tf.GradientTape, not a {type(gradtape).__name__}")
    if isinstance(gradtape, _Tape):
        raise ValueError("this tape is a DistributedGradientTape already: its gradients would be reduced twice")
    kind: Any = type(gradtape.__class__.__name__, (_Tape, gradtape.__class__), {})
    made = kind.__new__(kind)
    # One dictionary for both, so that either may record.
    made.__dict__ = gradtape.__dict__
    made._phalanx = Reducer(
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
    )
    return made


def PartialDistributedGradientTape(gradtape: Any, *args: Any, local_layers: Any = None, **kwargs: Any) -> Any:
    """As :func:`DistributedGradientTape`; gradients of ``local_layers`` stay on this rank."""
    tape = DistributedGradientTape(gradtape, *args, **kwargs)
    for variable in variables_of(local_layers):
        tape.register_local_source(variable)
    return tape


def variables_of(layers: Any) -> list[Any]:
    """The trainable variables of a layer, or of several."""
    if layers is None:
        return []
    layers = layers if isinstance(layers, Sequence) else [layers]
    found = []
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers must be layers of Keras, not a {type(layer).__name__}")
        for weight in layer.trainable_weights:
            found.append(getattr(weight, "value", weight) if not hasattr(weight, "ref") else weight)
    return found


__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]
