"""Training steps of one model: alone, on two ranks that exchange nothing, with DistributedDataParallel over Gloo, or with Phalanx.

steps.py MODE MODEL            under `race.py`, which says when to compute: after WARMUP steps every rank connects to STEPS_MEETING and then
                               computes for as many seconds as each line from there says
steps.py MODE MODEL SECONDS    by itself: one turn

A turn ends with a line from rank 0: mode, model, ranks, bytes of gradients, median and least milliseconds of a step, peak memory
of the rank with the most and of the one with the least,
milliseconds of other threads than the main one in a step, context switches in a step.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

#: Steps before the first turn: the first eight, in which Phalanx compares the parameters of all ranks, and some more.
WARMUP = 10
#: Steps at the start of a turn that do not count, because another program had the caches; and the least number of those that count.
WAKING, LEAST = 2, 8


def resnet50_sizes() -> list[int]:
    """Numbers of elements of the 161 parameters of a ResNet-50."""
    sizes = [64 * 3 * 49, 64, 64]
    n_in = 64
    for width, n_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(n_blocks):
            sizes += [width * n_in, width, width, width * width * 9, width, width, width * width * 4, width * 4, width * 4]
            if block == 0:
                sizes += [n_in * width * 4, width * 4, width * 4]
            n_in = width * 4
    return [*sizes, 2048 * 1000, 1000]


class Shapes(nn.Module):
    """The parameters of a ResNet-50 and hardly any work; each gradient is ready at its own time."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.randn(n) * 0.01) for n in resnet50_sizes()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for p in self.all:
            x = x + (p * p).sum()
        return x


class Language(nn.Module):
    """An embedding of 200,000 words, an LSTM, a projection."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200_000, 256, sparse=sparse)
        self.lstm = nn.LSTM(256, 256, batch_first=True)
        self.output = nn.Linear(256, 2000)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.output(self.lstm(self.embedding(words))[0])


class Many(nn.Module):
    """Very many parameters of four elements each."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(n)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(list(self.all)).sum() * x


class Transformer(nn.Module):
    """Eight layers of width 256 over a vocabulary of 2,000: 7.4 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.output = nn.Linear(256, 2000)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.output(self.layers(self.embedding(words)))


def convolutions() -> nn.Module:
    """Seven convolutions with batch norm: 1.2 M parameters."""
    layers: list[nn.Module] = []
    for n_in, n_out, stride in (
        (3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)
    ):
        layers += [nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def build(model: str, rank: int) -> tuple[nn.Module, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """The model, what goes in, and the loss of what comes out."""
    torch.manual_seed(0)
    if model == "mlp":
        net: nn.Module = nn.Sequential(
            nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)
        )
        labels = torch.randint(0, 1000, (32,))
        return net, torch.randn(32, 1024), lambda out: F.cross_entropy(out, labels)
    if model == "wide":
        net = nn.Sequential(nn.Linear(2048, 8192), nn.ReLU(), nn.Linear(8192, 2048))
        return net, torch.randn(16, 2048), lambda out: out.square().mean()
    if model == "small":
        net = nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.Tanh()) for _ in range(200)), nn.Linear(48, 10))
        labels = torch.randint(0, 10, (32,))
        return net, torch.randn(32, 48), lambda out: F.cross_entropy(out, labels)
    if model == "tiny":
        net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
        return net, torch.randn(8, 16), lambda out: out.square().mean()
    if model == "many":
        return Many(5000), torch.ones(()), lambda out: out
    if model == "conv":
        labels = torch.randint(0, 10, (16,))
        return convolutions(), torch.randn(16, 3, 32, 32), lambda out: F.cross_entropy(out, labels)
    if model == "transformer":
        words, labels = torch.randint(0, 2000, (4, 64)), torch.randint(0, 2000, (4 * 64,))
        return Transformer(), words, lambda out: F.cross_entropy(out.reshape(-1, 2000), labels)
    if model == "resnet":
        return Shapes(), torch.zeros(()), lambda out: out
    net = Language(sparse=model == "lm-sparse")
    torch.manual_seed(rank + 1)
    words, labels = torch.randint(0, 200_000, (16, 32)), torch.randint(0, 2000, (16 * 32,))
    return net, words, lambda out: F.cross_entropy(out.reshape(-1, 2000), labels)


class Alone:
    """No exchange."""

    rank, size = 0, 1

    def wrap(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        return net, optimizer

    def slowest(self, values: list[float]) -> list[float]:
        return values

    def close(self) -> None:
        pass


class Gloo(Alone):
    """torch's own, at its best setting."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.dist = dist
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def wrap(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        return nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True), optimizer

    def slowest(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        self.dist.all_reduce(tensor, op=self.dist.ReduceOp.MAX)
        return tensor.tolist()

    def close(self) -> None:
        self.dist.destroy_process_group()


class Phalanx(Alone):
    """Ours: the optimizer wrapped, also with its tables on servers, or the model, or neither: then both ranks compute at the same time and
    exchange nothing."""

    def __init__(self, wraps: str) -> None:
        import phalanx.torch as hvd

        self.hvd, self.wraps = hvd, wraps
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def wrap(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        if self.wraps == "nothing":
            return net, optimizer
        if self.wraps == "model":
            return self.hvd.DistributedDataParallel(net), optimizer
        if self.wraps == "optimizer and tables":
            self.tables = self.hvd.serve_tables(net, optimizer)
        else:
            self.hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        return net, self.hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())

    def slowest(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        return self.hvd.allreduce(tensor, op=self.hvd.Max, name=f"slowest.{len(values)}").tolist()

    def close(self) -> None:
        self.hvd.shutdown()


MODES: dict[str, Callable[[], Alone]] = {
    "single": Alone,
    "ddp": Gloo,
    "ddp-plain": Gloo,
    "apart": lambda: Phalanx("nothing"),
    "phalanx": lambda: Phalanx("optimizer"),
    "phalanx-ddp": lambda: Phalanx("model"),
    "phalanx-served": lambda: Phalanx("optimizer and tables"),
}


def own_memory() -> int:
    """Bytes of memory that this process has; a page that n processes share counts as 1/n of it, files do not count."""
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))) * 1024


