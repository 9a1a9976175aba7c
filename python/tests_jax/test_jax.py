"""Collectives of JAX: compiled and not, in trees, loops and gradients; native and as calls of Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ranks import launch, run_ranks

import phalanx.jax as hvd
from phalanx.exceptions import MismatchError, RankLostError

jax.config.update("jax_enable_x64", True)
ROOT = Path(__file__).parents[2]


def every(native: bool) -> None:
    hvd.use_native(native)
    assert hvd.is_native() is native
    n, r = hvd.size(), hvd.rank()
    x = jnp.arange(4.0) * (r + 1)
    for wrap in (lambda f: f, jax.jit):
        tree = wrap(lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.1))(
            {"a": x, "b": jnp.ones((2, 3), jnp.float32), "c": jnp.ones(2, jnp.bfloat16)}
        )
        np.testing.assert_allclose(tree["a"], np.arange(4.0) * n * (n + 1) / 20, rtol=1e-14)
        assert tree["c"].dtype == jnp.bfloat16
        assert wrap(lambda x: hvd.allreduce(x, op=hvd.Max))(jnp.array([r, -r])).tolist() == [n - 1, 0]
        assert wrap(hvd.allgather)(jnp.full((2, 2), r)).tolist() == [[k, k] for k in range(n) for _ in range(2)]
        np.testing.assert_allclose(wrap(lambda x: hvd.broadcast(x, 1))(x), np.arange(4.0) * 2)
        assert wrap(hvd.alltoall)(jnp.arange(n)).tolist() == [r] * n
        rows = wrap(lambda x: hvd.reducescatter(x, op=hvd.Sum))(jnp.ones((2 * n + 1, 2)))
        assert rows.shape == (3 if r == 0 else 2, 2) and rows[0, 0] == n
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _i, c: hvd.allreduce(c) + 1, x))
    np.testing.assert_allclose(loop(jnp.zeros(2)), [20, 20])
    hvd.barrier()
    hvd.use_native(True)


@pytest.mark.parametrize("native", [True, False])
def test_every_collective(native: bool) -> None:
    run_ranks(2, every, native)


def test_every_collective_of_four() -> None:
    run_ranks(4, every, True)


def gradients() -> None:
    n, r = hvd.size(), hvd.rank()
    mean = (n + 1) / 2
    cases: list[tuple[Any, Any]] = [
        (hvd.allreduce, mean),
        (lambda x: hvd.allreduce(x, op=hvd.Sum), mean * n),
        (hvd.allgather, mean),
        (lambda x: hvd.broadcast(x, 0), mean if r == 0 else 0.0),
        (hvd.alltoall, np.arange(1, n + 1)[:, None]),
        (lambda x: hvd.reducescatter(x, op=hvd.Sum), n * np.arange(1, n + 1)[:, None]),
    ]
    for f, expected in cases:
        for wrap in (lambda g: g, jax.jit):
            got = wrap(jax.grad(lambda x, f=f: jnp.sum(f(x)) * (r + 1)))(jnp.ones((n, 2)))
            np.testing.assert_allclose(got, np.broadcast_to(expected, (n, 2)))
    with pytest.raises(ValueError, match="differentiated"):
        jax.grad(lambda x: jnp.sum(hvd.allreduce(x, op=hvd.Max)))(jnp.ones(2))


def test_gradients() -> None:
    run_ranks(2, gradients)


def mistakes() -> None:
    with pytest.raises(MismatchError, match="rank 0 has") as caught, hvd.errors():
        jax.jit(hvd.allreduce)(jnp.ones(2 + hvd.rank())).block_until_ready()
    assert sorted(caught.value.ranks) == [0, 1]
    with pytest.raises(ValueError, match="dimension"):
        hvd.allgather(jnp.ones(()))
    with pytest.raises(ValueError, match="complex"):
        hvd.allreduce(jnp.ones(2, jnp.complex64))
    with pytest.raises(ValueError, match="divided"):
        hvd.alltoall(jnp.ones(hvd.size() + 1))
    assert float(hvd.allreduce(jnp.ones(1))[0]) == 1.0


def test_mistakes() -> None:
    run_ranks(2, mistakes)


def trained(size: int, rank: int, kind: str) -> Any:
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((5, 8, 6)), rng.standard_normal((5, 8, 1))
    start = np.random.default_rng(rank)
    parameters = {"w": jnp.asarray(start.standard_normal((6, 1))), "b": jnp.zeros(1)}
    optimizer = {"sgd": lambda: optax.sgd(0.1, momentum=0.9), "adam": lambda: optax.adam(0.01)}[kind]()
    if size > 1:
        parameters = hvd.broadcast(parameters)
        optimizer = hvd.distributed(optimizer)
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        gradients = jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) - y) ** 2))(parameters)
        changes, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, changes), state

    n = 8 // size
    for i in range(5):
        mine = slice(rank * n, (rank + 1) * n)
        parameters, state = step(parameters, state, x[i, mine], y[i, mine])
    return {name: np.asarray(value) for name, value in parameters.items()}


def train(kind: str) -> Any:
    return trained(hvd.size(), hvd.rank(), kind)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_two_ranks_end_with_the_parameters_of_one(kind: str) -> None:
    expected = trained(1, 0, kind)
    for got in run_ranks(2, train, kind):
        for name, value in expected.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-12, atol=1e-12)


def dying() -> Any:
    step = jax.jit(hvd.allreduce)
    step(jnp.ones(2)).block_until_ready()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RankLostError) as caught:
        for _ in range(1000):
            with hvd.errors():
                step(jnp.ones(2)).block_until_ready()
    return caught.value.rank


def test_a_rank_that_dies() -> None:
    assert run_ranks(2, dying, fresh=True)[0] == 1


def test_example() -> None:
    words = [sys.executable, str(ROOT / "examples/jax_mnist.py"), "--steps", "200"]
    running = launch(2, words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    text, _ = running.communicate(timeout=240)
    assert running.returncode == 0, text
    assert float(str(text).split("accuracy ")[-1].split()[0]) > 0.8, text
