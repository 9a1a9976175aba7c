"""Collectives and steps of an MLP with JAX on two ranks; rank 0 prints ``figure``, what, of what, and microseconds, apart by tabs.

jax_steps.py small SECONDS          allreduce with phalanx.numpy and inside of jax.jit, in turns; for ranks of Phalanx
jax_steps.py MODE SECONDS           a step of an MLP with 25 M parameters: phalanx and apart for ranks of Phalanx; gloo starts two
                                    processes with jax.distributed itself
"""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

WIDTHS = (1024, 4096, 4096, 1000)
BATCH = 32
WARMUP = 3


def told(what: str, of: str, seconds: float) -> None:
    print(f"figure\t{what}\t{of}\t{seconds * 1e6:.2f}", flush=True)


def one_thread() -> None:
    """Two ranks on two cores: one thread for the parts of an operation, on every side."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false " + os.environ.get("XLA_FLAGS", "")
    os.environ["JAX_PLATFORMS"] = "cpu"


def small(seconds: float) -> None:
    """All of them in turns, block by block, in one world."""
    one_thread()
    import jax
    import jax.numpy as jnp
    import numpy as np

    import phalanx.jax as hvd
    import phalanx.numpy as pn

    hvd.init()
    step = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    none = jax.jit(lambda x: x + 1)
    sizes = {"4 bytes": 1, "1,000 floats": 1000, "4 M floats": 4 << 20}
    cases: dict[tuple[str, str], tuple[Callable[[], Any], int]] = {}
    for of, n in sizes.items():
        x, array = jnp.ones(n, jnp.float32), np.ones(n, np.float32)
        times = 100 if n <= 1000 else 4
        cases["phalanx.numpy", of] = (lambda array=array, of=of: pn.allreduce(array, of, op=pn.Sum), times)
        cases["jax.jit", of] = (lambda x=x: step(x).block_until_ready(), times)
        cases["jax.jit without a collective", of] = (lambda x=x: none(x).block_until_ready(), times)
    for call, _ in cases.values():
        call()
        call()
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in cases}
    start = time.perf_counter()
    together = np.ones(1, np.float32)
    while pn.allreduce(np.array([time.perf_counter() - start]), "slowest", op=pn.Max)[0] < seconds:
        for key, (call, n) in cases.items():
            for _ in range(n):
                pn.allreduce(together, "together", op=pn.Sum)
                began = time.perf_counter()
                call()
                taken[key].append(time.perf_counter() - began)
    for (what, of), all_times in taken.items():
        slowest = pn.allreduce(np.array([statistics.median(all_times)]), "median", op=pn.Max)[0]
        if hvd.rank() == 0:
            told(what, of, float(slowest))
    hvd.shutdown()


def net() -> tuple[list[Any], Callable[[list[Any], Any, Any], Any]]:
    """Parameters and the loss of a batch."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    shapes = list(itertools.pairwise(WIDTHS))
    parameters = [(rng.standard_normal(s, np.float32) * 0.02, np.zeros(s[1], np.float32)) for s in shapes]

    def loss(parameters: list[Any], x: Any, y: Any) -> Any:
        for i, (w, b) in enumerate(parameters):
            x = x @ w + b
            x = jax.nn.relu(x) if i + 1 < len(parameters) else x
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1))

    return parameters, loss


def timed(step: Callable[[Any], Any], parameters: Any, agree: Callable[[float], float], seconds: float) -> float:
    """Seconds of a step, the median of all after the first ones."""
    times: list[float] = []
    began = 0.0
    for i in range(100_000):
        if i == WARMUP:
            began = time.perf_counter()
        if agree(time.perf_counter() - began if i > WARMUP + 8 else 0.0) > seconds:
            break
        start = time.perf_counter()
        parameters, value = step(parameters)
        value.block_until_ready()
        parameters[0][0].block_until_ready()
        if i >= WARMUP:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def ours(mode: str, seconds: float) -> None:
    one_thread()
    import jax
    import jax.numpy as jnp
    import numpy as np

    import phalanx.jax as hvd
    import phalanx.numpy as pn

    hvd.init()
    parameters, loss = net()
    gradients_of = hvd.value_and_grad(loss) if mode == "phalanx" else jax.value_and_grad(loss)
    rng = np.random.default_rng(hvd.rank())
    x, y = jnp.asarray(rng.standard_normal((BATCH, WIDTHS[0]), np.float32)), jnp.asarray(rng.integers(0, WIDTHS[-1], BATCH))

    def step(parameters: Any, x: Any, y: Any) -> Any:
        value, gradients = gradients_of(parameters, x, y)
        return jax.tree.map(lambda p, g: p - 0.001 * g, parameters, gradients), value

    compiled = jax.jit(step, donate_argnums=0)
    parameters = jax.tree.map(jnp.asarray, parameters)
    slowest = lambda t: float(pn.allreduce(np.array([t]), "slowest", op=pn.Max)[0])  # noqa: E731
    took = slowest(timed(lambda p: compiled(p, x, y), parameters, slowest, seconds))
    if hvd.rank() == 0:
        told(mode, "mlp", took)
    hvd.shutdown()


def gloo(seconds: float) -> None:
    """Starts both processes."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    words = [sys.executable, __file__, "worker"]
    running = [subprocess.Popen([*words, str(i), str(port), str(seconds)]) for i in range(2)]
    sys.exit(max(process.wait() for process in running))


def worker(rank: int, port: int, seconds: float) -> None:
    one_thread()
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    parts, whole = NamedSharding(mesh, PartitionSpec("ranks")), NamedSharding(mesh, PartitionSpec())
    parameters, loss = net()
    rng = np.random.default_rng(rank)
    x = jax.make_array_from_process_local_data(parts, rng.standard_normal((BATCH, WIDTHS[0]), np.float32))
    y = jax.make_array_from_process_local_data(parts, rng.integers(0, WIDTHS[-1], BATCH).astype(np.int32))
    parameters = jax.tree.map(lambda p: jax.device_put(p, whole), parameters)

    def step(parameters: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, x, y)
        return jax.tree.map(lambda p, g: p - 0.001 * g, parameters, gradients), value

    compiled = jax.jit(step, donate_argnums=0, out_shardings=(whole, whole))
    slowest = lambda t: float(np.max(multihost_utils.process_allgather(jnp.float32(t))))  # noqa: E731
    took = slowest(timed(lambda p: compiled(p, x, y), parameters, slowest, seconds))
    if rank == 0:
        told("gloo", "mlp", took)
    jax.distributed.shutdown()


def main() -> None:
    mode = sys.argv[1]
    if mode == "small":
        small(float(sys.argv[2]))
    elif mode == "gloo":
        gloo(float(sys.argv[2]))
    elif mode == "worker":
        worker(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    else:
        ours(mode, float(sys.argv[2]))


if __name__ == "__main__":
    main()
