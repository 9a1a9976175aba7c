"""Writes the losses PyTorch has in fifty steps of the network of crates/phalanx-graph/tests/curves.rs, in f64.

Parameters and samples are functions of their place alone, so that only losses are written down.
Run from the repository: python python/oracle/graph_curves.py > crates/phalanx-graph/tests/fixtures/curves.json
"""

import itertools
import json
import sys

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)

PIXELS, WIDTH, CLASSES, BATCH, STEPS = 64, 200, 10, 32, 50
LOW = 0xFFFFFFFF


def mixed(n: int, salt: int) -> torch.Tensor:
    """Numbers of 32 bits that look like noise."""
    x = (torch.arange(n) * 2654435761 + salt * 40503 + 12345) & LOW
    x = x ^ (x >> 15)
    x = (x * 2246822519) & LOW
    x = x ^ (x >> 13)
    x = (x * 3266489917) & LOW
    return x ^ (x >> 16)


def noise(n: int, salt: int) -> torch.Tensor:
    """From -1 to 1, as f32 has it."""
    return (mixed(n, salt) / 2**31 - 1).float().double()


def weights(rows: int, columns: int, salt: int) -> torch.Tensor:
    limit = torch.tensor(6 / (rows + columns)).sqrt()
    return (limit * noise(rows * columns, salt)).float().double().reshape(rows, columns)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    label = mixed(BATCH, 1000 + step) % CLASSES
    image = noise(BATCH * PIXELS, 2000 + step).reshape(BATCH, PIXELS)
    bright = torch.arange(PIXELS)[None, :] // 6 == label[:, None]
    return (image + 0.5 * bright).float().double(), label


def train(norm: bool) -> list[float]:
    sizes = [PIXELS, WIDTH, WIDTH, WIDTH, WIDTH, CLASSES]
    w = [weights(a, b, i).requires_grad_() for i, (a, b) in enumerate(itertools.pairwise(sizes))]
    b = [torch.zeros(n).requires_grad_() for n in sizes[1:]]
    scale = [torch.ones(WIDTH).requires_grad_() for _ in range(4 if norm else 0)]
    shift = [torch.zeros(WIDTH).requires_grad_() for _ in range(4 if norm else 0)]
    optimizer = torch.optim.Adam([*w, *b, *scale, *shift], lr=1e-3)
    losses: list[float] = []
    for step in range(STEPS):
        x, label = batch(step)
        for i in range(4):
            x = torch.tanh(x @ w[i] + b[i])
            if norm:
                x = F.batch_norm(x, None, None, scale[i], shift[i], training=True, eps=1e-5)
        loss = F.cross_entropy(x @ w[4] + b[4], label)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


json.dump({"plain": train(False), "normed": train(True)}, sys.stdout)
sys.stdout.write("\n")
