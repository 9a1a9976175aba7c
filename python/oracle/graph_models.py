"""Writes the losses PyTorch has for models of crates/phalanx-graph/tests/models, in f64.

Parameters begin with 0.4 * sin(0.9 * i + 1.3 * k), for element i of the k-th parameter in the order of names, from 1.
Run from the repository: python python/oracle/graph_models.py > crates/phalanx-graph/tests/fixtures/models.json
"""

import json
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.set_default_dtype(torch.float64)

N, TIME, WORDS, TAGS, WIDTH = 4, 6, 12, 3, 16
LENGTHS = torch.tensor([6, 3, 1, 4])
IDS = (torch.arange(N * TIME) * 7 + torch.arange(N * TIME) // 5 * 3).remainder(WORDS).reshape(N, TIME)
BEFORE = F.pad(IDS[:, :-1], (1, 0))
TAGGED = (IDS // 4 + BEFORE // 6).remainder(TAGS)
NEXT = (IDS * 5 + 1).remainder(WORDS)
LABEL = torch.tensor([0, 1, 1, 0])
IMAGE = torch.round(torch.sin(torch.arange(N * 3 * 64) * 0.7) * 50 + (torch.arange(N * 3 * 64) * 37 % 61)) / 100
IMAGE = IMAGE.reshape(N, 3, 8, 8)
KIND = torch.tensor([0, 2, 1, 2])
SEEN = torch.arange(TIME) < LENGTHS[:, None]
Parameters = dict[str, torch.Tensor]


def fc(p: Parameters, x: torch.Tensor, i: int) -> torch.Tensor:
    ending = f".{i}" if i else ""
    return x @ p[f"fc.w{ending}"] + p[f"fc.b{ending}"]


def bag(p: Parameters) -> torch.Tensor:
    x = torch.tanh((p["embedding.w"][IDS] * SEEN[..., None]).sum(1))
    x = torch.tanh(fc(p, torch.tanh(fc(p, x, 0)), 1))
    return F.cross_entropy(fc(p, x, 2), LABEL)


def lstm(p: Parameters, x: torch.Tensor, i: int, reverse: bool) -> torch.Tensor:
    layer = torch.nn.LSTM(x.shape[2], 10, batch_first=True, bidirectional=reverse)
    given = dict(layer.named_parameters())
    ending, half = ("_l0_reverse", slice(10, None)) if reverse else ("_l0", slice(None))
    for name in ["w_ih", "w_hh", "b_ih", "b_hh"]:
        full = name.replace("w_", "weight_").replace("b_", "bias_") + ending
        given[full] = p[f"lstm.{name}" + (f".{i}" if i else "")]
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    y, _ = torch.func.functional_call(layer, given, (packed,))
    return pad_packed_sequence(y, batch_first=True, total_length=TIME)[0][..., half]


def chain(w: torch.Tensor, scores: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
    """Minus the logarithm of the probability of one tagging."""
    begin, end, go = w[0], w[1], w[2:]
    right = begin[tags[0]] + end[tags[-1]] + scores[torch.arange(len(tags)), tags].sum() + go[tags[:-1], tags[1:]].sum()
    total = begin + scores[0]
    for row in scores[1:]:
        total = torch.logsumexp(total[:, None] + go, 0) + row
    return torch.logsumexp(total + end, 0) - right


def tagger(p: Parameters) -> torch.Tensor:
    first = torch.tanh(fc(p, torch.cat([p["emb"][IDS], p["emb"][BEFORE]], 2), 0))
    second = torch.tanh(fc(p, torch.cat([first, lstm(p, first, 0, False)], 2), 1))
    scores = fc(p, torch.cat([second, lstm(p, second, 1, True)], 2), 2)
    costs = [chain(p["crf.w"], s[:n], t[:n]) for s, t, n in zip(scores, TAGGED, LENGTHS, strict=True)]
    return torch.stack(costs).mean()


def norm(p: Parameters, x: torch.Tensor, i: int) -> torch.Tensor:
    ending = f".{i}" if i else ""
    return F.layer_norm(x, [WIDTH], p[f"ln.scale{ending}"], p[f"ln.shift{ending}"], eps=1e-5)


def transformer(p: Parameters) -> torch.Tensor:
    x = p["embedding.w"][IDS] + p["places"]
    mask = SEEN[:, None, None] & torch.ones(TIME, TIME, dtype=torch.bool).tril()
    for layer in range(2):
        y = norm(p, x, 2 * layer)
        parts = [fc(p, y, 6 * layer + i).reshape(N, TIME, 2, WIDTH // 2).transpose(1, 2) for i in range(3)]
        y = F.scaled_dot_product_attention(*parts, attn_mask=mask)
        x = x + fc(p, y.transpose(1, 2).reshape(N, TIME, WIDTH), 6 * layer + 3)
        y = F.gelu(fc(p, norm(p, x, 2 * layer + 1), 6 * layer + 4))
        x = x + fc(p, y, 6 * layer + 5)
    scores = fc(p, norm(p, x, 4), 12)
    losses = F.cross_entropy(scores.transpose(1, 2), NEXT, reduction="none")
    return (losses * SEEN).sum() / SEEN.sum()


def image_norm(p: Parameters, x: torch.Tensor, i: int) -> torch.Tensor:
    ending = f".{i}" if i else ""
    scale, shift = p[f"bn.scale{ending}"], p[f"bn.shift{ending}"]
    return F.batch_norm(x, None, None, scale, shift, training=True, eps=1e-5)


def se_resnext(p: Parameters) -> torch.Tensor:
    stem = F.relu(image_norm(p, F.conv2d(IMAGE, p["conv.w"], padding=1), 0))
    y = F.relu(image_norm(p, F.conv2d(stem, p["conv.w.1"]), 1))
    y = F.relu(image_norm(p, F.conv2d(y, p["conv.w.2"], padding=1, groups=4), 2))
    y = image_norm(p, F.conv2d(y, p["conv.w.3"]), 3)
    excited = torch.sigmoid(fc(p, F.relu(fc(p, y.mean([2, 3]), 0)), 1))
    short = image_norm(p, F.conv2d(stem, p["conv.w.4"]), 4)
    y = F.relu(y * excited[..., None, None] + short)
    return F.cross_entropy(fc(p, y.mean([2, 3]), 2), KIND)


def fcs(*sizes: tuple[int, int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for i, (a, b) in enumerate(sizes):
        ending = f".{i}" if i else ""
        found |= {f"fc.w{ending}": [a, b], f"fc.b{ending}": [b]}
    return found


def twice(name: str, shape: list[int]) -> dict[str, list[int]]:
    return {name: shape, f"{name}.1": shape}


LAYER = [(WIDTH, WIDTH)] * 4 + [(WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)]
BAG = {"embedding.w": [WORDS, 8], **fcs((8, 16), (16, 16), (16, 2))}
TAGGER = {"emb": [WORDS, 8], "crf.w": [TAGS + 2, TAGS], **fcs((16, 12), (22, 12), (22, TAGS))}
TAGGER |= (
    twice("lstm.w_ih", [40, 12]) | twice("lstm.w_hh", [40, 10]) | twice("lstm.b_ih", [40]) | twice("lstm.b_hh", [40])
)
TRANSFORMER = {"embedding.w": [WORDS, WIDTH], "places": [TIME, WIDTH], **fcs(*LAYER, *LAYER, (WIDTH, WORDS))}
TRANSFORMER |= {f"ln.{w}" + (f".{i}" if i else ""): [WIDTH] for w in ["scale", "shift"] for i in range(5)}

SE_RESNEXT = {"conv.w": [8, 3, 3, 3], "conv.w.1": [8, 8, 1, 1], "conv.w.2": [8, 2, 3, 3]}
SE_RESNEXT |= {"conv.w.3": [16, 8, 1, 1], "conv.w.4": [16, 8, 1, 1], **fcs((16, 4), (4, 16), (16, 3))}
for place, channels in enumerate([8, 8, 8, 16, 16]):
    SE_RESNEXT |= {f"bn.{w}" + (f".{place}" if place else ""): [channels] for w in ["scale", "shift"]}


def train(
    shapes: dict[str, list[int]],
    feeds: dict[str, torch.Tensor],
    loss: Callable[[Parameters], torch.Tensor],
    optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
    rate: Callable[[int], float],
) -> dict[str, object]:
    p: Parameters = {}
    for k, name in enumerate(sorted(shapes), 1):
        n = torch.Size(shapes[name]).numel()
        p[name] = (0.4 * torch.sin(0.9 * torch.arange(n) + 1.3 * k)).reshape(shapes[name]).requires_grad_()
    steps = optimizer(list(p.values()))
    losses: list[float] = []
    for step in range(6):
        for group in steps.param_groups:
            group["lr"] = rate(step)
        steps.zero_grad()
        now = loss(p)
        losses.append(now.item())
        now.backward()
        steps.step()
    fed = {k: {"dims": list(v.shape), "data": v.flatten().tolist()} for k, v in feeds.items()}
    return {"parameters": shapes, "feeds": fed, "losses": losses}


WORD = {"words": IDS, "lengths": LENGTHS}
json.dump(
    {
        "bag of words": train(
            BAG, WORD | {"label": LABEL}, bag, lambda p: torch.optim.Adagrad(p, eps=1e-6), lambda _: 0.1
        ),
        "tagger, dense table": train(
            TAGGER, WORD | {"context": BEFORE, "tags": TAGGED}, tagger, torch.optim.SGD, lambda _: 0.4
        ),
        "SE-ResNeXt, nothing dropped": train(
            SE_RESNEXT,
            {"image": IMAGE, "label": KIND},
            se_resnext,
            lambda p: torch.optim.SGD(p, momentum=0.9),
            lambda _: 0.05,
        ),
        "transformer, nothing dropped": train(
            TRANSFORMER, WORD | {"next": NEXT}, transformer, torch.optim.Adam, lambda step: 0.01 * min(step, 5) / 5
        ),
    },
    sys.stdout,
)
sys.stdout.write("\n")
