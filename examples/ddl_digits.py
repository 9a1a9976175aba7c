"""IBM DDL's four functions, Init, Bcast, AllReduce and AllReduceN, train a classifier of handwritten digits.

phalanx run -np 4 python examples/ddl_digits.py
phalanx run -np 12 -H h1:4,h2:4,h3:4 python examples/ddl_digits.py --ranks-per-host 4 --mode "-mode n:4x3 -dump_iter 100"
mpirun -np 12 -H h1:4,h2:4,h3:4 python examples/ddl_digits.py --ranks-per-host 4 --mode "-mode n:4x3 -dump_iter 100"
"""

import argparse
import gzip
import hashlib
import sys
from pathlib import Path

import numpy as np

from phalanx import ddl

DATA = Path(__file__).resolve().parent.parent / "data"


def digits(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as rows of 784 numbers, and their labels."""
    with gzip.open(DATA / f"{part}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 784)
    with gzip.open(DATA / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read()[8:], np.uint8)
    return images.astype(np.float32) / 255, labels


parser = argparse.ArgumentParser()
parser.add_argument("--mode", default=None, help="DDL's option string")
parser.add_argument("--ranks-per-host", type=int, default=None)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--check", type=float, default=0.17, help="how far results may be from the baseline; 0 compares nothing")
args = parser.parse_args()

rank, size, gpuid = ddl.init(args.ranks_per_host, mode=args.mode)

# Every rank begins with values of its own; then all have those of rank 0.
start = np.random.default_rng(rank)
shapes = [(784, 32), (32,), (32, 10), (10,)]
parameters = [start.normal(size=shape, scale=0.1).astype(np.float32) for shape in shapes]
parameters = [ddl.bcast(p, name=f"parameter.{i}") for i, p in enumerate(parameters)]

images, labels = (part[rank::size] for part in digits("train"))  # A share of the digits.
samples = np.random.default_rng(100 + rank)
batch = 32

for step in range(args.steps):
    # Every tenth step is compared with a baseline.
    check = args.check if step % 10 == 0 else 0.0
    chosen = samples.integers(0, len(labels), batch)
    x, y = images[chosen], labels[chosen]
    w1, b1, w2, b2 = parameters
    hidden = np.maximum(x @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    off = scores / scores.sum(axis=1, keepdims=True)
    loss = -np.log(off[np.arange(batch), y] + 1e-9).mean()
    off[np.arange(batch), y] -= 1
    off /= batch
    back = (off @ w2.T) * (hidden > 0)
    gradients = [x.T @ back, back.sum(axis=0), hidden.T @ off, off.sum(axis=0)]
    gradients = ddl.allreduce_n(gradients, op="avg", check=check, name="gradients")
    parameters = [p - np.float32(0.3) * g for p, g in zip(parameters, gradients, strict=True)]
    loss = ddl.allreduce(np.array([loss]), op="avg", check=check, name="loss")[0]
    if rank == 0 and step % 100 == 0:
        print(f"step {step}: loss {loss:.3f}", flush=True)

images, labels = (part[rank::size] for part in digits("t10k"))
w1, b1, w2, b2 = parameters
right = ((np.maximum(images @ w1 + b1, 0) @ w2 + b2).argmax(axis=1) == labels).sum()
counted = ddl.allreduce(np.array([right, len(labels)]), op="sum", name="right")
digest = hashlib.sha256(b"".join(p.tobytes() for p in parameters)).hexdigest()
# One write, so that lines of several ranks do not mix.
sys.stdout.write(f"rank {rank}: digest {digest}\n")
sys.stdout.flush()
if rank == 0:
    print(f"{size} ranks on {ddl.num_hosts()} hosts: {counted[0] / counted[1]:.1%} of {counted[1]} unseen digits are right")
    for tier, line in enumerate(ddl.report()):
        print(f"tier {tier}: {line.ranks} ranks, {line.way}, {line.bytes} bytes in {line.messages} messages")
ddl.finalize()
