"""Repeated calls of compiled functions take a short way through JAX, and give what the whole way gives."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import pjit
from ranks import run_ranks

import phalanx.jax as hvd
from phalanx.exceptions import NotInitializedError


def counted() -> list[str]:
    """From now on, the names of functions whose calls go the whole way."""
    names: list[str] = []
    whole = pjit._pjit_call_impl_python

    def count(*args: Any, **params: Any) -> Any:
        names.append(params["name"])
        return whole(*args, **params)

    pjit._pjit_call_impl_python = count
    return names


def repeated() -> None:
    n = hvd.size()

    def doubled(x: Any) -> Any:
        return {"sum": hvd.allreduce(x, op=hvd.Sum), "twice": 2 * x}

    step = jax.jit(doubled)
    x = jnp.ones(3)
    # The first call has no token, the second one is noted.
    step(x), step(x)
    whole = counted()
    for k in range(1, 5):
        got = step(x * k)
        assert got["sum"].tolist() == [n * k] * 3 and got["twice"].tolist() == [2 * k] * 3
    assert "doubled" not in whole, "repeated calls went the whole way"
    # What is not like an earlier call goes the whole way.
    for other in (np.full(3, 2.0, np.float32), jnp.full(2, 2.0), jnp.full(3, 2)):
        whole.clear()
        assert step(other)["sum"].tolist() == [2 * n] * len(other)
        assert "doubled" in whole
    # Donated memory is never used again, whichever function was called before.
    given = jnp.full(3, 3.0)
    assert jax.jit(doubled, donate_argnums=0)(given)["sum"].tolist() == [3 * n] * 3
    assert step(x)["sum"].tolist() == [n] * 3
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        step(x)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        step(jnp.full(3, jnp.nan)), step(jnp.full(3, jnp.nan))
    hvd.barrier()


def test_a_repeated_call_takes_the_short_way() -> None:
    run_ranks(2, repeated)


def unused() -> None:
    def first(a: Any, x: Any, b: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    step = jax.jit(first)
    a, x, b = jnp.zeros(2), jnp.ones(3), jnp.zeros(4)
    step(a, x, b), step(a, x, b)
    whole = counted()
    for k in range(1, 4):
        assert step(a, x * k, b).tolist() == [hvd.size() * k] * 3
    assert "first" not in whole, "repeated calls went the whole way"
    assert step(jnp.zeros(5), x, b).tolist() == [hvd.size()] * 3
    assert "first" in whole
    hvd.barrier()


def test_arguments_that_a_function_does_not_use_do_not_make_its_calls_slow() -> None:
    run_ranks(2, unused)


def donated() -> None:
    n = hvd.size()

    def moved(p: Any, x: Any) -> Any:
        return jax.tree.map(lambda a: a + hvd.allreduce(x, op=hvd.Sum), p)

    step = jax.jit(moved, donate_argnums=0)
    x, p = jnp.ones((64, 64)), {"a": jnp.zeros((64, 64)), "b": jnp.ones((64, 64))}
    p = step(step(p, x), x)
    whole = counted()
    for k in range(3, 9):
        before, place = p, p["a"].unsafe_buffer_pointer()
        p = step(p, x)
        assert before["a"].is_deleted() and before["b"].is_deleted() and not x.is_deleted()
        assert p["a"].unsafe_buffer_pointer() == place, "the memory was not used again"
        np.testing.assert_array_equal(p["a"], np.full((64, 64), n * k))
        np.testing.assert_array_equal(p["b"], np.full((64, 64), n * k + 1))
        with pytest.raises((RuntimeError, ValueError), match=r"deleted|donated"):
            step(before, x)
    assert "moved" not in whole, "repeated calls went the whole way"
    # One array twice, of which one is donated, is refused as ever.
    with pytest.raises((RuntimeError, ValueError)):
        jax.block_until_ready(step({"a": x, "b": jnp.ones((64, 64))}, x))
    hvd.barrier()


def test_donated_arguments_take_the_short_way_and_are_gone() -> None:
    run_ranks(2, donated)


def late() -> None:
    """Independent functions, of which some wait for what they compute first, meet in the program's order."""
    r = hvd.rank()
    large = jnp.full((300, 300), 1e-3)
    slow = jax.jit(lambda m, k: hvd.allreduce((m @ m @ m)[0, :1] * 0 + k, op=hvd.Sum))
    quick = jax.jit(lambda k: hvd.allreduce(k, op=hvd.Sum))
    for i in range(20):
        # Each rank has other work before.
        (large * i) @ large if i % 2 == r else None
        got = [f(jnp.full(1, float(10 * i + j + r))) for j, f in enumerate([quick, lambda k: slow(large, k), quick, quick])]
        assert [float(g[0]) for g in got] == [20.0 * i + 2 * j + 1 for j in range(4)]
    jax.effects_barrier()


def test_calls_of_the_short_way_keep_their_order() -> None:
    run_ranks(2, late)


def ended() -> None:
    step = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    for _ in range(4):
        assert step(jnp.ones(2)).tolist() == [2.0, 2.0]
    hvd.shutdown()
    for _ in range(2):
        with pytest.raises(NotInitializedError), hvd.errors():
            step(jnp.ones(2))
    hvd.init()
    for _ in range(4):
        assert step(jnp.ones(2)).tolist() == [2.0, 2.0]


def test_a_failure_of_the_short_way_does_not_fail_the_next_call() -> None:
    run_ranks(2, ended)


def released() -> None:
    class Held:
        pass

    def made() -> Any:
        held = Held()
        step = jax.jit(lambda x: (held, hvd.allreduce(x, op=hvd.Sum))[1])
        for _ in range(4):
            step(jnp.ones(2)).block_until_ready()
        return weakref.ref(held)

    held = made()
    jax.clear_caches()
    gc.collect()
    assert held() is None


def test_a_function_that_is_gone_is_not_kept() -> None:
    run_ranks(2, released)
