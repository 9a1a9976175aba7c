"""Writes what PyTorch computes for the loops and branches of crates/phalanx-graph/tests/control/oracle.rs, in f64.

Run from the repository: python python/oracle/graph_control.py > crates/phalanx-graph/tests/fixtures/control.json
"""

import json
import sys

import torch
from written import case, rounded

torch.manual_seed(5)
torch.set_default_dtype(torch.float64)

N, TIME, WIDTH, STATE = 3, 5, 2, 4


def recurrent() -> dict[str, object]:
    """A recurrent network over time."""
    start = {
        "x": rounded(N, TIME, WIDTH),
        "u": rounded(WIDTH, STATE),
        "w": rounded(STATE, STATE),
        "first": rounded(N, STATE),
    }

    def run() -> torch.Tensor:
        h = start["first"]
        for t in range(TIME):
            h = torch.tanh(start["x"][:, t] @ start["u"] + h @ start["w"])
        return h

    return case(start, run, with_zeros=True)


def growing(limit: float) -> dict[str, object]:
    """As many rounds as the numbers need; within each, one side or the other."""
    start = {"x": rounded(2, 3), "w": rounded(3)}

    def run() -> torch.Tensor:
        x, w, rounds = start["x"], start["w"], 0
        while x.square().sum() < limit:
            x = x * 1.5 + w if rounds < 2 else x * x + w * 0.5 + 1.0
            rounds += 1
        return x

    return {"limit": limit, **case(start, run, with_zeros=True)}


CASES = {"recurrent": recurrent(), **{f"growing {i}": growing(limit) for i, limit in enumerate([0.0, 50.0, 1e6])}}
json.dump(CASES, sys.stdout)
sys.stdout.write("\n")
