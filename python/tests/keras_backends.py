"""What Keras 3 does alike on its backends torch and JAX; the tests of each backend call it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import phalanx.keras as hvd
from phalanx.exceptions import MismatchError

STEPS, BATCH = 5, 8


def rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((STEPS * BATCH, 6))
    return x, x.sum(1, keepdims=True)


def share(all_rows: Any, size: int, rank: int) -> Any:
    """This rank's rows of every batch."""
    n = BATCH // size
    return all_rows.reshape(STEPS, BATCH, -1)[:, rank * n : (rank + 1) * n].reshape(STEPS * n, -1)


def model_of(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])


def optimizer_of(kind: str) -> Any:
    return keras.optimizers.Adam(0.01) if kind == "adam" else keras.optimizers.SGD(0.1, momentum=0.9)


def weights_of(model: Any) -> list[Any]:
    return [np.asarray(keras.ops.convert_to_numpy(v)) for v in model.trainable_variables]


def fitted(kind: str, size: int, rank: int) -> list[Any]:
    """The weights after ``fit``, in float64."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        model = model_of(rank if size > 1 else 0)
        optimizer, callbacks = optimizer_of(kind), []
        if size > 1:
            optimizer = hvd.DistributedOptimizer(optimizer)
            callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        model.compile(optimizer, "mse")
        x, y = (share(part, size, rank) for part in rows())
        history = model.fit(x, y, BATCH // size, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        losses = hvd.allgather_object(history.history["loss"]) if size > 1 else []
        assert all(loss == losses[0] for loss in losses)
        return weights_of(model)
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def fit(kind: str) -> list[Any]:
    return fitted(kind, hvd.size(), hvd.rank())


def assert_alike(got: list[list[Any]], expected: list[Any]) -> None:
    # On torch Keras multiplies matrices of float64 in float32.
    tolerance = 1e-5 if keras.backend.backend() == "torch" else 1e-12
    for mine in got:
        for a, b in zip(mine, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def rest(folder: str) -> None:
    """Saved models, states, schedules, loss scales, what is refused."""
    rank, size = hvd.rank(), hvd.size()
    x, y = (part.astype("float32") for part in rows())
    model = model_of(0)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    seen = []

    class Seen(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            # What was committed are the weights of this very batch.
            kept = [value for _, value in state._saved]
            now = weights_of(self.model)
            seen.append(all(any(np.array_equal(v, k) for k in kept) for v in now))

    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, 1),
        hvd.callbacks.LearningRateWarmupCallback(0.01 * size, warmup_epochs=1, steps_per_epoch=5, momentum_correction=False),
        hvd.callbacks.BestModelCheckpoint("loss", filepath=str(Path(folder) / f"best{rank}.keras")),
        Seen(),
    ]
    model.fit(x, y, 8, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
    assert seen == [True] * 5 and (state.epoch, state.batch) == (1, 0)
    np.testing.assert_allclose(float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)), 0.01 * size, rtol=1e-6)
    assert (Path(folder) / f"best{rank}.keras").exists() is (rank == 0)
    path = str(Path(folder) / f"{rank}.keras")
    model.save(path)
    again = hvd.load_model(path)
    assert hasattr(again.optimizer, "_phalanx")
    for trained in (model, again):
        trained.fit(x * (rank + 1), y, 8, shuffle=False, verbose=0)
    for a, b in zip(weights_of(model), weights_of(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for wrong in ({"num_groups": 2}, {"backward_passes_per_step": 2}, {"compression": hvd.Compression.fp16}):
        with pytest.raises(ValueError, match="TensorFlow backend"):
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **wrong)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(model.optimizer)
    with pytest.raises(MismatchError):
        hvd.allreduce(np.ones(2 + rank), "shapes")
    scaled()


def scaled() -> None:
    """One rank's gradients overflow: all ranks skip that step."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = model_of(0)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
        x, y = rows()
        before = weights_of(model)
        model.fit(x * (1e6 if hvd.rank() == 1 else 1.0), y, 40, verbose=0, shuffle=False)
        for a, b in zip(weights_of(model), before, strict=True):
            np.testing.assert_array_equal(a, b)
        model.fit(x * (hvd.rank() + 1), y, 8, verbose=0, shuffle=False)
        alike = hvd.allgather_object([v.tobytes() for v in weights_of(model)])
        assert all(other == alike[0] for other in alike)
    finally:
        keras.mixed_precision.set_global_policy("float32")
