"""Times in PyTorch, on one thread, what crates/phalanx-graph/examples/graph_bench.rs times in Phalanx.

Reads the names of cases from stdin, line by line, and prints `name, median us, min us, samples/s`. Time is what this
thread spent on a core. With `--memory NAME` it prints how much resident memory a few steps take at most beyond the model,
what is fed to it and everything loaded before.
"""

import itertools
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(1)
SPAN_S = 0.4

Step = Callable[[], object]


def sgemm(rest: str) -> tuple[Step, int]:
    sizes, _, form = rest.partition("_")
    m, n, k = map(int, sizes.split("x"))
    a = torch.rand(k, m).t() if form.startswith("t") else torch.rand(m, k)
    b = torch.rand(n, k).t() if form.endswith("t") else torch.rand(k, n)
    c = torch.empty(m, n)
    return lambda: torch.mm(a, b, out=c), m


def training(net: nn.Module, sample: list[int], batch: int, classes: int) -> tuple[Step, int]:
    x = torch.rand(batch, *sample) - 0.5
    label = torch.arange(batch) % classes
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(x), label).backward()
        optimizer.step()

    return step, batch


def lenet(filters: list[int], hidden: list[int]) -> nn.Module:
    layers: list[nn.Module] = []
    before = 1
    for n in filters:
        layers += [nn.Conv2d(before, n, 5), nn.ReLU(), nn.MaxPool2d(2)]
        before = n
    layers.append(nn.Flatten())
    before *= 16
    for n in hidden:
        layers += [nn.Linear(before, n), nn.ReLU()]
        before = n
    return nn.Sequential(*layers, nn.Linear(before, 10))


