"""Ranks that train with different parameters are told so after the first steps: in eager code, functions, sessions and ``fit``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from ranks import run_ranks

import phalanx.tensorflow as hvd
import phalanx.tensorflow.keras as khvd
from phalanx import _phalanx
from phalanx.exceptions import MismatchError

STEPS = 6
EARLY = 3


def refused(run: Callable[[], Any], *words: str) -> None:
    """What every rank gets: one error that names the variable and what to write."""
    with pytest.raises(MismatchError) as caught:
        run()
    assert sorted(caught.value.ranks) == [0, 1]
    for word in words:
        assert word in str(caught.value), caught.value
    # The engine goes on.
    assert float(hvd.allreduce(tf.constant(1.0))) == 1.0


def looped(variables: list[Any], in_function: bool, wrap: Any = hvd.DistributedGradientTape) -> Callable[[Any], Any]:
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(variables)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * x[0]) for v in variables])
        gradients = wrap(tape).gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return tf.function(step) if in_function else step


def steps(step: Callable[[Any], Any], n: int = STEPS) -> None:
    for _ in range(n):
        step(tf.ones([2]))


def tapes(in_function: bool, native: bool) -> None:
    hvd.use_native(native)
    try:
        r = float(hvd.rank())
        same, other = tf.Variable([1.0, 2.0], name="same"), tf.Variable([r], name="other")
        words = ("other", "rank 1", "after step 1", "1 of 2", "broadcast_variables", "PHALANX_CHECK=0")
        refused(lambda: steps(looped([same, other], in_function)), *words)
        hvd.broadcast_variables([same, other], root_rank=0)
        steps(looped([same, other], in_function))
    finally:
        hvd.use_native(True)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("in_function", [True, False])
def test_a_tape_names_the_variable_that_was_not_broadcast(in_function: bool, native: bool) -> None:
    run_ranks(2, tapes, in_function, native)


def after_the_first_step(in_function: bool) -> None:
    v = tf.Variable([float(hvd.rank())])
    step = looped([v], in_function)
    step(tf.ones([2]))
    hvd.broadcast_variables([v], root_rank=0)
    steps(step)


@pytest.mark.parametrize("in_function", [True, False])
def test_variables_may_be_broadcast_after_the_first_step(in_function: bool) -> None:
    run_ranks(2, after_the_first_step, in_function)


def of_one_rank(in_function: bool) -> None:
    keras.utils.set_random_seed(hvd.rank())
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 2))
    shared = tf.Variable([3.0])
    wrap = lambda tape: hvd.PartialDistributedGradientTape(tape, local_layers=[layer])  # noqa: E731
    steps(looped([shared, layer.trainable_weights[0].value], in_function, wrap))


@pytest.mark.parametrize("in_function", [True, False])
def test_local_layers_may_differ(in_function: bool) -> None:
    run_ranks(2, of_one_rank, in_function)


def inputs() -> None:
    """A tape that watches data."""

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(x * x)
        return hvd.DistributedGradientTape(tape).gradient(y, x)

    for _ in range(STEPS):
        assert step(tf.constant(float(hvd.rank()))).numpy() == 1.0


def test_tensors_that_a_tape_watches_may_differ() -> None:
    run_ranks(2, inputs)


def retraced() -> None:
    v = tf.Variable([1.0])
    step = looped([v], True)
    for i in range(STEPS):
        # Rank 1 makes its graph again and again, in the steps that are compared, too.
        step(tf.ones([2 + (i if hvd.rank() else 0)]))
    # Another model's function has the same name, and is compared all the same.
    refused(lambda: steps(looped([tf.Variable([float(hvd.rank())])], True)), "broadcast_variables")


def test_a_rank_that_traces_again_counts_on() -> None:
    """ALIKE-1."""
    run_ranks(2, retraced)


def submissions() -> None:
    v = tf.Variable([1.0])
    step = looped([v], True)
    steps(step, 1 + EARLY)
    before = _phalanx.counters()["submitted"]
    steps(step, 10)
    assert _phalanx.counters()["submitted"] - before == 10


def test_after_the_first_steps_nothing_is_compared() -> None:
    run_ranks(2, submissions)


def rounding(strict: bool) -> None:
    v = tf.Variable(np.linspace(1.0, 2.0, 1000, dtype=np.float32) * np.float32(1 + 2e-7 * hvd.rank()), name="v")
    if strict:
        refused(lambda: steps(looped([v], True)), "v ")
    else:
        steps(looped([v], True))


def test_a_difference_of_rounding_is_no_error() -> None:
    """ALIKE-2."""
    run_ranks(2, rounding, False)


def test_with_phalanx_check_every_difference_is_an_error() -> None:
    """ALIKE-2."""
    run_ranks(2, rounding, True, fresh=True, env={"PHALANX_CHECK": "2"})


def unchecked() -> None:
    steps(looped([tf.Variable([float(hvd.rank())])], True))


def test_the_comparison_can_be_turned_off() -> None:
    run_ranks(2, unchecked, fresh=True, env={"PHALANX_CHECK": "0"})


def model_of(rank: int, is_built: bool) -> Any:
    keras.utils.set_random_seed(rank)
    first = [keras.layers.Input((2,))] if is_built else []
    return keras.Sequential([*first, keras.layers.Dense(3, name="hidden"), keras.layers.Dense(1)])


def fits() -> None:
    x, y = np.ones((64, 2)), np.ones((64, 1))

    def fit(is_built: bool, callbacks: list[Any], **options: Any) -> None:
        model = model_of(hvd.rank(), is_built)
        model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", **options)
        model.fit(x, y, 2, epochs=1, verbose=0, callbacks=callbacks)

    words = ("hidden", "kernel", "BroadcastGlobalVariablesCallback(0)")
    refused(lambda: fit(True, []), *words)
    refused(lambda: fit(True, [], run_eagerly=True), *words)
    for is_built in (True, False):
        fit(is_built, [khvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    # Variables come to be in the first call, and are broadcast after it, which is after eight steps here.
    fit(False, [khvd.callbacks.BroadcastGlobalVariablesCallback(0)], steps_per_execution=8)


def fits_in_turn() -> None:
    callback = khvd.callbacks.BroadcastGlobalVariablesCallback(0)
    for fold in range(2):
        model = model_of(hvd.rank() + 7 * fold, False)
        model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        model.fit(np.ones((8, 3), np.float32), np.ones((8, 1), np.float32), batch_size=2, verbose=0, callbacks=[callback])
        for weights in model.get_weights():
            everywhere = np.asarray(hvd.allgather(weights.reshape(1, -1)))
            assert (everywhere == everywhere[0]).all(), f"model {fold}"


def test_one_callback_serves_one_model_after_the_other() -> None:
    run_ranks(2, fits_in_turn)


def test_fit_without_the_callback_is_refused() -> None:
    run_ranks(2, fits)


def sessions(resource: bool) -> None:
    v1 = tf.compat.v1

    def train(hooks: list[Any]) -> None:
        with tf.Graph().as_default():
            w = v1.get_variable("w", initializer=[float(hvd.rank())], use_resource=resource)
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
            step = optimizer.minimize(tf.reduce_sum(w * w))
            with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
                for _ in range(STEPS):
                    session.run(step)

    refused(lambda: train([]), " w ", "BroadcastGlobalVariablesHook(0)")
    train([hvd.BroadcastGlobalVariablesHook(0)])


@pytest.mark.parametrize("resource", [True, False])
def test_a_session_without_the_hook_is_refused(resource: bool) -> None:
    run_ranks(2, sessions, resource)


def two_optimizers() -> None:
    """Both in one run of a session with one thread, in any order."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        parts = []
        for i in range(2):
            w = v1.get_variable(f"w{i}", initializer=[1.0], use_resource=True)
            parts.append(hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1)).minimize(tf.reduce_sum(w * w)))
        config = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(STEPS):
                session.run(parts if hvd.rank() else parts[::-1])


def test_comparisons_of_two_optimizers_keep_no_thread() -> None:
    run_ranks(2, two_optimizers)


def joined() -> None:
    v = tf.Variable([1.0])
    step = looped([v], True)
    # Rank 1 leaves between the steps that are compared.
    steps(step, 6 if hvd.rank() == 0 else 2)
    last = hvd.join()
    steps(step, 1)
    refused(lambda: steps(step), "join()")
    hvd.broadcast_variables([v], root_rank=last)
    steps(step)


def test_ranks_that_joined_early_have_old_parameters_and_are_told_so() -> None:
    run_ranks(2, joined)


def of_old_keras() -> None:
    tf_keras = pytest.importorskip("tf_keras")

    def fit(callbacks: list[Any]) -> None:
        tf_keras.utils.set_random_seed(hvd.rank())
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, name="only", input_shape=(2,))])
        model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.01)), "mse")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(np.ones((64, 2)), np.ones((64, 1)), 2, verbose=0, callbacks=callbacks)

    refused(lambda: fit([]), "only/kernel", "BroadcastGlobalVariablesCallback(0)")


def test_the_old_keras_is_told_too() -> None:
    run_ranks(2, of_old_keras, fresh=True, env={"TF_USE_LEGACY_KERAS": "1"})
