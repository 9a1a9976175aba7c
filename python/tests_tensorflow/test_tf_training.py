"""Two ranks end with the parameters of one that has all the data: tapes, Keras, sessions; dense and sparse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from ranks import run_ranks

import phalanx.keras as any_keras
import phalanx.tensorflow as hvd
import phalanx.tensorflow.keras as khvd

STEPS, BATCH = 5, 8
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


def data() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((STEPS * BATCH, 6))
    words = rng.integers(0, 10, (STEPS * BATCH, 3))
    return x, words, (x.sum(1, keepdims=True) + words.sum(1, keepdims=True) / 10)


def share(all_rows: Any, size: int, rank: int) -> Any:
    """This rank's rows of every batch."""
    batches = all_rows.reshape(STEPS, BATCH, -1)
    n = BATCH // size
    return batches[:, rank * n : (rank + 1) * n]


class Net:
    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shapes = [(6, 4), (4,), (4, 1), (10, 4)]
        self.variables = [tf.Variable(rng.standard_normal(s) * 0.3, dtype=tf.float64) for s in shapes]

    def loss(self, x: Any, words: Any, y: Any) -> Any:
        w, b, v, table = self.variables
        hidden = tf.tanh(x @ w + b + tf.reduce_mean(tf.nn.embedding_lookup(table, words), 1))
        return tf.reduce_mean((hidden @ v - y) ** 2)