def most_memory(step: Callable[[], None]) -> int:
    """The most memory this process has during a few steps, looked at again and again."""
    most, is_over = own_memory(), threading.Event()

    def look() -> None:
        nonlocal most
        while not is_over.wait(1e-3):
            most = max(most, own_memory())

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(5):
        step()
    is_over.set()
    watcher.join()
    return most


def aside() -> tuple[float, int]:
    """Seconds that other threads than this one have computed, and how often threads of this process were switched."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.process_time() - time.thread_time(), used.ru_nvcsw + used.ru_nivcsw


def turns(mode: str, rank: int, answer: Callable[[float], str]) -> None:
    """Answers every request for a turn, of the race or of the command line."""
    if len(sys.argv) > 3:
        line = answer(float(sys.argv[3]))
        if rank == 0:
            print(line, flush=True)
        return
    with socket.socket(socket.AF_UNIX) as race:
        race.connect(os.environ["STEPS_MEETING"])
        race.sendall(f"{mode} {rank}\n".encode())
        for line in race.makefile():
            race.sendall(f"{answer(float(line))}\n".encode())


def timed(step: Callable[[], None], peers: Alone, seconds: float) -> Iterator[float]:
    """The seconds of each step of a turn on this rank."""
    began = 0.0
    for i in range(100_000):
        if i == WAKING:
            began = time.perf_counter()
        # Also a barrier, so that all begin together.
        if peers.slowest([time.perf_counter() - began if i > WAKING + LEAST else 0.0])[0] > seconds:
            return
        start = time.perf_counter()
        step()
        if i >= WAKING:
            yield time.perf_counter() - start


def main() -> None:
    mode, model = sys.argv[1], sys.argv[2]
    torch.set_num_threads(1)
    peers = MODES[mode]()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[peers.rank % len(os.sched_getaffinity(0))]})
    net, x, loss = build(model, peers.rank)
    n_bytes = sum(p.numel() * p.element_size() for p in net.parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    network, optimizer = peers.wrap(net, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        loss(network(x)).backward()
        optimizer.step()

    for _ in range(WARMUP):
        step()
    own_peak = float(most_memory(step))
    most_peak, least_peak = (int(abs(peak)) for peak in peers.slowest([own_peak, -own_peak]))

    def turn(seconds: float) -> str:
        before = aside()
        times = list(timed(step, peers, seconds))
        computed, switched = (now - then for now, then in zip(aside(), before, strict=True))
        n = len(times) + WAKING
        others, switches = peers.slowest([computed * 1e3 / n, switched / n])
        times = sorted(peers.slowest(times))
        middle, least = times[len(times) // 2] * 1e3, times[0] * 1e3
        figures = [peers.size, n_bytes, f"{middle:.3f}", f"{least:.3f}", most_peak, least_peak, f"{others:.2f}", f"{switches:.1f}"]
        return "\t".join(map(str, [mode, model, *figures]))

    turns(mode, peers.rank, turn)
    peers.close()


if __name__ == "__main__":
    main()
