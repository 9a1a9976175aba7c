"""Programs that are wrong or unusual: they work, or are refused in one sentence."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from ranks import run_ranks

import phalanx.keras as any_keras
import phalanx.tensorflow as hvd
import phalanx.tensorflow.keras as khvd

X, Y = np.linspace(-1, 1, 48).reshape(8, 6), np.ones((8, 1))


def net(units: int = 4) -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(units, "tanh"), keras.layers.Dense(1)])


def compiled_by_xla() -> None:
    for word in ("auto", False):
        model = net()
        model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=word)
        model.fit(X, Y, 4, verbose=0)
        assert not model.jit_compile
    for eager in (True, False):
        model = net()
        model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", run_eagerly=eager, jit_compile=False)
        model.fit(X, Y, 4, verbose=0)
    model = net()
    model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
    with pytest.raises(ValueError, match=r"jit_compile=False.*model.compile"):
        model.fit(X, Y, 4, verbose=0)
    v = tf.Variable([1.0])

    @tf.function(jit_compile=True)
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = v * 2.0
        return hvd.DistributedGradientTape(tape).gradient(loss, [v])

    @tf.function
    def inner(x: Any) -> Any:
        return hvd.allreduce(x)

    outer = tf.function(lambda x: inner(x) + 1.0, jit_compile=True)
    for call in (step, lambda: outer(tf.ones([2]))):
        with pytest.raises(ValueError, match="jit_compile=False"):
            call()
    # Traced before: XLA itself refuses it, at the first run.
    inner(tf.ones([2]))
    with pytest.raises((ValueError, tf.errors.OpError), match="jit_compile=False"):
        tf.function(lambda x: inner(x) + 1.0, jit_compile=True)(tf.ones([2]))


def test_xla() -> None:
    run_ranks(2, compiled_by_xla)


def frozen() -> None:
    model = net()
    model.layers[0].trainable = False
    before = model.layers[0].get_weights()
    model.compile(khvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    model.fit(X * (hvd.rank() + 1), Y, 4, verbose=0, callbacks=[khvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    for a, b in zip(before, model.layers[0].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    weights = hvd.allgather_object([w.tobytes() for w in model.get_weights()])
    assert weights[0] == weights[1]
    # Layers that are frozen on one rank only.
    model = net()
    model.layers[0].trainable = hvd.rank() == 0
    model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(hvd.MismatchError, match=r"rank 0 has 4 gradients.*rank 1 has 2 gradients"):
        model.fit(X, Y, 4, verbose=0)


def test_frozen_layers() -> None:
    """GRADS-3."""
    run_ranks(2, frozen)


def two_models() -> None:
    first, second = net(), net()
    one, two = (khvd.DistributedOptimizer(keras.optimizers.SGD(0.1)) for _ in range(2))
    x = tf.constant(X * (hvd.rank() + 1), tf.float32)

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            a, b = tf.reduce_mean(first(x) ** 2), tf.reduce_mean((second(x) - first(x)) ** 2)
        one.apply_gradients(zip(tape.gradient(a, first.trainable_variables), first.trainable_variables, strict=True))
        two.apply_gradients(zip(tape.gradient(b, second.trainable_variables), second.trainable_variables, strict=True))

    for _ in range(3):
        step(x)
    weights = hvd.allgather_object([w.tobytes() for w in first.get_weights() + second.get_weights()])
    assert weights[0] == weights[1] and weights[0][:4] != weights[0][4:]
    # In turns, by functions that have the same name.
    models = [net(), net(7)]
    for model in models:
        model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    for _ in range(4):
        for model in models:
            model.train_on_batch(X * (hvd.rank() + 1), Y)
    weights = hvd.allgather_object([w.tobytes() for model in models for w in model.get_weights()])
    assert weights[0] == weights[1]


def test_two_models_in_one_step() -> None:
    run_ranks(2, two_models)


def unknown_shapes() -> None:
    r = hvd.rank()

    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec(None)])
    def step(x: Any, y: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum), hvd.allgather(x), hvd.allreduce(y, op=hvd.Max), hvd.reducescatter(x, op=hvd.Sum)

    for rows in (2, 4, 1):
        total, gathered, most, part = step(tf.ones([rows, 3]), tf.fill([rows, rows], float(r)))
        assert total.shape == (rows, 3) and gathered.shape == (2 * rows, 3)
        assert float(most[0][0]) == 1.0 and part.shape == ((rows + 1 - r) // 2, 3)
    # Rows of ranks may differ in number only where they are gathered.
    assert tf.function(hvd.allgather, input_signature=[tf.TensorSpec([None])])(tf.ones([r + 1])).shape == (3,)


def test_unknown_dimensions() -> None:
    run_ranks(2, unknown_shapes)


def odd_tensors() -> None:
    r = hvd.rank()
    assert float(hvd.allreduce(1.0 + r)) == 1.5
    assert hvd.allreduce(np.full(2, float(r))).numpy().tolist() == [0.5, 0.5]
    assert hvd.allreduce(tf.Variable([1.0 + r])).numpy().tolist() == [1.5]
    assert hvd.allreduce(keras.Variable([1.0 + r])).numpy().tolist() == [1.5]
    assert hvd.allreduce(tf.zeros([0, 3])).shape == (0, 3) and hvd.allgather(tf.zeros([0, 3])).shape == (0, 3)
    assert hvd.allreduce(tf.constant([r], tf.uint8), op=hvd.Sum).numpy().tolist() == [1]
    assert hvd.allreduce(tf.fill([3], tf.cast(r + 1, tf.float16)), op=hvd.Sum).numpy().tolist() == [3.0] * 3
    assert hvd.broadcast(tf.zeros([0]), 1).shape == (0,)
    hvd.broadcast_variables([], 0)
    empty = tf.IndexedSlices(tf.zeros([r, 2]), tf.zeros([r], tf.int32), tf.constant([4, 2]))
    assert hvd.allreduce(empty).values.shape == (1, 2)
    mixed = hvd.grouped_allreduce([tf.constant(r), tf.constant([1.0 + r, 0.0]), tf.zeros([0])], op=hvd.Sum)
    assert int(mixed[0]) == 1 and mixed[1].numpy().tolist() == [3.0, 0.0]
    for bad, words in (
        (tf.sparse.from_dense([[1.0, 0.0]]), "tf.sparse.to_dense"),
        (tf.ragged.constant([[1.0], [2.0, 3.0]]), "to_tensor"),
        (tf.constant([1], tf.uint32), "tf.cast"),
        (tf.constant([1j]), "tf.cast"),
        (tf.constant(["a"]), "tf.cast"),
        (None, "None"),
    ):
        for call in (hvd.allreduce, hvd.allgather, lambda x: hvd.broadcast(x, 0), hvd.alltoall, hvd.reducescatter):
            with pytest.raises(ValueError, match=words):
                call(bad)


def test_tensors_of_every_kind() -> None:
    run_ranks(2, odd_tensors)


def refused() -> None:
    v, w = tf.Variable([1.0, 2.0]), tf.Variable([[1.0]])
    opt = keras.optimizers.SGD(0.1)
    for call, words in (
        (lambda: hvd.DistributedOptimizer("sgd"), "keras.optimizers.get|not a str"),
        (lambda: hvd.DistributedOptimizer(net()), "Sequential"),
        (lambda: hvd.DistributedOptimizer(opt, compression="fp16"), "Compression.none"),
        (lambda: hvd.DistributedOptimizer(opt, backward_passes_per_step=0), "backward_passes_per_step"),
        (lambda: hvd.DistributedOptimizer(opt, op="average"), "op must be one of"),
        (lambda: hvd.DistributedOptimizer(opt, process_set=[0]), "process_set must be"),
        (lambda: hvd.DistributedOptimizer(opt, sparse_as_dense="yes"), "sparse_as_dense must be True or False"),
        (lambda: hvd.DistributedGradientTape(v), "tf.GradientTape"),
        (lambda: hvd.DistributedGradientTape(hvd.DistributedGradientTape(tf.GradientTape())), "already"),
        (lambda: hvd.broadcast_variables(net(), 0), "model.variables"),
        (lambda: hvd.broadcast_variables(v, 0), "list of variables"),
        (lambda: hvd.broadcast_variables([tf.ones(2)], 0), "assigned"),
        (lambda: hvd.broadcast_variables([v], "0"), "root_rank must be"),
        (lambda: khvd.callbacks.BroadcastGlobalVariablesCallback("0"), "root_rank must be"),
        (lambda: hvd.allreduce(v, average=True, op=hvd.Sum), "same argument"),
        (lambda: hvd.allreduce(v, prescale_factor="2"), "prescale_factor must be a number"),
        (lambda: hvd.alltoall(v, splits=[1]), "splits"),
        (lambda: any_keras.DistributedOptimizer(opt, process_set=[0]), "process_set must be"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    # Nothing of it has changed the optimizer.
    assert type(opt) is keras.optimizers.SGD
    with tf.GradientTape(persistent=True) as tape:
        y = v * w[0]
    tape = hvd.DistributedGradientTape(tape)
    for name in ("jacobian", "batch_jacobian"):
        with pytest.raises(ValueError, match="gradient"):
            getattr(tape, name)(y, v)
    other = hvd.add_process_set([0])
    if hvd.rank() == 1:
        with pytest.raises(ValueError, match="rank 1 is not in"):
            hvd.allreduce(v, process_set=other)
        with pytest.raises(ValueError, match="rank 1 is not in"):
            tf.function(lambda x: hvd.allreduce(x, process_set=other))(v)
    hvd.remove_process_set(other)
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(v, process_set=other)


def test_what_is_wrong_is_refused() -> None:
    run_ranks(2, refused)


def different_variables() -> None:
    r = hvd.rank()
    variables = [tf.Variable(tf.ones([2])) for _ in range(2 + r)]
    with pytest.raises(hvd.MismatchError, match="rank 1 has variable 2"):
        hvd.broadcast_variables(variables, 0)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = [tf.compat.v1.get_variable(f"v{i}", initializer=tf.ones([2])) for i in range(2 + r)]
        sent = hvd.broadcast_variables(made, 0)
        session.run(tf.compat.v1.global_variables_initializer())
        with pytest.raises(hvd.MismatchError, match=r"rank 0 has 2 variables.*rank 1 has 3 variables"):
            session.run(sent)
    model = net(4 + r)
    model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(hvd.MismatchError, match="variables of the model"):
        model.fit(X, Y, 4, verbose=0, callbacks=[khvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    model = net()
    model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    validation = (X, Y) if r == 0 else None
    with pytest.raises(hvd.MismatchError, match="rank 0 has val_loss, which rank 1 does not have"):
        model.fit(X, Y, 4, verbose=0, validation_data=validation, callbacks=[khvd.callbacks.MetricAverageCallback()])
    hvd.allreduce(tf.ones([1]))


def test_ranks_with_different_variables_or_metrics_are_told_so() -> None:
    run_ranks(2, different_variables)


def dense_and_none() -> None:
    table, w, unused = tf.Variable(tf.ones([8, 2])), tf.Variable(1.0), tf.Variable(1.0)
    for wrap in (lambda f: f, tf.function):

        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [hvd.rank(), 3])) * w
            return hvd.DistributedGradientTape(tape, sparse_as_dense=True).gradient(loss, [table, unused, w])

        dense, none, _ = wrap(step)()
        assert none is None and dense.numpy()[:4, 0].tolist() == [0.5, 0.5, 0.0, 1.0]
    optimizer = khvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=True)
    optimizer.build([table, w])
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([hvd.rank()]), tf.constant([8, 2]))
    optimizer.apply([slices, None], [table, w])
    assert table.numpy()[:3, 0].tolist() == [0.5, 0.5, 1.0] and float(w) == 1.0


def test_sparse_as_dense_with_and_without_gradients() -> None:
    run_ranks(2, dense_and_none)


def clipped() -> None:
    """Clipping comes after the reduction: ranks whose gradients differ take the same step."""
    for options in ({"clipnorm": 0.1}, {"global_clipnorm": 0.1}, {"clipvalue": 0.1}):
        v = tf.Variable([1.0, 1.0])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, **options))
        optimizer.build([v])
        optimizer.apply([tf.constant([1.0, 0.0]) * (hvd.rank() * 100 + 1)], [v])
        assert len(set(hvd.allgather_object(v.numpy().tobytes()))) == 1
        np.testing.assert_allclose(v.numpy(), [0.9, 1.0], rtol=1e-6)


def test_clipping() -> None:
    run_ranks(2, clipped)


def mapped() -> None:
    x = tf.constant([[1.0], [2.0], [3.0]]) * (hvd.rank() + 1)
    expected = [[1.5], [3.0], [4.5]]
    assert tf.map_fn(hvd.allreduce, x).numpy().tolist() == expected
    assert tf.function(lambda x: tf.map_fn(hvd.allreduce, x))(x).numpy().tolist() == expected
    assert tf.vectorized_map(hvd.allreduce, x).numpy().tolist() == expected


def test_maps() -> None:
    run_ranks(2, mapped)


def saved(folder: str) -> None:
    class Average(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def __call__(self, x: Any) -> Any:
            return hvd.allreduce(x)

    path = f"{folder}/{hvd.rank()}"
    tf.saved_model.save(Average(), path)
    again = tf.saved_model.load(path)
    for n in (2, 3):
        assert again(tf.fill([n], 1.0 + hvd.rank())).numpy().tolist() == [1.5] * n


def test_saved_functions(tmp_path: Any) -> None:
    run_ranks(2, saved, str(tmp_path))
