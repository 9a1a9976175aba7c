"""Recovery from failures for variables, models and optimizers; see :mod:`phalanx.elastic`.

Errors of collectives inside functions, sessions and ``fit`` are Phalanx's own exceptions, so ``run`` needs no words of its
own for TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from phalanx.elastic import HostsUpdatedInterrupt, ObjectState, State, run
from phalanx.tensorflow.functions import broadcast_variables
from phalanx.tensorflow.gradients import forget_passes


class TensorFlowState(ObjectState):
    """The state of a training: variables, and any other values that can be pickled.

    In a ``tf.compat.v1`` graph it needs the session, and without ``variables`` takes the graph's global ones.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None:
            if tf.executing_eagerly():
                raise ValueError("pass the variables: eager code has no global ones, model.variables are a model's")
            variables = tf.compat.v1.global_variables()
        if session is None and not tf.executing_eagerly():
            session = tf.compat.v1.get_default_session()
            if session is None:
                raise ValueError("a graph's variables live in a session: pass session=")
        self._variables = list(variables)
        self._session = session
        self._values: list[Any] = []
        self._broadcast: Any = None
        self._assign: list[tuple[Any, Any]] = []
        if session is not None:
            for v in self._variables:
                given = tf.compat.v1.placeholder(v.dtype.base_dtype, v.shape)
                self._assign.append((given, v.assign(given)))
        super().__init__(**kwargs)
        self._keep()

    def _current(self) -> list[Any]:
        """The variables as they are now: an optimizer makes some of its own at its first step."""
        return self._variables

    def _keep(self) -> None:
        if self._session is not None:
            self._values = self._session.run(self._variables)
        else:
            self._values = [(v, _array(v)) for v in self._current()]

    def save(self) -> None:
        """Saves copies of the variables and the attributes."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Restores the saved values."""
        if self._session is not None:
            feed = {given: value for (given, _), value in zip(self._assign, self._values, strict=True)}
            self._session.run([op for _, op in self._assign], feed)
        else:
            for variable, value in self._values:
                variable.assign(value)
        forget_passes(self._session)
        super().restore()

    def sync(self) -> None:
        """Takes rank 0's values."""
        if self._session is not None:
            if self._broadcast is None:
                self._broadcast = broadcast_variables(self._variables, 0)
            self._session.run(self._broadcast)
        else:
            broadcast_variables(self._current(), 0)
        forget_passes(self._session)
        self._keep()
        super().sync()


class TensorFlowKerasState(TensorFlowState):
    """The state of a training with a model of Keras: its weights, its optimizer's, and other values."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if backend is not None and not hasattr(backend, "backend"):
            raise ValueError("backend must be keras.backend, or left out")
        if not getattr(model, "built", True):
            raise ValueError("the model has no weights yet: build it first, e.g. model.build(input_shape)")
        self._model = model
        self._optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        super().__init__([], **kwargs)

    def _current(self) -> list[Any]:
        found = list(self._model.weights)
        if self._optimizer is not None:
            theirs = self._optimizer.variables
            found += list(theirs() if callable(theirs) else theirs)
        return found


def _array(variable: Any) -> Any:
    value = variable.value if hasattr(variable, "value") and not callable(variable.value) else variable
    return tf.convert_to_tensor(value).numpy().copy()


__all__ = ["HostsUpdatedInterrupt", "ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]
