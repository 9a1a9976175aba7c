"""Recovery from failures for models of Keras 3, on any backend; see :mod:`phalanx.elastic`."""

from __future__ import annotations

import sys
from typing import Any

import keras

from phalanx import _keras_callbacks as _callbacks
from phalanx.elastic import ObjectState, run


class KerasState(ObjectState):
    """The state of a training: the model's variables, its optimizer's, and other values that can be pickled."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("the model has no weights yet: build it first, e.g. model.build(input_shape)")
        self.model = model
        self._optimizer = optimizer
        self._saved: list[tuple[Any, Any]] = []
        super().__init__(**kwargs)
        self._keep()

    def _variables(self) -> list[Any]:
        return _callbacks.weights_of(self.model, self._optimizer)

    def _keep(self) -> None:
        variables = self._variables()
        self._saved = list(zip(variables, _callbacks.arrays_of(variables), strict=True))

    def save(self) -> None:
        """Saves copies of the variables and the attributes."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Restores the saved values."""
        for variable, value in self._saved:
            variable.assign(value)
        _forget_passes()
        super().restore()

    def sync(self) -> None:
        """Takes rank 0's values."""
        _callbacks.broadcast_weights(self._variables(), 0)
        _forget_passes()
        self._keep()
        super().sync()


def _forget_passes() -> None:
    """Only TensorFlow's optimizers have several passes for a step."""
    gradients: Any = sys.modules.get("phalanx.tensorflow.gradients")
    if gradients is not None:
        gradients.forget_passes()


class CommitStateCallback(_callbacks.CommitState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _callbacks.CommitState.__doc__


class UpdateBatchStateCallback(_callbacks.UpdateBatchState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _callbacks.UpdateBatchState.__doc__


class UpdateEpochStateCallback(_callbacks.UpdateEpochState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = _callbacks.UpdateEpochState.__doc__


__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
