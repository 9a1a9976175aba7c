"""Handwritten digits with PyTorch on any number of ranks.

phalanx run -np 2 python examples/torch_mnist.py

Any number of ranks computes the same: with `--save` a run writes its parameters down, with `--expect` another compares its own with them.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import phalanx.torch as hvd

DATA = Path(__file__).resolve().parent.parent / "data"


def digits(part: str, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, normalized, and their labels."""
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8)
    with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8)
    return (pixels.to(torch.get_default_dtype()).view(-1, 1, 28, 28) / 255 - 0.1307) / 0.3081, labels.long()


class Net(torch.nn.Module):
    """Two convolutions, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 10, 5)
        self.conv2 = torch.nn.Conv2d(10, 20, 5)
        self.fc1 = torch.nn.Linear(320, 50)
        self.fc2 = torch.nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def progress(epoch: int, step: int, n_steps: int, loss: float) -> None:
    """A bar where somebody watches, a line an epoch elsewhere."""
    done = step + 1 == n_steps
    if sys.stderr.isatty():
        bar = "#" * (30 * (step + 1) // n_steps)
        print(f"\repoch {epoch} [{bar:<30}] loss {loss:.3f}", end="\n" if done else "", file=sys.stderr, flush=True)
    elif done:
        print(f"epoch {epoch}: loss {loss:.3f}", flush=True)


def compare(ours: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    """Says how far two runs are apart, and ends the program if that is more than roundings."""
    furthest = max((ours[name] - value).abs().max().item() for name, value in others.items())
    largest = max(value.abs().max().item() for value in others.values())
    n = sum(value.numel() for value in others.values())
    print(f"{n} parameters, up to {largest:.2f}: the largest difference from the expected ones is {furthest:.1e}", flush=True)
    if not furthest <= 1e-6 * largest:
        sys.exit("that is more than roundings can explain")


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--double", action="store_true", help="64-bit numbers: roundings stay too small to be seen")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the final parameters there")
    parser.add_argument("--expect", type=Path, metavar="FILE", help="compare the final parameters with those")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64 if args.double else torch.float32)
    torch.set_num_threads(1)
    rank, size = hvd.rank(), hvd.size()
    images, labels = digits("train", args.data)
    test_images, test_labels = digits("t10k", args.data)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    share = args.batch_size // size
    if share == 0 or args.batch_size % size:
        sys.exit(f"--batch-size {args.batch_size} cannot be shared equally by {size} ranks")
    n_steps = len(images) // args.batch_size
    began = time.monotonic()
    for epoch in range(1, args.epochs + 1):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for step in range(n_steps):
            batch = order[step * args.batch_size :][: args.batch_size][rank::size]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            if rank == 0:
                progress(epoch, step, n_steps, loss.item())

    with torch.no_grad():
        right = (model(test_images[rank::size]).argmax(1) == test_labels[rank::size]).sum()
    accuracy = hvd.allreduce(right.double(), op=hvd.Sum).item() / len(test_labels)
    if rank == 0:
        seconds = time.monotonic() - began
        print(f"accuracy {accuracy:.1%} on {len(test_labels)} digits; {size} ranks, {seconds:.1f} s", flush=True)
        if args.save:
            torch.save(model.state_dict(), args.save)
        if args.expect:
            compare(model.state_dict(), torch.load(args.expect, weights_only=True))


if __name__ == "__main__":
    main()
