"""The other names of the interface, on two ranks and on four: one start of each for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from ranks import run_ranks

import phalanx.tensorflow as hvd
import phalanx.tensorflow.keras as khvd


def places() -> None:
    rank, size = hvd.rank(), hvd.size()
    expected = [rank, size, hvd.local_rank(), hvd.local_size(), 1]

    def ask() -> list[Any]:
        return [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op()]

    for asked in (ask, tf.function(ask)):
        assert [int(n) for n in asked()] == expected
    assert (hvd.is_initialized(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (True, 0, 1, True)


def in_place() -> None:
    rank, size = hvd.rank(), hvd.size()
    variables = [tf.Variable([float(rank), 1.0]), tf.Variable(rank)]
    assert hvd.broadcast_(variables, size - 1, "first")[1] is variables[1]
    assert variables[0].numpy().tolist() == [size - 1.0, 1.0] and int(variables[1].numpy()) == size - 1
    variables[0].assign([float(rank), 2.0])

    @tf.function
    def given() -> None:
        hvd.broadcast_variables(variables, 0)

    given()
    assert variables[0].numpy().tolist() == [0.0, 2.0]

    @tf.function
    def met(x: Any) -> Any:
        with tf.control_dependencies([b for b in [hvd.barrier()] if b is not None]):
            return x + 1

    assert float(met(tf.constant(1.0))) == 2.0
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        got = hvd.allreduce(tf.fill([3], 0.5 + rank), op=hvd.Sum, compression=compression)
        np.testing.assert_allclose(got, np.full(3, 0.5 * size + size * (size - 1) / 2))
    for op, expected in ((hvd.Min, 1), (hvd.Max, size), (hvd.Product, np.prod(np.arange(1, size + 1)))):
        assert int(hvd.allreduce(tf.constant(rank + 1), op=op)) == expected
    np.testing.assert_allclose(hvd.allreduce(tf.ones([2]), op=hvd.Adasum), np.ones(2), rtol=1e-6)


def sessions() -> None:
    rank, size = hvd.rank(), hvd.size()
    tf1 = tf.compat.v1
    with tf.Graph().as_default(), tf1.Session() as session:
        v = tf1.get_variable("v", initializer=tf.constant([float(rank)]))
        everything = hvd.broadcast_global_variables(size - 1)
        optimizer = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0))
        train = optimizer.minimize(v * float(rank + 1), var_list=[v])
        session.run(tf1.global_variables_initializer())
        session.run(everything)
        session.run(train)
        np.testing.assert_allclose(session.run(v), [size - 1 - (size + 1) / 2])


def partial() -> None:
    rank, size = hvd.rank(), hvd.size()
    layer, other = keras.layers.Dense(1, use_bias=False), keras.Variable([0.0])
    layer.build((None, 1))
    layer.kernel.assign([[0.0]])
    made = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=[layer], scale_local_gradients=False)
    made.build([layer.kernel, other])
    made.apply([tf.constant([[rank + 1.0]]), tf.constant([rank + 1.0])], [layer.kernel, other])
    assert float(layer.kernel.numpy()[0][0]) == -(rank + 1.0) and float(other.numpy()[0]) == -(size + 1) / 2


def normalized() -> None:
    size, rank = hvd.size(), hvd.rank()
    everything = np.random.default_rng(3).standard_normal((4 * size, 3)).astype("float32")
    got = hvd.SyncBatchNormalization(axis=-1)(tf.constant(everything[rank * 4 : rank * 4 + 4]), training=True)
    expected = keras.layers.BatchNormalization(axis=-1)(tf.constant(everything), training=True)
    np.testing.assert_allclose(got, expected[rank * 4 : rank * 4 + 4], rtol=1e-4, atol=1e-5)


def applied(optimizer: Any, v: Any, gradient: float) -> Any:
    return tf.function(lambda: optimizer.apply([tf.constant([gradient])], [v]))


def passes() -> None:
    rank, size = hvd.rank(), hvd.size()
    for average, expected in ((False, size + 1.0), (True, (size + 1.0) / 2)):
        v = tf.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        optimizer.build([v])
        step = applied(optimizer, v, rank + 1.0)
        step()
        assert v.numpy().tolist() == [0.0]
        step()
        np.testing.assert_allclose(v.numpy(), [-expected])


def states() -> None:
    v = tf.Variable([float(hvd.rank())])
    state = hvd.elastic.TensorFlowState([v], step=hvd.rank())
    state.sync()
    assert v.numpy().tolist() == [0.0] and state.step == 0
    v.assign([5.0])
    state.restore()
    assert v.numpy().tolist() == [0.0]


def called_back(folder: str) -> None:
    rank, size = hvd.rank(), hvd.size()
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    full = 0.01 * size
    model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(full)), "mse")
    rates: list[float] = []

    class Rates(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    path = Path(folder) / f"best{rank}.keras"
    callbacks = [
        khvd.callbacks.BroadcastGlobalVariablesCallback(0),
        khvd.callbacks.MetricAverageCallback(),
        khvd.callbacks.LearningRateWarmupCallback(full, warmup_epochs=2, momentum_correction=False),
        khvd.callbacks.LearningRateScheduleCallback(full, 0.5, start_epoch=2, momentum_correction=False),
        khvd.callbacks.BestModelCheckpoint("loss", filepath=str(path)),
        Rates(),
    ]
    x, y = np.full((8, 2), rank + 1.0), np.ones((8, 1))
    history = model.fit(x, y, 2, epochs=3, verbose=0, callbacks=callbacks).history
    # From that of one rank, a step early, to that of all; then half of it.
    warm = [full / size * ((epoch + (step + 1) / 4) * (size - 1) / 2 + 1) for epoch in range(2) for step in range(4)]
    np.testing.assert_allclose(rates, [*warm, *[full / 2] * 4], rtol=1e-5)
    everywhere = hvd.allgather_object((history["loss"], [v.numpy().tobytes() for v in model.weights]))
    assert all(each == everywhere[0] for each in everywhere)
    assert path.exists() is (rank == 0)
    with pytest.raises(ValueError, match="filepath"):
        khvd.callbacks.BestModelCheckpoint()


def names(folder: str) -> None:
    places()
    in_place()
    sessions()
    partial()
    normalized()
    passes()
    states()
    called_back(folder)


@pytest.mark.parametrize("n", [2, 4])
def test_every_name(n: int, tmp_path: Path) -> None:
    run_ranks(n, names, str(tmp_path))