def deep(n: int, width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(n):
        layers += [nn.Conv2d(width if i else 3, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(width * 64, 10))


def mlp(sizes: list[int], act: type[nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def normed(n: int, width: int, side: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(n, width, side, stride, side // 2, bias=False), nn.BatchNorm2d(width))


class Residual(nn.Module):
    def __init__(self, n: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = normed(n, width, 3, stride), normed(width, width, 3, 1)
        self.across = nn.Identity() if stride == 1 else normed(n, width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.across(x))


def resnet() -> nn.Module:
    layers: list[nn.Module] = [normed(3, 64, 3, 1), nn.ReLU()]
    before = 64
    for width in (64, 128, 256, 512):
        layers += [Residual(before, width, 1 if width == 64 else 2), Residual(width, width, 1)]
        before = width
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))


def bag_of_words() -> tuple[Step, int]:
    batch, time, words, width = 64, 64, 50_000, 128
    table, layer = nn.EmbeddingBag(words, width, mode="mean", sparse=True), nn.Linear(width, 10)
    ids = torch.randint(words, (batch, time))
    label = torch.arange(batch) % 10
    optimizer = torch.optim.SGD([*table.parameters(), *layer.parameters()], lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(layer(table(ids)), label).backward()
        optimizer.step()

    return step, batch


def block() -> tuple[Step, int]:
    net = Block(256, 4)
    x = torch.rand(8, 64, 256) - 0.5
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        optimizer.step()

    return step, 8


def conv(rest: str) -> tuple[Step, int]:
    batch, c, side, o, k, *more = map(int, rest.split("x"))
    stride, groups = (more + [1, 1][len(more) :])[:2]
    out = (side - 1) // stride + 1
    x = (torch.rand(batch, c, side, side) - 0.5).requires_grad_()
    w = (torch.rand(o, c // groups, k, k) * 0.1).requires_grad_()
    weight = torch.rand(batch, o, out, out)

    def step() -> None:
        x.grad = w.grad = None
        (F.conv2d(x, w, stride=stride, padding=k // 2, groups=groups) * weight).sum().backward()

    return step, batch


def deconv(rest: str) -> tuple[Step, int]:
    batch, c, side, o, k, stride = map(int, rest.split("x"))
    x = (torch.rand(batch, c, side, side) - 0.5).requires_grad_()
    w = (torch.rand(c, o, k, k) * 0.1).requires_grad_()
    weight = torch.rand(batch, o, side * stride, side * stride)

    def step() -> None:
        x.grad = w.grad = None
        (F.conv_transpose2d(x, w, stride=stride, padding=(k - stride) // 2) * weight).sum().backward()

    return step, batch


def hsigmoid(rest: str) -> tuple[Step, int]:
    """The nodes on the way to each class as a table, which is made once."""
    n, width, classes = map(int, rest.split("x"))
    x = nn.Parameter(torch.rand(n, width) - 0.5)
    w, b = nn.Parameter(torch.rand(classes - 1, width) * 0.1), nn.Parameter(torch.zeros(classes - 1))
    leaves = torch.arange(n) * 37 % classes + classes
    depth = int(leaves.max()).bit_length() - 1
    bits = torch.arange(depth)
    nodes, turns = (leaves[:, None] >> (bits + 1)) - 1, ((leaves[:, None] >> bits) & 1).float()
    is_on = (nodes >= 0).float()
    nodes = nodes.clamp(min=0)
    optimizer = torch.optim.SGD([x, w, b], lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        scores = torch.bmm(F.embedding(nodes, w), x[:, :, None])[:, :, 0] + b[nodes]
        ((F.softplus(scores) - turns * scores) * is_on).sum(1).mean().backward()
        optimizer.step()

    return step, n


def nce(rest: str) -> tuple[Step, int]:
    n, width, classes, k = map(int, rest.split("x"))
    x = nn.Parameter(torch.rand(n, width) - 0.5)
    w, b = nn.Parameter(torch.rand(classes, width) * 0.1), nn.Parameter(torch.zeros(classes, 1))
    label = torch.arange(n)[:, None] * 37 % classes
    expected = torch.tensor(k / classes)
    log_e, log_more = float(expected.log()), float(expected.log1p())
    optimizer = torch.optim.SGD([x, w, b], lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        ids = torch.cat([label, torch.randint(classes, (n, k))], 1)
        scores = (torch.bmm(F.embedding(ids, w), x[:, :, None]) + F.embedding(ids, b))[:, :, 0]
        each, noisy = F.softplus(log_e - log_more - scores), F.softplus(-scores)
        (each.sum(1) - noisy[:, 1:].sum(1)).mean().backward()
        optimizer.step()

    return step, n


def case(name: str) -> tuple[Step, int]:
    match name:
        case "lenet_20_50":
            return training(lenet([20, 50], [500]), [1, 28, 28], 64, 10)
        case "lenet_6_16":
            return training(lenet([6, 16], [120, 84]), [1, 28, 28], 64, 10)
        case "mlp_small":
            return training(mlp([784, 200, 200, 200, 10], nn.Tanh), [784], 64, 10)
        case "mlp_large":
            return training(mlp([1024, 4096, 4096, 1000], nn.ReLU), [1024], 32, 1000)
        case "block":
            return block()
        case "deep":
            return training(deep(8, 32), [3, 32, 32], 32, 10)
        case "resnet_18":
            return training(resnet(), [3, 32, 32], 8, 10)
        case "bag_of_words":
            return bag_of_words()
    kind, _, rest = name.partition("_")
    return {"sgemm": sgemm, "conv": conv, "deconv": deconv, "hsigmoid": hsigmoid, "nce": nce}[kind](rest)


def measure(name: str) -> None:
    step, samples = case(name)
    end = time.thread_time() + SPAN_S / 4
    while time.thread_time() < end:
        step()
    times: list[float] = []
    end = time.thread_time() + SPAN_S
    while time.thread_time() < end or len(times) < 5:
        begin = time.thread_time()
        step()
        times.append((time.thread_time() - begin) * 1e6)
    times.sort()
    median = times[len(times) // 2]
    print(f"{name}\t{median:.1f}\t{times[0]:.1f}\t{samples * 1e6 / median:.0f}", flush=True)


def resident(which: str) -> int:
    """Bytes that the kernel counts under this name."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(which + ":"))


def memory(name: str) -> None:
    step, _ = case(name)
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # The peak begins anew.
    before = resident("VmRSS")
    for _ in range(3):
        step()
    print(f"{name}\t{resident('VmHWM') - before}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        memory(sys.argv[2])
        sys.exit()
    for line in sys.stdin:
        measure(line.strip())
