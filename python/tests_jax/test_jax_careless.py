"""Programs that are wrong or unusual: they work, or are refused in one sentence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ranks import run_ranks

import phalanx.jax as hvd
from phalanx import _world
from phalanx.exceptions import MismatchError, NotInitializedError

jax.config.update("jax_enable_x64", True)


def leaves() -> None:
    n, r = hvd.size(), hvd.rank()
    for wrap in (lambda f: f, jax.jit):
        tree = {
            "none": None,
            "number": 1.5 * (r + 1),
            "scalar": jnp.asarray(r, jnp.int32),
            "empty": jnp.zeros((0, 3)),
            "half": jnp.full(3, r + 1, jnp.float16),
            "brain": jnp.full(3, r + 1, jnp.bfloat16),
            "numpy": np.full(2, r, np.int64),
            "nothing": (),
        }
        got = wrap(lambda t: hvd.allreduce(t, op=hvd.Sum))(tree)
        assert got["none"] is None and got["nothing"] == ()
        assert got["empty"].shape == (0, 3) and got["scalar"].shape == ()
        assert float(got["number"]) == 1.5 * n * (n + 1) / 2 and int(got["scalar"]) == n * (n - 1) // 2
        assert got["half"].dtype == jnp.float16 and float(got["half"][0]) == n * (n + 1) / 2
        assert got["brain"].dtype == jnp.bfloat16 and got["numpy"].tolist() == [n * (n - 1) // 2] * 2
        assert wrap(hvd.allgather)(jnp.zeros((0, 2))).shape == (0, 2)
        assert wrap(hvd.broadcast)({"a": None, "b": jnp.zeros(0)})["b"].shape == (0,)
    assert hvd.allreduce(None) is None and hvd.allreduce({}) == {}


def test_leaves_of_every_kind() -> None:
    run_ranks(2, leaves)


def batched() -> None:
    n, r = hvd.size(), hvd.rank()
    x = jnp.arange(4.0 * n * n).reshape(2 * n, n, 2) * (r + 1)
    for wrap in (lambda f: f, jax.jit):
        for f in (
            hvd.allreduce,
            hvd.allgather,
            hvd.alltoall,
            lambda a: hvd.broadcast(a, 1),
            lambda a: hvd.reducescatter(a, op=hvd.Sum),
        ):
            one_by_one = jnp.stack([f(row) for row in x])
            np.testing.assert_array_equal(wrap(jax.vmap(f))(x), one_by_one)
            second = jnp.stack([f(row) for row in jnp.moveaxis(x, 2, 0)])
            np.testing.assert_array_equal(wrap(jax.vmap(f, in_axes=2))(x), second)
        gradient = wrap(jax.vmap(jax.grad(lambda a: jnp.sum(hvd.allreduce(a) ** 2))))(x)
        np.testing.assert_allclose(gradient, (n + 1) * jnp.arange(4.0 * n * n).reshape(2 * n, n, 2))
        both = wrap(jax.vmap(lambda a, b: hvd.allreduce((a, b)), in_axes=(0, None)))(x, jnp.ones(2))
        assert both[0].shape == x.shape and both[1].shape == (2 * n, 2)
        with pytest.raises(ValueError, match="rows"):
            wrap(jax.vmap(hvd.allgather))(jnp.ones(3))
        with pytest.raises(ValueError, match="Adasum"):
            wrap(jax.vmap(lambda a: hvd.allreduce(a, op=hvd.Adasum)))(x)
    hvd.use_native(False)
    with pytest.raises(ValueError, match="native call"):
        jax.vmap(hvd.allreduce)(x)
    hvd.use_native(True)


def test_vmap() -> None:
    run_ranks(2, batched)


def differentiated() -> None:
    n, r = hvd.size(), hvd.rank()
    tree = {"x": jnp.ones(2) * (r + 1), "step": jnp.asarray(3)}
    for wrap in (lambda f: f, jax.jit):

        def loss(t: Any) -> Any:
            got = hvd.allreduce(t, op=hvd.Sum)
            return jnp.sum(got["x"] ** 2) * got["step"]

        got = wrap(jax.grad(loss, allow_int=True))(tree)
        total = n * (n + 1) / 2
        np.testing.assert_allclose(got["x"], 2 * total * 3 * n * n)
        assert got["step"].dtype == jax.dtypes.float0
        # Twice: the sum of squares, summed and differentiated on all ranks.
        twice = wrap(jax.grad(lambda x: jnp.sum(jax.grad(lambda y: jnp.sum(hvd.allreduce(y) ** 3))(x))))(jnp.ones(2))
        np.testing.assert_allclose(twice, [6.0, 6.0])
        for f in (hvd.allgather, hvd.alltoall, lambda x: hvd.broadcast(x, 0), lambda x: hvd.reducescatter(x, op=hvd.Sum)):
            inner = jax.grad(lambda y, f=f: jnp.sum(f(y) ** 3))
            assert wrap(jax.grad(lambda x, g=inner: jnp.sum(g(x) ** 2)))(jnp.ones(n)).shape == (n,)
        with pytest.raises(ValueError, match="divided by the number of ranks"):
            wrap(jax.grad(lambda x: jnp.sum(hvd.reducescatter(x))))(jnp.ones(2 * n + 1))
        saved = wrap(jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(hvd.allreduce(x))))))(jnp.zeros(2))
        np.testing.assert_allclose(saved, [1.0, 1.0])
    values, gradients = hvd.value_and_grad(lambda p, k: (jnp.sum(p * k), k), has_aux=True)(jnp.ones(2), float(r))
    assert float(values[0]) == n - 1 and values[1] == float(r) and gradients.tolist() == [(n - 1) / 2] * 2


def test_gradients_of_anything() -> None:
    run_ranks(2, differentiated)


def refused() -> None:
    r = hvd.rank()
    other = hvd.add_process_set([0])
    if r == 1:
        for f in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            for wrap in (lambda f: f, jax.jit):
                with pytest.raises(ValueError, match=r"rank 1 is not in ProcessSet.*ranks of the set only"):
                    wrap(lambda x, f=f: f(x, process_set=other))(jnp.ones(2))
    hvd.remove_process_set(other)
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(jnp.ones(2), process_set=other)
    with pytest.raises(ValueError, match="op must be one of"):
        hvd.allreduce(jnp.ones(2), "sum")
    with pytest.raises(ValueError, match="prescale_factor must be a number"):
        hvd.allreduce(jnp.ones(2), prescale_factor=None)
    with pytest.raises(ValueError, match="root_rank must be one of"):
        hvd.broadcast(jnp.ones(2), 7)
    with pytest.raises(ValueError, match="process_set must be"):
        hvd.value_and_grad(jnp.sum, process_set=[0, 1])
    with pytest.raises(ValueError, match="reduced twice"):
        hvd.distributed(hvd.distributed(optax.sgd(0.1)))
    with pytest.raises(ValueError, match="op must be one of"):
        hvd.distributed(optax.sgd(0.1), op="average")
    with pytest.raises(ValueError, match="expected an optimizer of optax"):
        hvd.distributed("sgd")
    with pytest.raises(ValueError, match="call it outside"):
        jax.jit(lambda x: (hvd.barrier(), x)[1])(jnp.ones(2))
    hvd.barrier()
    assert hvd.allreduce(jnp.ones(1)).tolist() == [1.0]


def test_what_is_wrong_on_one_rank_is_refused_before_anything_runs() -> None:
    run_ranks(2, refused)


def heavy(x: Any) -> Any:
    """More than XLA does on the calling thread, so that the error comes later."""
    return hvd.allreduce(jnp.sum(jnp.sin(x[:, None] * jnp.arange(2000.0)), 1))


def failed() -> None:
    r = hvd.rank()
    # Without jit an error is ours at once.
    with pytest.raises(MismatchError, match="rank 0 has"):
        hvd.allreduce(jnp.ones(2 + r)).block_until_ready()
    assert hvd.allreduce(jnp.ones(1)).tolist() == [1.0]
    for _ in range(3):
        with pytest.raises(MismatchError, match="rank 0 has"), hvd.errors():
            jax.jit(heavy)(jnp.ones(2 + r))
        # The next call is not failed by the last one.
        assert jax.jit(heavy)(jnp.ones(2)).shape == (2,)
        assert hvd.allreduce(jnp.ones(1)).tolist() == [1.0]
    with pytest.raises(MismatchError), hvd.errors():
        jax.jit(lambda x: hvd.allgather(x))(jnp.ones((2, 2 + r)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="pad the arrays"):
        jax.jit(hvd.allgather)(jnp.ones((2 + r, 2))).block_until_ready()
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="pad the arrays"), hvd.errors():
            jax.jit(lambda x: heavy(hvd.allgather(x)[:, 0]))(jnp.ones((2 + r, 2)))
        # Nor by one that is JAX's own.
        assert hvd.allreduce(jnp.ones(1)).tolist() == [1.0]


def test_a_mismatch_fails_only_the_call_that_has_it() -> None:
    run_ranks(2, failed)


def ended() -> None:
    step = jax.jit(hvd.allreduce)
    step(jnp.ones(2))
    hvd.shutdown()
    with pytest.raises(NotInitializedError):
        hvd.allreduce(jnp.ones(2))
    with pytest.raises(NotInitializedError), hvd.errors():
        step(jnp.ones(2))
    hvd.init()
    assert step(jnp.ones(2)).tolist() == [1.0, 1.0]


def test_functions_outlive_the_engine() -> None:
    run_ranks(2, ended)


def ordered() -> None:
    """Calls that do not depend on each other, in functions, loops and conditions, begin in the program's order."""
    r = hvd.rank()

    @jax.jit
    def many(x: Any, flag: Any) -> Any:
        sums = [hvd.allreduce(x + i, op=hvd.Sum) for i in range(20)]
        _, scanned = jax.lax.scan(lambda c, i: (c, hvd.allreduce(x * i, op=hvd.Sum)), 0.0, jnp.arange(10.0))
        chosen = jax.lax.cond(flag, lambda: hvd.allreduce(x), lambda: hvd.allreduce(2 * x))
        last = jax.jit(hvd.allgather)(x)
        return sums, scanned, chosen, last

    for k in range(5):
        sums, scanned, chosen, last = many(jnp.full(3, float(r + k)), k % 2 == 0)
        assert [float(s[0]) for s in sums] == [2.0 * (k + i) + 1 for i in range(20)]
        assert scanned[:, 0].tolist() == [(2.0 * k + 1) * i for i in range(10)]
        assert float(chosen[0]) == (k + 0.5) * (1 if k % 2 == 0 else 2)
        assert last.tolist() == [k] * 3 + [k + 1] * 3


