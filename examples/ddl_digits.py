"""IBM DDL's four functions: Init, Bcast, AllReduce and AllReduceN train a small classifier of digits.

phalanx run -np 4 python examples/ddl_digits.py
phalanx run -np 12 python examples/ddl_digits.py --mode "-mode n:4x3 -dump_iter 100" --ranks-per-host 4    # 3 hosts of 4
"""

import argparse

import numpy as np

from phalanx import ddl

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default=None, help="DDL's option string")
parser.add_argument("--ranks-per-host", type=int, default=None)
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

rank, size, gpuid = ddl.init(args.ranks_per_host, mode=args.mode)

# Ten digits as points of 64 pixels with noise; every rank has samples of its own.
centres = np.random.default_rng(1).normal(size=(10, 64)).astype(np.float32)
samples = np.random.default_rng(100 + rank)
weights = np.random.default_rng(rank).normal(size=(64, 10), scale=0.1).astype(np.float32)
bias = np.zeros(10, np.float32)

# All ranks begin with the values of rank 0.
weights = ddl.bcast(weights, name="weights")
bias = ddl.bcast(bias, name="bias")

for step in range(args.steps):
    labels = samples.integers(0, 10, 32)
    x = centres[labels] + samples.normal(size=(32, 64)).astype(np.float32)
    scores = x @ weights + bias
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    off = scores / scores.sum(axis=1, keepdims=True)
    off[np.arange(32), labels] -= 1
    gradients = [x.T @ off / 32, off.mean(axis=0)]
    # The first steps are compared with a baseline in double precision.
    check = 0.17 if step < 3 else 0.0
    gradients = ddl.allreduce_n(gradients, op="avg", check=check, name="gradients")
    weights -= 0.1 * gradients[0].astype(np.float32)
    bias -= 0.1 * gradients[1].astype(np.float32)

labels = samples.integers(0, 10, 500)
x = centres[labels] + samples.normal(size=(500, 64)).astype(np.float32)
right = np.array([np.mean((x @ weights + bias).argmax(axis=1) == labels)])
right = ddl.allreduce(right, op="avg", name="accuracy")[0]
# Bits are equal on all ranks: the largest and the smallest are the same.
largest, smallest = (ddl.allreduce(weights, op=op, name=op) for op in ("max", "min"))
assert np.array_equal(largest, smallest)
if rank == 0:
    print(f"{size} ranks on {ddl.num_hosts()} hosts, {right:.1%} of the digits are right, weights are equal")
    for tier, line in enumerate(ddl.report()):
        print(f"tier {tier}: {line.ranks} ranks, {line.way}, {line.bytes} bytes in {line.messages} messages")
ddl.finalize()
