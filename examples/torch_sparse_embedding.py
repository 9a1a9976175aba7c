"""A language model whose embedding has sparse gradients: only the rows of words that were seen travel.

phalanx run -np 2 python examples/torch_sparse_embedding.py
"""

from __future__ import annotations

import argparse
import gzip
import math
import re
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F

import phalanx.torch as hvd

DATA = Path(__file__).resolve().parent.parent / "data" / "kjv.txt.gz"
RARE = 0


def read(path: Path, n_words: int) -> tuple[torch.Tensor, int]:
    """The text as numbers of its most frequent words; all others are one word."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        words = re.findall(r"[a-z']+", file.read().lower())
    number = {word: i + 1 for i, (word, _) in enumerate(Counter(words).most_common(n_words - 1))}
    return torch.tensor([number.get(word, RARE) for word in words]), len(number) + 1


class Model(torch.nn.Module):
    """Guesses a word from the few before it."""

    def __init__(self, n_words: int, context: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(n_words, width, sparse=sparse)
        self.hidden = torch.nn.Linear(context * width, width)
        self.output = torch.nn.Linear(width, n_words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.output(torch.tanh(self.hidden(self.embedding(words).flatten(1))))


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a language model with a sparse embedding.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=256, help="of all ranks together")
    parser.add_argument("--words", type=int, default=12_000, help="size of the vocabulary")
    parser.add_argument("--context", type=int, default=4, help="words that are seen")
    parser.add_argument("--width", type=int, default=64, help="of the embedding")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dense", action="store_true", help="dense gradients, to see what sparse ones save")
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    rank, size = hvd.rank(), hvd.size()
    text, n_words = read(args.data, args.words)
    held_out = len(text) // 50
    train, test = text[:-held_out], text[-held_out:]
    windows = torch.arange(args.context)

    def samples(of: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return of[at[:, None] + windows], of[at + args.context]

    model = Model(n_words, args.context, args.width, sparse=not args.dense)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    began = time.monotonic()
    order = torch.Generator().manual_seed(2)
    for step in range(1, args.steps + 1):
        batch = torch.randint(len(train) - args.context, (args.batch_size,), generator=order)[rank::size]
        words, following = samples(train, batch)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words), following)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % 50 == 0 or step == args.steps):
            n_rows = model.embedding.weight.grad._nnz() if not args.dense else n_words
            print(f"step {step}: loss {loss.item():.3f}, {n_rows} rows of {n_words} travelled", file=sys.stderr, flush=True)

    with torch.no_grad():
        at = torch.arange(len(test) - args.context)[rank::size]
        words, following = samples(test, at)
        total = sum(
            F.cross_entropy(model(w), f, reduction="sum")
            for w, f in zip(words.split(1024), following.split(1024), strict=True)
        )
    total = hvd.allreduce(torch.as_tensor(total, dtype=torch.float64), op=hvd.Sum).item()
    if rank == 0:
        perplexity = math.exp(total / (len(test) - args.context))
        seconds = time.monotonic() - began
        print(f"perplexity {perplexity:.0f} of {n_words} words on unseen text; {size} ranks, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