def test_independent_calls_have_one_order() -> None:
    run_ranks(2, ordered)


def sequences() -> None:
    """Calls without names have one name for each kind, whatever their shapes are; those that differ between ranks meet."""
    r, x = hvd.rank(), jnp.ones(3)
    step = jax.jit(lambda x: (hvd.allreduce(x), hvd.allreduce(x[:2]), hvd.allgather(x), hvd.allreduce(x[:2] * 2)))
    for k in range(30):
        got = step(x * (r + 1))
        assert [g.tolist() for g in got] == [[1.5] * 3, [1.5] * 2, [1.0] * 3 + [2.0] * 3, [3.0] * 2]
        if k % 10 == 9:
            with pytest.raises(MismatchError, match="rank 0 has"):
                hvd.allreduce(x[: 2 + r])
            hvd.broadcast(x, 1)
    # A rank that has joined took no part in the others' calls.
    for _ in range(2 + r):
        hvd.allreduce(x)
    _world.join()
    assert step(x * (r + 1))[0].tolist() == [1.5] * 3
    odd = hvd.add_process_set([0])
    if r == 0:
        hvd.allreduce(x, process_set=odd)
    hvd.remove_process_set(odd)
    assert step(x * (r + 1))[0].tolist() == [1.5] * 3


def test_calls_without_names() -> None:
    run_ranks(2, sequences)


def test_before_init() -> None:
    with pytest.raises(NotInitializedError):
        hvd.allreduce(jnp.ones(2))
    with pytest.raises(NotInitializedError):
        jax.jit(hvd.allreduce)(jnp.ones(2))
