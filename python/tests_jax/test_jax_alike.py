"""Ranks that train with different parameters are told so after the first steps."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from ranks import run_ranks

import phalanx.jax as hvd
import phalanx.keras as khvd
from phalanx import _phalanx
from phalanx.exceptions import MismatchError

STEPS = 6


def loss_of(parameters: Any, x: Any) -> Any:
    return jnp.sum(parameters["w"] * x) + jnp.sum(parameters["b"])


def start(differ: bool) -> Any:
    return {"b": jnp.ones(2), "w": jnp.full(3, float(hvd.rank() if differ else 1))}


def trained(parameters: Any, compiled: bool, **options: Any) -> None:
    wrap = jax.jit if compiled else lambda f: f
    step = wrap(lambda p, x: jax.tree.map(lambda a, g: a - 0.1 * g, p, hvd.value_and_grad(loss_of, **options)(p, x)[1]))
    with hvd.errors():
        for _ in range(STEPS):
            parameters = step(parameters, jnp.ones(3))
        jax.block_until_ready(parameters)


def of_gradients(compiled: bool) -> None:
    with pytest.raises(MismatchError) as caught:
        trained(start(True), compiled)
    assert sorted(caught.value.ranks) == [0, 1] and caught.value.tensor == "['w']"
    for word in ("1 of 2", "after step 1", "hvd.broadcast(parameters, root_rank=0)"):
        assert word in str(caught.value), caught.value
    assert float(hvd.allreduce(jnp.ones(()))) == 1.0
    trained(start(True), compiled, compared=False)
    trained(hvd.broadcast(start(True)), compiled)
    with pytest.raises(ValueError, match="compared"):
        hvd.value_and_grad(loss_of, compared=1)


@pytest.mark.parametrize("compiled", [True, False])
def test_parameters_that_were_not_broadcast_are_named(compiled: bool) -> None:
    run_ranks(2, of_gradients, compiled)


def of_optimizers() -> None:
    optimizer = hvd.distributed(optax.sgd(0.1))

    def train(parameters: Any, passed: bool) -> None:
        state = optimizer.init(parameters)

        @jax.jit
        def step(parameters: Any, state: Any) -> Any:
            gradients = jax.grad(loss_of)(parameters, jnp.ones(3))
            given = [parameters] if passed else []
            changes, state = optimizer.update(gradients, state, *given)
            return optax.apply_updates(parameters, changes), state

        with hvd.errors():
            for _ in range(STEPS):
                parameters, state = step(parameters, state)
            jax.block_until_ready(parameters)

    with pytest.raises(MismatchError, match="after step 1"):
        train(start(True), True)
    train(hvd.broadcast(start(True)), True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train(start(False), False)
        train(start(False), False)
    ours = [str(w.message) for w in said if "update() got no parameters" in str(w.message)]
    assert len(ours) == (1 if hvd.rank() == 0 else 0)


def test_optimizers_compare_what_they_are_given() -> None:
    run_ranks(2, of_optimizers)


def in_loops() -> None:
    """Steps in a loop, several gradients of one function, and examples one by one."""
    gradient = hvd.value_and_grad(loss_of)

    @jax.jit
    def loop(parameters: Any) -> Any:
        def body(p: Any, x: Any) -> Any:
            value, g = gradient(p, x)
            return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), value

        return jax.lax.scan(body, parameters, jnp.ones((STEPS, 3)))

    with hvd.errors():
        jax.block_until_ready(loop(start(False)))
    many = jax.vmap(gradient, in_axes=(None, 0))(start(False), jnp.ones((4, 3)))
    assert many[0].shape == (4,)
    second = jax.jit(jax.grad(lambda p: jnp.sum(gradient(p, jnp.ones(3))[1]["w"] ** 2)))
    assert second(start(False))["w"].shape == (3,)
    pairs = hvd.value_and_grad(lambda a, b: jnp.sum(a * b), argnums=(0, 1))
    assert len(pairs(jnp.ones(2), jnp.ones(2))[1]) == 2


def test_comparisons_in_loops_maps_and_second_gradients() -> None:
    run_ranks(2, in_loops)


def submissions() -> None:
    step = jax.jit(lambda p, x: hvd.value_and_grad(loss_of)(p, x)[0])
    p = start(False)
    for _ in range(5):
        step(p, jnp.ones(3)).block_until_ready()
    before = _phalanx.counters()["submitted"]
    for _ in range(10):
        step(p, jnp.ones(3)).block_until_ready()
    assert _phalanx.counters()["submitted"] - before == 10


def test_after_the_first_steps_nothing_is_compared() -> None:
    run_ranks(2, submissions)


def fits() -> None:
    def fit(callbacks: list[Any]) -> None:
        keras.utils.set_random_seed(hvd.rank())
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, name="only")])
        model.compile(khvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
        with hvd.errors():
            model.fit(np.ones((64, 2)), np.ones((64, 1)), 2, verbose=0, callbacks=callbacks)

    for _ in range(2):
        with pytest.raises(MismatchError) as caught:
            fit([])
        assert "only/kernel" in str(caught.value), caught.value
    fit([khvd.callbacks.BroadcastGlobalVariablesCallback(0)])


def test_fit_without_the_callback_is_refused() -> None:
    run_ranks(2, fits)


def of_modules() -> None:
    optimizer = hvd.distributed(optax.sgd(0.1))
    parameters = {"w": jnp.full(3, float(hvd.rank())), "activation": jax.nn.relu, "name": "layer"}
    arrays = {"w": parameters["w"]}
    state = optimizer.init(arrays)

    def train(**options: Any) -> None:
        chosen = hvd.distributed(optax.sgd(0.1), **options)
        with hvd.errors():
            for _ in range(STEPS):
                chosen.update(arrays, state, parameters)

    with pytest.raises(MismatchError, match=r"other values of \['w'\]"):
        train()
    train(compared=False)
    with pytest.raises(ValueError, match="compared"):
        hvd.distributed(optax.sgd(0.1), compared=1)


def test_trees_may_hold_functions_and_comparisons_can_be_left_out() -> None:
    run_ranks(2, of_modules)


def mixed() -> None:
    # As where one host has no compiler.
    hvd.use_native(hvd.rank() == 0)
    for compiled in (True, False):
        trained(start(False), compiled)
    hvd.use_native(True)
    hvd.barrier()


def test_ranks_with_and_without_native_calls_compare_together() -> None:
    run_ranks(2, mixed)
