"""A rank that dies: the others hear which one and why, in eager code, functions, sessions and ``fit``."""

from __future__ import annotations

import os
import signal
from typing import Any

import horovod.tensorflow as shim
import keras
import numpy as np
import pytest
import tensorflow as tf
from ranks import run_ranks

import phalanx.tensorflow as hvd
import phalanx.tensorflow.keras as khvd


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def heard(error: BaseException) -> tuple[str, Any, str]:
    assert isinstance(error, shim.HorovodInternalError), repr(error)
    return type(error).__name__, getattr(error, "rank", None), str(getattr(error, "cause", None) or "")


def dying(where: str) -> Any:
    if where == "eager":
        hvd.allreduce(tf.ones([2]))
        if hvd.rank() == 1:
            die()
        with pytest.raises(shim.HorovodInternalError) as caught:
            for _ in range(1000):
                hvd.allreduce(tf.ones([2]))
    elif where == "function":

        @tf.function
        def step(x: Any) -> Any:
            return hvd.allreduce(x)

        step(tf.ones([2]))
        if hvd.rank() == 1:
            die()
        with pytest.raises(shim.HorovodInternalError) as caught:
            for _ in range(1000):
                step(tf.ones([2]))
    elif where == "session":
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            # Several at once: the step ends although the others wait, too.
            total = tf.add_n([hvd.allreduce(tf.ones([2]), name=f"t{i}") for i in range(10)])
            session.run(total)
            if hvd.rank() == 1:
                die()
            with pytest.raises(shim.HorovodInternalError) as caught:
                for _ in range(1000):
                    session.run(total)
    elif where == "monitored":
        with tf.Graph().as_default():
            weight = tf.compat.v1.get_variable("w", initializer=[1.0])
            optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
            step = optimizer.minimize(tf.reduce_sum(weight * weight))
            # It begins again by itself after some errors; not after this one, alone.
            hooks = [hvd.BroadcastGlobalVariablesHook(0)]
            monitored = tf.compat.v1.train.MonitoredTrainingSession
            with pytest.raises(shim.HorovodInternalError) as caught, monitored(hooks=hooks) as session:
                for i in range(1000):
                    if i == 5 and hvd.rank() == 1:
                        die()
                    session.run(step)
    else:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")

        class Fatal(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                if batch == 3 and hvd.rank() == 1:
                    die()

        with pytest.raises(shim.HorovodInternalError) as caught:
            model.fit(np.ones((4000, 2)), np.ones((4000, 1)), 1, verbose=0, callbacks=[Fatal()])
    assert isinstance(caught.value, tf.errors.OpError)
    return heard(caught.value)


@pytest.mark.parametrize("where", ["eager", "function", "session", "monitored", "fit"])
def test_a_rank_that_dies(where: str) -> None:
    results = run_ranks(2, dying, where, fresh=True)
    name, rank, cause = results[0]
    assert (name, rank) == ("RankLostError", 1) and cause


def recovering() -> int:
    v = tf.Variable([float(hvd.rank())])
    state = hvd.elastic.TensorFlowState([v], step=0)
    attempts = 0

    @hvd.elastic.run
    def train(state: Any) -> None:
        nonlocal attempts
        attempts += 1
        assert v.numpy().tolist() == [float(state.step)]
        while state.step < 4:
            v.assign_add([1.0])
            state.step += 1
            state.commit()
            if state.step == 2 and attempts == 1:
                v.assign([77.0])
                raise shim.HorovodInternalError("as ordered")

    train(state)
    assert v.numpy().tolist() == [4.0] and attempts == 2
    return attempts


def test_elastic_state() -> None:
    assert run_ranks(2, recovering) == [2, 2]


def keras_state() -> None:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(khvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    state = hvd.elastic.TensorFlowKerasState(model, batch=0, epoch=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        callbacks = [
            khvd.elastic.UpdateBatchStateCallback(state),
            khvd.elastic.UpdateEpochStateCallback(state),
            khvd.elastic.CommitStateCallback(state, 2),
        ]
        model.fit(np.ones((8, 2)), np.ones((8, 1)), 2, epochs=2, verbose=0, callbacks=callbacks)

    train(state)
    assert (state.epoch, state.batch) == (2, 0)
    before = [w.numpy() for w in model.weights]
    for w in model.weights:
        w.assign(w * 0 + 5)
    state.restore()
    for a, b in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


def test_keras_state() -> None:
    run_ranks(2, keras_state)
