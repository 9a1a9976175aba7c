"""Batch normalization over the batches of all ranks, as a layer of Keras 3."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from phalanx.process_sets import ProcessSet, global_process_set, set_id
from phalanx.reductions import Sum
from phalanx.tensorflow.collectives import allreduce


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """As :class:`keras.layers.BatchNormalization`; in training, with mean and variance over the batches of all ranks."""

    def __init__(self, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if kwargs.pop("synchronized", False):
            raise ValueError("synchronized=True is for tf.distribute: leave it out, this layer synchronizes ranks")
        if kwargs.pop("fused", False):
            raise ValueError("fused=True does not synchronize: leave it out")
        super().__init__(*args, **kwargs)
        self.process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        set_id(self.process_set)
        if len(self.process_set.ranks) == 1:
            return super()._moments(inputs, mask)  # type: ignore[no-any-return]
        inputs = tf.convert_to_tensor(inputs)
        axes = list(self._reduction_axes)
        if mask is None:
            weights = tf.ones_like(inputs)
        else:
            weights = tf.cast(tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs)), inputs.dtype)
        sums = tf.stack([tf.reduce_sum(inputs * weights, axes), tf.reduce_sum(weights, axes)])
        sums = allreduce(sums, op=Sum, process_set=self.process_set)
        n = tf.maximum(tf.stop_gradient(sums[1]), tf.cast(1, sums.dtype))
        mean = sums[0] / n
        shape = [1] * inputs.shape.rank
        shape[self.axis] = -1
        apart = (inputs - tf.reshape(mean, shape)) * weights
        variance = allreduce(tf.reduce_sum(apart * apart, axes), op=Sum, process_set=self.process_set) / n
        return mean, variance


__all__ = ["SyncBatchNormalization"]
