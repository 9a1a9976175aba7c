"""Writes what PyTorch computes for the network of crates/phalanx-graph/tests/oracle.rs, in f64.

Run from the repository: python python/oracle/graph_training.py > crates/phalanx-graph/tests/fixtures/training.json
"""

import json
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)


def rounded(t: torch.Tensor) -> torch.Tensor:
    """Few digits, so that the file is small and exact."""
    return torch.round(t * 1000) / 1000


SHAPES = {
    "conv.w": [2, 1, 3, 3],
    "conv.b": [2],
    "bn.scale": [2],
    "bn.shift": [2],
    "fc.w": [18, 5],
    "fc.b": [5],
    "ln.scale": [5],
    "ln.shift": [5],
    "fc.w.1": [5, 3],
    "fc.b.1": [3],
}
START = {name: rounded(torch.randn(shape) * 0.5) for name, shape in SHAPES.items()}
X = rounded(torch.randn(6, 1, 8, 8))
LABEL = torch.randint(0, 3, (6,))
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.05),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-8),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.95, eps=1e-6, momentum=0.5),
    "decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05),
    "clip": lambda p: torch.optim.SGD(p, lr=0.1),
}


def forward(p: dict[str, torch.Tensor]) -> torch.Tensor:
    y = F.relu(F.conv2d(X, p["conv.w"], p["conv.b"]))
    y = F.batch_norm(y, None, None, p["bn.scale"], p["bn.shift"], training=True, eps=1e-5)
    y = F.max_pool2d(y, 2).flatten(1)
    y = F.gelu(y @ p["fc.w"] + p["fc.b"])
    y = F.layer_norm(y, [5], p["ln.scale"], p["ln.shift"], eps=1e-5)
    return F.cross_entropy(y @ p["fc.w.1"] + p["fc.b.1"], LABEL)


def train(name: str) -> dict[str, object]:
    p = {k: v.clone().requires_grad_() for k, v in START.items()}
    optimizer = OPTIMIZERS[name](list(p.values()))
    losses: list[float] = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = forward(p)
        losses.append(loss.item())
        loss.backward()
        if name == "clip":
            torch.nn.utils.clip_grad_norm_(list(p.values()), 0.3)
        optimizer.step()
    return {"losses": losses, "fc.w": p["fc.w"].detach().flatten().tolist()}


json.dump(
    {
        "start": {k: {"dims": list(v.shape), "data": v.flatten().tolist()} for k, v in START.items()},
        "x": X.flatten().tolist(),
        "label": LABEL.tolist(),
        "runs": {name: train(name) for name in OPTIMIZERS},
    },
    sys.stdout,
)
sys.stdout.write("\n")
