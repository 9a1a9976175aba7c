"""Writes what PyTorch computes for the layers of crates/phalanx-graph/tests/sequence_oracle.rs, in f64.

Run from the repository: python python/oracle/graph_sequences.py > crates/phalanx-graph/tests/fixtures/sequences.json
"""

import json
import sys

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from written import case, rounded

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)

N, TIME, WIDTH, STATE = 3, 4, 4, 2
LENGTHS = [2, 4, 1]


def recurrent(kind: str, reverse: bool, ragged: bool) -> dict[str, object]:
    layer = getattr(torch.nn, kind.upper())(WIDTH, STATE, batch_first=True, bidirectional=reverse)
    gates = 4 if kind == "lstm" else 3
    shapes = {
        "w_ih": [gates * STATE, WIDTH],
        "w_hh": [gates * STATE, STATE],
        "b_ih": [gates * STATE],
        "b_hh": [gates * STATE],
    }
    own = {k: rounded(*shape) for k, shape in shapes.items()}
    x = rounded(N, TIME, WIDTH)
    # The reverse half of a layer with both directions.
    ending = "_l0_reverse" if reverse else "_l0"
    half = slice(STATE, None) if reverse else slice(None)

    def run() -> torch.Tensor:
        given = dict(layer.named_parameters())
        for name, value in own.items():
            given[name.replace("w_", "weight_").replace("b_", "bias_") + ending] = value
        fed = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False) if ragged else x
        y, last = torch.func.functional_call(layer, given, (fed,))
        if ragged:
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=TIME)
        states = [s[-1] for s in (last if kind == "lstm" else [last])]
        return torch.cat([y[..., half].flatten(1), *states], 1)

    return case({"x": x, **{f"{kind}.{k}": v for k, v in own.items()}}, run)


def attention(causal: bool, ragged: bool) -> dict[str, object]:
    start = {"x": rounded(N, TIME, WIDTH)}
    for i in ["", ".1", ".2", ".3"]:
        start[f"fc.w{i}"], start[f"fc.b{i}"] = rounded(WIDTH, WIDTH), rounded(WIDTH)

    def heads(i: str) -> torch.Tensor:
        y = start["x"] @ start[f"fc.w{i}"] + start[f"fc.b{i}"]
        return y.reshape(N, TIME, 2, WIDTH // 2).transpose(1, 2)

    def run() -> torch.Tensor:
        seen = torch.ones(N, 1, TIME, TIME, dtype=torch.bool)
        if causal:
            seen = seen & torch.ones(TIME, TIME, dtype=torch.bool).tril()
        if ragged:
            seen = seen & (torch.arange(TIME) < torch.tensor(LENGTHS)[:, None])[:, None, None]
        y = F.scaled_dot_product_attention(heads(""), heads(".1"), heads(".2"), attn_mask=seen)
        y = y.transpose(1, 2).reshape(N, TIME, WIDTH)
        return (y @ start["fc.w.3"] + start["fc.b.3"]).flatten(1)

    return case(start, run)


CASES: dict[str, object] = {}
for ragged in [False, True]:
    for reverse in [False, True]:
        for kind in ["lstm", "gru"]:
            name = f"{kind}{' reverse' if reverse else ''}{' ragged' if ragged else ''}"
            CASES[name] = recurrent(kind, reverse, ragged)
    for causal in [False, True]:
        CASES[f"attention{' causal' if causal else ''}{' ragged' if ragged else ''}"] = attention(causal, ragged)

json.dump({"lengths": LENGTHS, "cases": CASES}, sys.stdout)
sys.stdout.write("\n")
