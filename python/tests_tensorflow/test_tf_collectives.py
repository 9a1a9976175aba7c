"""Collectives of TensorFlow: eager, in functions, in sessions; native and as calls of Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ranks import run_ranks

import phalanx.tensorflow as hvd


def every(native: bool, in_function: bool) -> None:
    hvd.use_native(native)
    assert hvd.is_native() is native
    wrap: Any = tf.function if in_function else (lambda f: f)
    rank, size = hvd.rank(), hvd.size()

    @wrap
    def run(x: Any) -> Any:
        mine = tf.cast(rank + 1, tf.float64)
        return {
            "average": hvd.allreduce(x * mine),
            "sum": hvd.allreduce(x * mine, op=hvd.Sum, name="named"),
            "scaled": hvd.allreduce(x * mine, op=hvd.Sum, prescale_factor=0.1, postscale_factor=3.0),
            "max": hvd.allreduce(tf.constant([rank, -rank]), op=hvd.Max),
            "half": hvd.allreduce(tf.cast(x, tf.float32), compression=hvd.Compression.fp16),
            "group": hvd.grouped_allreduce([x, tf.cast(x, tf.float64) + 1.0], op=hvd.Sum),
            "gather": hvd.allgather(tf.fill([rank + 1, 2], rank)),
            "gathers": hvd.grouped_allgather([tf.fill([rank + 1], rank), tf.fill([1, 2], 0.5)]),
            "root": hvd.broadcast(x * mine, root_rank=size - 1),
            "all": hvd.alltoall(tf.range(size * size) + 100 * rank, splits=[size] * size),
            "even": hvd.alltoall(tf.range(size)),
            "scatter": hvd.reducescatter(tf.ones([size * 2 + 1, 3]), op=hvd.Sum),
            "scatters": hvd.grouped_reducescatter([tf.ones([size]), tf.ones([size, 2])], op=hvd.Average),
            "slices": hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([rank]), tf.constant([8, 2]))),
            "size": hvd.size_op(),
            "rank": hvd.rank_op(),
            "in": hvd.process_set_included_op(),
            "bf": hvd.allreduce(tf.ones([3], tf.bfloat16), op=hvd.Sum),
            "bool": hvd.broadcast(tf.constant([rank == 0]), 0),
        }

    x = tf.range(4, dtype=tf.float64)
    for _ in range(2):
        got = run(x)
        total = size * (size + 1) / 2
        np.testing.assert_allclose(got["average"], x * total / size, rtol=1e-15)
        np.testing.assert_allclose(got["sum"], x * total)
        np.testing.assert_allclose(got["scaled"], x * total * 0.3, rtol=1e-14)
        assert got["max"].numpy().tolist() == [size - 1, 0]
        assert got["half"].dtype == tf.float32
        np.testing.assert_allclose(got["group"][1], (x + 1) * size)
        assert got["gather"].shape == (size * (size + 1) // 2, 2)
        assert got["gathers"][0].numpy().tolist() == [r for r in range(size) for _ in range(r + 1)]
        assert got["gathers"][1].dtype == tf.float32
        np.testing.assert_allclose(got["root"], x * size)
        rows, received = got["all"]
        assert received.numpy().tolist() == [size] * size
        assert rows.numpy().tolist() == [rank * size + i + 100 * r for r in range(size) for i in range(size)]
        assert got["even"].numpy().tolist() == [rank] * size
        assert got["scatter"].shape == (3 if rank == 0 else 2, 3)
        np.testing.assert_allclose(got["scatters"][1], np.ones((1, 2)))
        assert got["slices"].indices.numpy().tolist() == list(range(size))
        np.testing.assert_allclose(got["slices"].values, np.full((size, 2), 1 / size))
        assert (int(got["size"]), int(got["rank"]), int(got["in"])) == (size, rank, 1)
        assert float(got["bf"][0]) == size
        assert bool(got["bool"][0])
    hvd.barrier()
    hvd.use_native(True)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("in_function", [True, False])
def test_every_collective(native: bool, in_function: bool) -> None:
    run_ranks(2, every, native, in_function)


def test_every_collective_of_four() -> None:
    run_ranks(4, every, True, True)


def results_that_are_held() -> None:
    """Memory of large results is kept for the next; a result that somebody still has is never given away."""
    rank, size = hvd.rank(), hvd.size()
    n = 3 << 18

    @tf.function
    def run(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum), hvd.allgather(x, name="rows")

    held = []
    for turn in range(12):
        summed, rows = run(tf.fill([n + turn // 6], float(turn + rank)))
        if turn % 3 != 1:
            held.append((turn, summed, rows))
        if turn % 4 == 3:
            del held[0]
    assert len(held) == 5
    for turn, summed, rows in held:
        assert (summed.numpy() == turn * size + size * (size - 1) / 2).all(), turn
        wanted = np.repeat(np.arange(size, dtype=np.float32) + turn, n + turn // 6)
        assert (rows.numpy() == wanted).all(), turn
    # Larger than all that is kept: given back at once, and nothing else with it.
    for turn in range(3):
        assert (hvd.allreduce(tf.fill([17 << 20], float(turn)), op=hvd.Sum, name="large").numpy() == turn * size).all()
    assert (run(tf.ones([n]))[0].numpy() == size).all()


def test_results_that_are_held() -> None:
    run_ranks(2, results_that_are_held)


def gradients(in_function: bool) -> None:
    rank, size = hvd.rank(), hvd.size()
    wrap: Any = tf.function if in_function else (lambda f: f)

    def grad(f: Any, x: Any) -> Any:
        @wrap
        def run(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
                loss = tf.reduce_sum(y * tf.cast(rank + 1, y.dtype))
            return tape.gradient(loss, x)

        return run(x).numpy()

    mean = (size + 1) / 2
    x = tf.ones([size, 2], tf.float64)
    np.testing.assert_allclose(grad(lambda x: hvd.allreduce(x), x), np.full((size, 2), mean))
    np.testing.assert_allclose(grad(lambda x: hvd.allreduce(x, op=hvd.Sum), x), np.full((size, 2), mean * size))
    np.testing.assert_allclose(grad(lambda x: hvd.grouped_allreduce([x, x])[1], x), np.full((size, 2), mean))
    np.testing.assert_allclose(grad(lambda x: hvd.allgather(x), x), np.full((size, 2), mean))
    expected = np.full((size, 2), mean if rank == 0 else 0.0)
    np.testing.assert_allclose(grad(lambda x: hvd.broadcast(x, 0), x), expected)
    per_rank = np.repeat(np.arange(1.0, size + 1)[:, None], 2, axis=1)
    np.testing.assert_allclose(grad(lambda x: hvd.alltoall(x), x), per_rank)
    np.testing.assert_allclose(grad(lambda x: hvd.reducescatter(x, op=hvd.Sum), x), per_rank * size)
    np.testing.assert_allclose(grad(lambda x: hvd.reducescatter(x, op=hvd.Average), x), per_rank)
    with pytest.raises(hvd.PhalanxError, match="differentiated"):
        grad(lambda x: hvd.allreduce(x, op=hvd.Max), x)


@pytest.mark.parametrize("in_function", [True, False])
def test_gradients(in_function: bool) -> None:
    run_ranks(2, gradients, in_function)
    if in_function:
        run_ranks(4, gradients, in_function)


def mistakes() -> None:
    rank = hvd.rank()
    with pytest.raises(hvd.MismatchError, match="shape"):
        hvd.allreduce(tf.ones([2 + rank]), name="shape")
    with pytest.raises(tf.errors.FailedPreconditionError, match="rank 1"):
        hvd.allreduce(tf.ones([2], tf.float32 if rank else tf.float64), name="type")

    @tf.function
    def in_function(x: Any) -> Any:
        return hvd.allreduce(x, name="function")

    with pytest.raises(hvd.MismatchError, match="shape") as caught:
        in_function(tf.ones([2 + rank]))
    assert sorted(caught.value.ranks) == [0, 1]
    assert isinstance(caught.value, tf.errors.FailedPreconditionError)
    for call in [
        lambda: hvd.allreduce(tf.ones([1]), op="sum"),
        lambda: hvd.broadcast(tf.ones([1]), 7),
        lambda: hvd.allreduce(tf.constant(["a"])),
        lambda: hvd.allgather(tf.constant(1.0)),
        lambda: hvd.alltoall(tf.ones([2]), splits=[3, -1]),
        lambda: hvd.allreduce(tf.ones([1]), device_dense="/gpu:0"),
    ]:
        with pytest.raises(ValueError):
            call()

    @tf.function(jit_compile=True)
    def compiled(x: Any) -> Any:
        return hvd.allreduce(x)

    with pytest.raises(ValueError, match="jit_compile=False"):
        compiled(tf.ones([2]))


def test_mistakes() -> None:
    run_ranks(2, mistakes)


def session_in_random_order() -> float:
    """Two hundred collectives, two threads, every rank in an order of its own."""
    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        x = tf1.placeholder(tf.float64, [None])
        sums = [hvd.allreduce(x + i, op=hvd.Sum, name=f"n{i}") for i in range(200)]
        config = tf1.ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=1)
        with tf1.Session(config=config) as session:
            order = np.random.default_rng(hvd.rank()).permutation(200)
            for _ in range(3):
                got = session.run([sums[i] for i in order], {x: [1.0, 2.0]})
                for i, value in zip(order, got, strict=True):
                    np.testing.assert_allclose(value, [(1 + i) * hvd.size(), (2 + i) * hvd.size()])
            # A chain in which each rank's graph is made in another order.
            total = tf.add_n([sums[i] for i in order])
            np.testing.assert_allclose(session.run(total, {x: [0.0]}), [199 * 100 * hvd.size()])
    return 1.0


def test_a_session_in_random_order() -> None:
    """NATIVE-4: two threads that waited for other ranks would wait for ever."""
    run_ranks(2, session_in_random_order)
    run_ranks(4, session_in_random_order)


def sets() -> None:
    rank = hvd.rank()
    odd = hvd.add_process_set([1, 3])
    if rank % 2:
        assert float(hvd.allreduce(tf.constant(float(rank)), op=hvd.Sum, process_set=odd)) == 4.0
        assert int(hvd.size_op(odd.process_set_id)) == 2
    assert int(hvd.process_set_included_op(odd.process_set_id)) == rank % 2
    hvd.remove_process_set(odd)


def test_process_sets() -> None:
    run_ranks(4, sets)


def loops() -> None:
    """The same node in many turns, retraced functions, two threads."""

    @tf.function
    def run(x: Any) -> Any:
        for _ in tf.range(20):
            x = hvd.allreduce(x, op=hvd.Average) + 1.0
        return x

    for n in (1, 2, 3):
        np.testing.assert_allclose(run(tf.zeros([n])), np.full([n], 20.0))

    def body(i: Any, x: Any) -> Any:
        return i + 1, x + hvd.allreduce(tf.cast(i, tf.float32), op=hvd.Sum)

    with tf.Graph().as_default():
        _, total = tf.while_loop(lambda i, _x: i < 30, body, [tf.constant(0), tf.constant(0.0)])
        with tf.compat.v1.Session() as session:
            assert session.run(total) == 435.0 * hvd.size()


def test_loops() -> None:
    """NATIVE-1, NATIVE-2: nothing hangs, and turns of one node do not meet each other."""
    run_ranks(2, loops)


def joined() -> int:
    for _ in range(3 + hvd.rank()):
        hvd.allreduce(tf.ones([4]), op=hvd.Sum)
    return hvd.join()


def test_join() -> None:
    assert run_ranks(2, joined) == [1, 1]


def ended() -> None:
    @tf.function
    def step(x: Any) -> Any:
        return hvd.allreduce(x)

    for _ in range(3):
        step(tf.ones([2]))
        hvd.shutdown()
        with pytest.raises(hvd.PhalanxError, match="init"):
            step(tf.ones([2]))
        hvd.init()


def test_operations_end_with_the_engine() -> None:
    """NATIVE-3: a compiled function uses the engine that runs, and none after it."""
    run_ranks(2, ended)


def objects() -> None:
    assert hvd.broadcast_object({"rank": hvd.rank()}) == {"rank": 0}
    assert hvd.broadcast_object_fn(1)(hvd.rank()) == 1
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
    v = tf.Variable([1.0 + hvd.rank()])
    hvd.broadcast_variables([v], root_rank=1)
    assert v.numpy().tolist() == [2.0]


def test_objects_and_variables() -> None:
    run_ranks(2, objects)
    run_ranks(4, objects)
