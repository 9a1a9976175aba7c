"""Callbacks for ``fit`` of the Keras of TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx import _keras_callbacks as _callbacks
from phalanx import _world

_Callback: Any = tf.keras.callbacks.Callback


class BroadcastGlobalVariablesCallback(_callbacks.Broadcast, _Callback):  # type: ignore[misc]
    __doc__ = _callbacks.Broadcast.__doc__


class MetricAverageCallback(_callbacks.MetricAverage, _Callback):  # type: ignore[misc]
    __doc__ = _callbacks.MetricAverage.__doc__


class LearningRateScheduleCallback(_callbacks.LearningRateSchedule, _Callback):  # type: ignore[misc]
    __doc__ = _callbacks.LearningRateSchedule.__doc__


class LearningRateWarmupCallback(_callbacks.LearningRateWarmup, _Callback):  # type: ignore[misc]
    __doc__ = _callbacks.LearningRateWarmup.__doc__


class BestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the best model so far, on rank 0 only."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: str | None = None,
    ) -> None:
        if filepath is None:
            raise ValueError("BestModelCheckpoint needs filepath=, such as 'best.keras'")
        super().__init__(filepath, monitor, verbose, save_best_only=True, mode=mode, save_freq=save_freq)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if _world.rank() == 0:
            super()._save_model(*args, **kwargs)


__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