def trained(kind: str, size: int, rank: int, in_function: bool, **options: Any) -> list[Any]:
    net = Net(rank if size > 1 else 0)
    if size > 1:
        hvd.broadcast_variables(net.variables, root_rank=0)
    optimizer = OPTIMIZERS[kind]()
    rows = [share(part, size, rank) for part in data()]

    def step(x: Any, words: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = net.loss(x, words, y)
        if size > 1:
            tape = hvd.DistributedGradientTape(tape, **options)
        gradients = tape.gradient(loss, net.variables)
        assert options.get("sparse_as_dense") or isinstance(gradients[3], tf.IndexedSlices)
        optimizer.apply_gradients(zip(gradients, net.variables, strict=True))

    run: Any = tf.function(step) if in_function else step
    for i in range(STEPS):
        run(*[tf.constant(part[i]) for part in rows])
    return [v.numpy() for v in net.variables]


def tape(kind: str, in_function: bool, options: dict[str, Any]) -> list[Any]:
    return trained(kind, hvd.size(), hvd.rank(), in_function, **options)


def assert_alike(got: list[list[Any]], expected: list[Any], tolerance: float = 1e-12) -> None:
    for mine in got:
        for a, b in zip(mine, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("in_function", [True, False])
def test_tapes(kind: str, in_function: bool) -> None:
    assert_alike(run_ranks(2, tape, kind, in_function, {}), trained(kind, 1, 0, False))


@pytest.mark.parametrize(
    "options", [{"sparse_as_dense": True}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0}, {"groups": 1}]
)
def test_options_of_tapes(options: dict[str, Any]) -> None:
    assert_alike(run_ranks(2, tape, "sgd", True, options), trained("sgd", 1, 0, False))


def test_four_ranks() -> None:
    assert_alike(run_ranks(4, tape, "sgd", True, {}), trained("sgd", 1, 0, False))


def model_of(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def fitted(kind: str, size: int, rank: int, door: Any = khvd, **options: Any) -> list[Any]:
    keras.backend.set_floatx("float64")
    # Once a model was made, the policy no longer follows.
    keras.config.set_dtype_policy("float64")
    try:
        model = model_of(rank if size > 1 else 0)
        optimizer = OPTIMIZERS[kind]()
        callbacks = []
        if size > 1:
            optimizer = door.DistributedOptimizer(optimizer, **options)
            callbacks = [door.callbacks.BroadcastGlobalVariablesCallback(0), door.callbacks.MetricAverageCallback()]
        model.compile(optimizer, "mse")
        x, _, y = data()
        x, y = (share(part, size, rank).reshape(-1, part.shape[1]) for part in (x, y))
        passes = options.get("backward_passes_per_step", 1)
        batch = BATCH // size // passes
        history = model.fit(x, y, batch, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        losses = hvd.allgather_object(history.history["loss"]) if size > 1 else []
        assert all(loss == losses[0] for loss in losses)
        return [v.numpy() for v in model.trainable_variables]
    finally:
        keras.backend.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def fit(kind: str, options: dict[str, Any]) -> list[Any]:
    return fitted(kind, hvd.size(), hvd.rank(), **options)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_fit(kind: str) -> None:
    assert_alike(run_ranks(2, fit, kind, {}), fitted(kind, 1, 0))


def test_fit_with_several_passes_for_a_step() -> None:
    options = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    assert_alike(run_ranks(2, fit, "sgd", options), fitted("sgd", 1, 0))


def fitted_words(kind: str, size: int, rank: int) -> list[Any]:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        keras.utils.set_random_seed(rank if size > 1 else 0)
        parts = [keras.layers.Embedding(10, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input((3,), dtype="int64"), *parts])
        optimizer, callbacks = OPTIMIZERS[kind](), []
        if size > 1:
            optimizer = khvd.DistributedOptimizer(optimizer)
            callbacks = [khvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        model.compile(optimizer, "mse")
        _, words, y = data()
        words, y = (share(part, size, rank).reshape(-1, part.shape[1]) for part in (words, y))
        model.fit(words, y, BATCH // size, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        return [v.numpy() for v in model.trainable_variables]
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def fit_words(kind: str) -> list[Any]:
    return fitted_words(kind, hvd.size(), hvd.rank())


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_fit_with_an_embedding(kind: str) -> None:
    assert_alike(run_ranks(2, fit_words, kind), fitted_words(kind, 1, 0))


def session(kind: str, size: int, rank: int, passes: int = 1) -> list[Any]:
    tf1 = tf.compat.v1
    made = {
        "sgd": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
        "adam": lambda: tf1.train.AdamOptimizer(0.01),
        "plain": lambda: tf1.train.GradientDescentOptimizer(0.1),
    }
    with tf.Graph().as_default():
        rng = np.random.default_rng(rank if size > 1 else 0)
        shapes = [(6, 4), (4,), (4, 1), (10, 4)]
        start = [tf.constant(rng.standard_normal(s) * 0.3, tf.float64) for s in shapes]
        net = Net.__new__(Net)
        net.variables = [tf1.get_variable(f"v{i}", initializer=s) for i, s in enumerate(start)]
        x, words, y = tf1.placeholder(tf.float64, [None, 6]), tf1.placeholder(tf.int64, [None, 3]), tf1.placeholder(tf.float64)
        optimizer = made[kind]()
        hooks = []
        if size > 1:
            optimizer = hvd.DistributedOptimizer(
                optimizer, backward_passes_per_step=passes, average_aggregated_gradients=True
            )
            hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        step = tf1.train.get_or_create_global_step()
        train = optimizer.minimize(net.loss(x, words, y), global_step=step)
        rows = [share(part, size, rank) for part in data()]
        n = BATCH // size // passes
        with tf1.train.MonitoredTrainingSession(hooks=hooks) as running:
            for i in range(STEPS):
                for k in range(passes):
                    feed = {t: part[i][k * n : (k + 1) * n] for t, part in zip((x, words, y), rows, strict=True)}
                    running.run(train, feed)
            return list(running.run(net.variables))


def in_session(kind: str, passes: int) -> list[Any]:
    return session(kind, hvd.size(), hvd.rank(), passes)


@pytest.mark.parametrize(("kind", "passes"), [("sgd", 1), ("adam", 1), ("plain", 2)])
def test_sessions(kind: str, passes: int) -> None:
    assert_alike(run_ranks(2, in_session, kind, passes), session(kind, 1, 0))


def saved(folder: str) -> None:
    model = model_of(0)
    model.compile(khvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    x, _, y = data()
    model.fit(x, y, 8, verbose=0)
    path = str(Path(folder) / f"{hvd.rank()}.keras")
    model.save(path)
    plain = keras.models.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.Adam
    again = khvd.load_model(path)
    assert int(again.optimizer.iterations.numpy()) == 5
    model.fit(x, y, 8, verbose=0, shuffle=False)
    again.fit(x, y, 8, verbose=0, shuffle=False)
    for a, b in zip(model.weights, again.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    with pytest.raises(ValueError, match="already"):
        khvd.DistributedOptimizer(model.optimizer)


def test_saved_models(tmp_path: Path) -> None:
    run_ranks(2, saved, str(tmp_path))


def half() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = model_of(0)
        model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
        x, _, y = data()
        # One rank's gradients overflow: both skip that step.
        x = x * (1e6 if hvd.rank() == 1 else 1.0)
        model.fit(x, y, 8, verbose=0, shuffle=False)
        alike = hvd.allgather_object([v.numpy().tobytes() for v in model.trainable_variables])
        assert alike[0] == alike[1]
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_mixed_precision() -> None:
    run_ranks(2, half)


def disagree() -> None:
    v = tf.Variable(tf.ones([8, 2]))
    with tf.GradientTape() as tape:
        y = tf.nn.embedding_lookup(v, [1]) if hvd.rank() else v * 2.0
        loss = tf.reduce_sum(y)
    with pytest.raises(hvd.MismatchError, match="sparse") as caught:
        hvd.DistributedGradientTape(tape).gradient(loss, [v])
    assert "dense" in str(caught.value) and "rank 0" in str(caught.value)
    # None on all ranks is no gradient.
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v)
    other = tf.Variable(1.0)
    assert hvd.DistributedGradientTape(tape).gradient(loss, [v, other])[1] is None


def test_gradients_that_differ_in_kind() -> None:
    """GRADS-1."""
    run_ranks(2, disagree)


def disagree_in_a_function() -> None:
    v, w = tf.Variable(tf.ones([8, 2])), tf.Variable(1.0)

    @tf.function
    def kinds() -> Any:
        with tf.GradientTape() as tape:
            y = tf.nn.embedding_lookup(v, [1]) if hvd.rank() else v * 2.0
            loss = tf.reduce_sum(y) * w
        return hvd.DistributedGradientTape(tape).gradient(loss, [v, w])

    with pytest.raises(hvd.MismatchError, match="sparse: 0") as caught:
        kinds()
    assert "rank 0 has 2 gradients (list" in str(caught.value) and "rank 1 has 2 gradients; sparse" in str(caught.value)
    a, b = tf.Variable([1.0]), tf.Variable([2.0])

    @tf.function
    def others() -> Any:
        # As many numbers on both ranks, of different variables: they must not be added up.
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a if hvd.rank() else b)
        return hvd.DistributedGradientTape(tape).gradient(loss, [a, b])

    with pytest.raises(hvd.MismatchError, match=r"rank 0 has 2 gradients; none: 0.*rank 1 has 2 gradients; none: 1"):
        others()


def test_gradients_that_differ_inside_of_a_function() -> None:
    """GRADS-3: an error at once, on all ranks, with both lists."""
    run_ranks(2, disagree_in_a_function)


def uneven() -> int:
    keras.backend.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        return fitted_unevenly(hvd.size(), hvd.rank())
    finally:
        keras.backend.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def fitted_unevenly(size: int, rank: int) -> int:
    model, alone = model_of(0), model_of(0)
    model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, _, y = data()
    n_batches = [2 + r for r in range(size)]
    mine = slice(0, n_batches[rank] * 4)
    model.fit(x[mine], y[mine], 4, verbose=0, shuffle=False)
    last = hvd.join()
    any_keras.broadcast_model(model, last)
    # One process: ranks without data have gradients of zero, and count.
    for step in range(max(n_batches)):
        with tf.GradientTape() as tape:
            part = slice(step * 4, step * 4 + 4)
            loss = tf.reduce_mean((alone(x[part]) - y[part]) ** 2)
        share = sum(step < n for n in n_batches) / size
        for v, g in zip(alone.trainable_variables, tape.gradient(loss, alone.trainable_variables), strict=True):
            v.assign_sub(0.1 * share * g)
    for a, b in zip(model.trainable_variables, alone.trainable_variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)
    return last


def test_fit_with_uneven_data_and_join() -> None:
    assert run_ranks(2, uneven) == [1, 1]
    assert run_ranks(4, uneven) == [3] * 4


def batches() -> None:
    layer = hvd.SyncBatchNormalization(axis=-1)
    rng = np.random.default_rng(3)
    everything = rng.standard_normal((8, 3)).astype("float32")
    mine = everything[hvd.rank() * 4 : hvd.rank() * 4 + 4]
    plain = keras.layers.BatchNormalization(axis=-1)
    with tf.GradientTape() as tape:
        x = tf.constant(mine)
        tape.watch(x)
        y = layer(x, training=True)
        loss = tf.reduce_sum(y**3)
    with tf.GradientTape() as other:
        whole = tf.constant(everything)
        other.watch(whole)
        expected = plain(whole, training=True)
        whole_loss = tf.reduce_sum(expected**3)
    part = slice(hvd.rank() * 4, hvd.rank() * 4 + 4)
    np.testing.assert_allclose(y, expected[part], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tape.gradient(loss, x), other.gradient(whole_loss, whole)[part], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layer.moving_mean.numpy(), plain.moving_mean.numpy(), rtol=1e-5, atol=1e-6)


def test_batch_normalization() -> None:
    run_ranks(2, batches)


def local() -> None:
    a, b = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    x = tf.fill([1, 2], float(hvd.rank() + 1))
    a.build((None, 2)), b.build((None, 2))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(a(x) + b(x))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=[b], scale_local_gradients=False)
    shared, own = tape.gradient(loss, [a.kernel.value, b.kernel.value])
    assert float(shared[0][0]) == 1.5 and float(own[0][0]) == hvd.rank() + 1


def test_local_layers() -> None:
    run_ranks(2, local)
