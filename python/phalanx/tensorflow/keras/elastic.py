"""Recovery from failures for models of the Keras of TensorFlow; see :mod:`phalanx.elastic`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx import _keras_callbacks as _callbacks
from phalanx.elastic import run
from phalanx.tensorflow.elastic import TensorFlowKerasState

_Callback: Any = tf.keras.callbacks.Callback


class KerasState(TensorFlowKerasState):
    __doc__ = TensorFlowKerasState.__doc__


class CommitStateCallback(_callbacks.CommitState, _Callback):  # type: ignore[misc]
    __doc__ = _callbacks.CommitState.__doc__


class UpdateBatchStateCallback(_callbacks.UpdateBatchState, _Callback):  # type: ignore[misc]
    __doc__ = _callbacks.UpdateBatchState.__doc__


class UpdateEpochStateCallback(_callbacks.UpdateEpochState, _Callback):  # type: ignore[misc]
    __doc__ = _callbacks.UpdateEpochState.__doc__


__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
