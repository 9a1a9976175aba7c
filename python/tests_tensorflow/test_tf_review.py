"""Where ranks could miss each other or compute silently wrong: names, tapes of tapes, loss scales, passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import horovod.keras as shim
import keras
import numpy as np
import pytest
import tensorflow as tf
from ranks import run_ranks

import phalanx.keras as any_keras
import phalanx.tensorflow as hvd
import phalanx.tensorflow.keras as khvd
from phalanx import native
from phalanx.tensorflow._names import name_of


def refused() -> None:
    for wanted in (True, False):
        hvd.use_native(wanted)
        with pytest.raises(ValueError, match="splits"):
            hvd.alltoall(tf.ones([2]), splits=[3, 3])
        # A function keeps the class of the error, too.
        with pytest.raises(ValueError, match="splits"):
            tf.function(lambda x: hvd.alltoall(x, splits=[3, 3]))(tf.ones([2]))
    hvd.use_native(True)


def test_errors_that_are_no_failures() -> None:
    run_ranks(2, refused)


def retraced() -> Any:
    v = tf.Variable([1.0, 2.0])

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * tf.reduce_sum(x))
        return hvd.DistributedGradientTape(tape).gradient(loss, [v])[0]

    step(tf.ones([2]))
    hvd.join()
    # Only one rank makes its function again.
    got = step(tf.ones([2 + hvd.rank()]))
    return got.numpy().tolist()


def test_a_rank_that_traces_alone() -> None:
    """GRADS-2."""
    assert run_ranks(2, retraced) == [[2.5, 2.5]] * 2


def keras_variables() -> None:
    a, b = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    a.build((None, 2)), b.build((None, 2))
    x = tf.fill([1, 2], float(hvd.rank() + 1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(a(x) + b(x))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=[b], scale_local_gradients=False)
    shared, own = tape.gradient(loss, [a.kernel, b.kernel])
    assert float(shared[0][0]) == 1.5 and float(own[0][0]) == hvd.rank() + 1
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(a(x) + b(x))
    tape = hvd.DistributedGradientTape(tape, groups=[[a.kernel.value, b.kernel]])
    assert tape._phalanx._buckets([0, 1], [], [a.kernel, b.kernel.value]) == [[0, 1]]
    for gradient in tape.gradient(loss, [a.kernel, b.kernel]):
        assert float(gradient[0][0]) == 1.5


def test_variables_of_keras() -> None:
    run_ranks(2, keras_variables)


def conditional() -> Any:
    if hvd.rank() == 0:
        # Numbers of functions are this process's own.
        for i in range(3):
            tf.function(lambda x, i=i: tf.cond(x > i, lambda: x, lambda: -x))(tf.constant(1))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cond(x[0] > 0, lambda: hvd.allreduce(x * x), lambda: x)
            i = tf.constant(0)
            _, y = tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, hvd.allreduce(y, op=hvd.Sum)), (i, y))
        return tape.gradient(y, x)

    return step(tf.constant([1.0, 2.0])).numpy().tolist()


def test_gradients_inside_of_conditions_and_loops() -> None:
    assert run_ranks(2, conditional, deadline_s=60) == [[8.0, 16.0]] * 2


def named() -> None:
    tf1 = tf.compat.v1
    with tf.Graph().as_default(), tf1.Session() as session:
        a, b = (tf1.get_variable(n, initializer=tf.constant([float(hvd.rank()) + k])) for n, k in (("a", 1.0), ("b", 5.0)))
        first, second = hvd.broadcast_variables([a], 0), hvd.broadcast_variables([b], 0)
        session.run(tf1.global_variables_initializer())
        session.run([second, first] if hvd.rank() else [first, second])
        assert [v.tolist() for v in session.run([a, b])] == [[1.0], [5.0]]
        hvd.allreduce(a, name="loss")
        with pytest.raises(ValueError, match="another operation"):
            hvd.allreduce(b, name="loss")
        assert name_of("allreduce", "other") == "allreduce.other"
    with tf.Graph().as_default():
        hvd.allreduce(tf.ones([1]), name="loss")


def test_names_in_one_graph() -> None:
    run_ranks(2, named)


def scaled(policy: str) -> None:
    x, y = np.ones((8, 6)), np.ones((8, 1))
    layers = [keras.layers.Input((6,)), keras.layers.Dense(1, dtype=policy)]
    model = keras.Sequential(layers)
    model.dtype_policy = keras.DTypePolicy(policy)
    model.compile(any_keras.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    with pytest.raises(ValueError, match=r"DistributedOptimizer\(LossScaleOptimizer"):
        model.fit(x, y, 8, verbose=0)
    scale = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))
    model.compile(any_keras.DistributedOptimizer(scale), "mse")
    model.fit(x, y, 8, verbose=0)


def test_the_policy_of_a_model() -> None:
    run_ranks(2, scaled, "mixed_float16")


def passes() -> None:
    v, late = tf.Variable([1.0]), tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    optimizer.build([v, late])
    state = hvd.elastic.TensorFlowState([v], step=0)
    optimizer.apply([tf.constant([100.0])], [v])
    state.restore()
    optimizer.apply([tf.constant([1.0])], [v])
    assert v.numpy().tolist() == [1.0]
    # Another variable is trained from here on.
    optimizer.apply([tf.constant([1.0]), tf.constant([3.0])], [v, late])
    assert v.numpy().tolist() == [-1.0] and late.numpy().tolist() == [-2.0]


def test_passes_that_are_lost() -> None:
    run_ranks(2, passes)


def session_passes() -> None:
    tf1 = tf.compat.v1
    with tf.Graph().as_default(), tf1.Session() as session:
        v = tf1.get_variable("v", initializer=tf.constant([1.0]))
        optimizer = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
        train = optimizer.minimize(v * 2.0, var_list=[v])
        assert [g.name for g in tf1.global_variables()] == ["v:0"]
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        state = hvd.elastic.TensorFlowState(session=session)
        session.run(train)
        state.restore()
        session.run(train)
        assert session.run(v).tolist() == [1.0]
        session.run(train)
        assert session.run(v).tolist() == [-3.0]


def test_passes_in_sessions() -> None:
    run_ranks(2, session_passes)


def configured() -> None:
    optimizer = khvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    again = type(optimizer).from_config(optimizer.get_config())
    v = tf.Variable([0.0])
    again.build([v])
    again.apply([tf.constant([1.0])], [v])
    assert v.numpy().tolist() == [-2.0]


def test_an_optimizer_from_its_configuration() -> None:
    run_ranks(2, configured)


def reloaded(folder: str) -> None:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    path = str(Path(folder) / f"{hvd.rank()}.keras")
    model.save(path)
    keras.mixed_precision.set_global_policy("mixed_float16")
    for door in (khvd, any_keras):
        again = door.load_model(path)
        assert hasattr(again.optimizer, "_phalanx")
        again.fit(np.ones((4, 2)), np.ones((4, 1)), 4, verbose=0)


def test_loaded_models_have_the_distributed_optimizer(tmp_path: Path) -> None:
    # Ranks of their own, whose policy nobody else gets.
    run_ranks(2, reloaded, str(tmp_path), fresh=True)


def old_words() -> None:
    with pytest.warns(DeprecationWarning):
        assert float(shim.allreduce(hvd.rank() + 1.0, "x", False)) == 3.0
    assert float(shim.allreduce(hvd.rank() + 1.0, compression=shim.Compression.none)) == 1.5
    with pytest.raises(RuntimeError, match="broadcast_model"):
        shim.broadcast_global_variables(0)
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 1))
    optimizer = shim.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), local_layers=[layer], scale_local_gradients=False, compression=shim.Compression.fp16
    )
    other = keras.Variable([0.0])
    layer.kernel.assign([[0.0]])
    optimizer.build([layer.kernel, other])
    mine = float(hvd.rank() + 1)
    optimizer.apply([tf.constant([[mine]]), tf.constant([mine])], [layer.kernel, other])
    assert float(layer.kernel.numpy()[0][0]) == -mine and float(other.numpy()[0]) == -1.5


def test_names_of_horovod_keras() -> None:
    run_ranks(2, old_words)


def twice() -> None:
    def second(f: Any) -> Any:
        x = tf.constant([2.0, 3.0])
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(f(x) ** 3)
            g = inner.gradient(y, x)
            total = tf.reduce_sum(g * g)
        return outer.gradient(total, x).numpy().tolist()

    plain = second(lambda x: x)
    assert second(hvd.allreduce) == plain
    # Gradients of gathered rows are averages over ranks.
    assert second(hvd.allgather) == [v / hvd.size() for v in plain]
    assert second(lambda x: hvd.broadcast(x, 0)) is not None
    assert second(lambda x: hvd.reducescatter(tf.concat([x, x], 0))) is not None
    assert second(lambda x: hvd.alltoall(x)) == plain
    # Lookups in a result, and rows that are sent to nobody.
    x = tf.constant([[1.0], [2.0], [3.0]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        looked = tf.reduce_sum(tf.gather(hvd.allreduce(x), [2, 2]))
        sent, received = hvd.alltoall(x, splits=[1, 1])
        rows = tf.reduce_sum(sent)
    assert tape.gradient(looked, x).numpy().ravel().tolist() == [0.0, 0.0, 2.0]
    assert tape.gradient(rows, x).numpy().ravel().tolist() == [1.0, 1.0, 0.0]
    assert received.numpy().tolist() == [1, 1]


def test_gradients_of_gradients() -> None:
    run_ranks(2, twice)


def whole() -> None:
    slices = tf.IndexedSlices(tf.constant([[3, -3]]), tf.constant([0]), tf.constant([4, 2]))
    got = hvd.allreduce(slices)
    dense = hvd.allreduce(tf.constant([3 * hvd.rank(), -3 * hvd.rank()]))
    assert got.values.dtype == tf.int32 and got.values.numpy().tolist() == [[1, -1]] * 2
    assert dense.numpy().tolist() == [1, -1]


def test_averages_of_whole_numbers() -> None:
    run_ranks(2, whole)


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(native.NativeError, match=r"no-such-compiler.*no such program"):
        native.library("tensorflow_ops.cc", "TensorFlow", "tf0", [])


def test_each_build_of_a_framework_has_its_own_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "_compile", lambda *words: words[-1].write_text("made"))
    asked = [((), "a"), ((), "a"), ((), "b"), (("-O2",), "a")]
    made = [native.library("tensorflow_ops.cc", "TensorFlow", "tf0", flags, build) for flags, build in asked]
    assert made[0] == made[1] and len(set(made)) == 3
    # The same home on machines of another kind.
    monkeypatch.setattr(native.platform, "machine", lambda: "abacus")
    assert native.library("tensorflow_ops.cc", "TensorFlow", "tf0", (), "a") not in made


def test_keras_is_imported_when_it_is_used() -> None:
    code = "import sys, horovod.tensorflow as hvd; print('phalanx.tensorflow.sync_batch_norm' in sys.modules); hvd.SyncBatchNormalization"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout
    assert text.split() == ["False"]
