"""Writes what PyTorch computes for the layers of crates/phalanx-graph/tests/recurrent.rs, in f64.

Run from the repository: python python/oracle/graph_recurrent.py > crates/phalanx-graph/tests/fixtures/recurrent.json
"""

import json
import sys

import torch

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
HIDDEN, WIDTH = 6, 4
X = torch.round(torch.randn(3, 5, WIDTH) * 1000) / 1000


def flat(t: torch.Tensor) -> list[float]:
    return t.detach().reshape(-1).tolist()


def run(kind: str, reverse: bool) -> dict[str, object]:
    """Parameters as ours: weights transposed, biases of input and state in one where both are only added."""
    net = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](WIDTH, HIDDEN, batch_first=True)
    for p in net.parameters():
        p.data = torch.round(p.data * 1000) / 1000
    if kind == "lstm":
        net.bias_hh_l0.data.zero_()
    else:
        net.bias_hh_l0.data[: 2 * HIDDEN].zero_()
    y = net(X.flip(1) if reverse else X)[0]
    y = y.flip(1) if reverse else y
    y.square().mean().backward()
    ours = {"fc.w": net.weight_ih_l0, "fc.b": net.bias_ih_l0, f"{kind}.w": net.weight_hh_l0}
    start = {k: flat(p.t() if p.dim() == 2 else p) for k, p in ours.items()}
    grad = {k: flat(p.grad.t() if p.dim() == 2 else p.grad) for k, p in ours.items()}
    if kind == "gru":
        start["gru.b"], grad["gru.b"] = (flat(p[2 * HIDDEN :]) for p in (net.bias_hh_l0, net.bias_hh_l0.grad))
    return {"start": start, "y": flat(y), "grad": grad}


file = {"x": flat(X)} | {
    f"{kind}{'_reverse' if reverse else ''}": run(kind, reverse) for kind in ("lstm", "gru") for reverse in (False, True)
}
json.dump(file, sys.stdout)
