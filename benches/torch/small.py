"""Small things from Python: prints a name and a median in microseconds, from rank 0."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from steps import resnet50_sizes

import phalanx.torch as hvd


def median(call: Callable[[], object], n: int) -> float:
    """Microseconds of one call, over n of them one after another, as in training; each waits for both ranks."""
    times = []
    for _ in range(n):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def added_import() -> float:
    """What `import phalanx.torch` adds to `import torch`."""
    code = "import torch, time; t = time.perf_counter(); import phalanx.torch; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    return statistics.median(float(run.stdout) for run in runs) * 1e6


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    one = torch.zeros(1)
    model = {f"p{i:03}": torch.zeros(n) for i, n in enumerate(resnet50_sizes()[:160])}
    start = time.perf_counter()
    hvd.broadcast_parameters(model, root_rank=0)
    first = (time.perf_counter() - start) * 1e6
    rows = {
        "allreduce_ of 4 bytes": median(lambda: hvd.allreduce_(one, name="in place"), 5000),
        "allreduce of 4 bytes": median(lambda: hvd.allreduce(one, name="apart"), 5000),
        "broadcast_parameters of 160 tensors, first": first,
        "broadcast_parameters of 160 tensors, again": median(lambda: hvd.broadcast_parameters(model, root_rank=0), 15),
    }
    if hvd.rank() == 0:
        rows["import phalanx.torch after torch"] = added_import()
        for name, value in rows.items():
            print(f"small\t{name}\t{value:.1f}", flush=True)
    hvd.barrier()


if __name__ == "__main__":
    main()
