"""Collectives and steps of ``fit`` with TensorFlow on two ranks; rank 0 prints ``figure``, what, of what, and microseconds, apart by tabs.

tensorflow_steps.py small SECONDS          allreduce with phalanx.numpy and inside of tf.function, in turns; for ranks of Phalanx
tensorflow_steps.py MODE MODEL SECONDS     a step of fit. For ranks of Phalanx: keras with Keras 3, legacy with tf_keras, apart without an
                                           exchange; mirrored starts two processes with MultiWorkerMirroredStrategy, which needs tf_keras
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

WARMUP_STEPS = 5
MOST_STEPS = 2000
#: Operations of one function, of which one takes this part of the function's time.
IN_CHAIN = 100


def told(what: str, of: str, seconds: float) -> None:
    print(f"figure\t{what}\t{of}\t{seconds * 1e6:.2f}", flush=True)


def quiet_tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    # Two ranks on two cores: one thread for the parts of an operation, on every side.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    return tf


def small(seconds: float) -> None:
    """All of them in turns, block by block, in one world."""
    tf = quiet_tensorflow()
    import numpy as np

    import phalanx.numpy as pn
    import phalanx.tensorflow as hvd

    hvd.init()
    one = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    none = tf.function(lambda x: x + 1.0)

    def chain(x: Any) -> Any:
        for _ in range(IN_CHAIN):
            x = hvd.allreduce(x)
        return x

    chained = tf.function(chain)
    scalar, array = tf.constant(1.0), np.ones(1, np.float32)
    large, large_array = tf.ones([4 << 20]), np.ones(4 << 20, np.float32)
    cases: dict[tuple[str, str], tuple[Callable[[], Any], int, int]] = {
        ("phalanx.numpy", "4 bytes"): (lambda: pn.allreduce(array, "a", op=pn.Sum), 100, 1),
        ("tf.function", "4 bytes"): (lambda: one(scalar), 100, 1),
        ("tf.function without a collective", "4 bytes"): (lambda: none(scalar), 100, 1),
        ("eager", "4 bytes"): (lambda: hvd.allreduce(scalar, op=hvd.Sum), 100, 1),
        # More than the first calls, in which ranks still agree on each name: a program calls its step again and again.
        ("chain", "4 bytes"): (lambda: chained(scalar), 20, IN_CHAIN),
        ("phalanx.numpy", "4 M floats"): (lambda: pn.allreduce(large_array, "b", op=pn.Sum), 4, 1),
        ("tf.function", "4 M floats"): (lambda: one(large), 4, 1),
        ("eager", "4 M floats"): (lambda: hvd.allreduce(large, op=hvd.Sum), 4, 1),
    }
    for call, *_ in cases.values():
        call()
        call()
    times: dict[tuple[str, str], list[float]] = {key: [] for key in cases}
    start = time.perf_counter()
    while pn.allreduce(np.array([time.perf_counter() - start]), "slowest", op=pn.Max)[0] < seconds:
        for key, (call, n, parts) in cases.items():
            for _ in range(n):
                pn.allreduce(array, "together", op=pn.Sum)
                began = time.perf_counter()
                call()
                times[key].append((time.perf_counter() - began) / parts)
    for (what, of), all_times in times.items():
        slowest = pn.allreduce(np.array([statistics.median(all_times)]), "median", op=pn.Max)[0]
        if hvd.rank() == 0:
            told(what, of, float(slowest))
    hvd.shutdown()


def model_of(name: str, keras: Any) -> tuple[Any, tuple[int, ...], int]:
    """The model, the shape of an example, and the number of classes."""
    layers = keras.layers
    if name == "dense":
        parts = [layers.Input((1024,)), layers.Dense(4096, "relu"), layers.Dense(4096, "relu"), layers.Dense(1000)]
        return keras.Sequential(parts), (1024,), 1000
    parts = [
        layers.Input((28, 28, 1)),
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(64, "relu"),
        layers.Dense(10),
    ]
    return keras.Sequential(parts), (28, 28, 1), 10


def timed_fit(tf: Any, keras: Any, compiled: Callable[[str], Any], name: str, batch: int, seconds: float) -> float:
    """Seconds of a step, the median of all after the first ones. Both ranks make as many: the time is asked of step numbers."""
    model, shape, n_classes = compiled(name)
    rng = tf.random.Generator.from_seed(1)
    x, y = rng.normal((batch, *shape)), rng.uniform((batch,), maxval=n_classes, dtype=tf.int32)
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = data.with_options(options)
    ends: list[float] = []

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, step: int, logs: Any = None) -> None:
            ends.append(time.perf_counter())

    def run(n: int) -> None:
        model.fit(data, epochs=1, steps_per_epoch=n, verbose=0, callbacks=[Clock()])

    run(WARMUP_STEPS * 2)
    guess = statistics.median([b - a for a, b in zip(ends[WARMUP_STEPS:-1], ends[WARMUP_STEPS + 1 :], strict=True)])
    # The same number on all ranks, however they differ: a power of two.
    n = 8
    while n * 2 < min(seconds / guess, MOST_STEPS):
        n *= 2
    n = agreed(n)
    ends.clear()
    run(n)
    return statistics.median([b - a for a, b in itertools.pairwise(ends)])


def agreed(n: int) -> int:
    """The number of rank 0."""
    if _agree is None:
        return n
    return int(_agree(n))


_agree: Callable[[int], Any] | None = None


def fit(mode: str, name: str, seconds: float) -> None:
    global _agree
    if mode != "keras":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    tf = quiet_tensorflow()
    keras = tf.keras
    import phalanx.tensorflow
    import phalanx.tensorflow.keras as hvd

    hvd.init()
    _agree = lambda n: hvd.broadcast_object(n, 0)  # noqa: E731

    def compiled(name: str) -> Any:
        model, *rest = model_of(name, keras)
        optimizer = keras.optimizers.SGD(0.001)
        if mode != "apart":
            phalanx.tensorflow.broadcast_variables(model.variables, root_rank=0)
            optimizer = hvd.DistributedOptimizer(optimizer)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model, *rest

    step = timed_fit(tf, keras, compiled, name, 32, seconds)
    if hvd.rank() == 0:
        told(mode, name, step)
    hvd.shutdown()


def mirrored(name: str, seconds: float) -> None:
    """Starts both processes; each has its place in TF_CONFIG."""
    doors = [socket.socket() for _ in range(2)]
    for door in doors:
        door.bind(("127.0.0.1", 0))
    workers = [f"127.0.0.1:{door.getsockname()[1]}" for door in doors]
    for door in doors:
        door.close()
    running = []
    for i in range(2):
        place = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}})
        words = [sys.executable, __file__, "worker", name, str(seconds)]
        running.append(subprocess.Popen(words, env={**os.environ, "TF_CONFIG": place, "TF_USE_LEGACY_KERAS": "1"}))
    sys.exit(max(process.wait() for process in running))


def worker(name: str, seconds: float) -> None:
    global _agree
    tf = quiet_tensorflow()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # The strategy works with the Keras of TensorFlow, tf_keras.
    keras = tf.keras

    def agree(n: int) -> int:
        mine = tf.constant(n if strategy.cluster_resolver.task_id == 0 else 0)
        sums = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, mine))
        return int(sums)

    _agree = agree

    def compiled(name: str) -> Any:
        with strategy.scope():
            model, *rest = model_of(name, keras)
            model.compile(keras.optimizers.SGD(0.001), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model, *rest

    # A batch of both ranks, of which each takes its half.
    step = timed_fit(tf, keras, compiled, name, 64, seconds)
    if strategy.cluster_resolver.task_id == 0:
        told("mirrored", name, step)


def main() -> None:
    mode = sys.argv[1]
    if mode == "small":
        small(float(sys.argv[2]))
    elif mode == "mirrored":
        mirrored(sys.argv[2], float(sys.argv[3]))
    elif mode == "worker":
        worker(sys.argv[2], float(sys.argv[3]))
    else:
        fit(mode, sys.argv[2], float(sys.argv[3]))


if __name__ == "__main__":
    main()
