"""Parallax's way to train a language model: the table of words is on servers, the rest is reduced.

python examples/parallax_words.py                                  # alone
phalanx run -np 2 python examples/parallax_words.py                # two workers
python examples/parallax_words.py --resource-info hosts.txt        # starts itself on the hosts of a file
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
from typing import Any

import torch
import torch.nn.functional as F

import phalanx.torch as hvd
from phalanx import parallax

DATA = Path(__file__).resolve().parent.parent / "data" / "kjv.txt.gz"
RARE = 0


def read(path: Path, n_words: int) -> tuple[torch.Tensor, int]:
    """The text as numbers of its most frequent words; all others are one word."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        words = re.findall(r"[a-z']+", file.read().lower())
    number = {word: i + 1 for i, (word, _) in enumerate(Counter(words).most_common(n_words - 1))}
    return torch.tensor([number.get(word, RARE) for word in words]), len(number) + 1


class Words(torch.nn.Module):
    """Guesses a word from the few before it; what it returns can be fetched."""

    def __init__(self, n_words: int, context: int, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(n_words, width, sparse=True)
        self.hidden = torch.nn.Linear(context * width, width)
        self.output = torch.nn.Linear(width, n_words)

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.output(torch.tanh(self.hidden(self.embedding(words).flatten(1))))
        return {"loss": F.cross_entropy(scores, following), "sum": F.cross_entropy(scores, following, reduction="sum")}


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a language model whose table is on servers.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=256, help="of all workers together")
    parser.add_argument("--words", type=int, default=12_000, help="size of the vocabulary")
    parser.add_argument("--context", type=int, default=4, help="words that are seen")
    parser.add_argument("--width", type=int, default=64, help="of the table")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--run-option", choices=["PS", "MPI", "HYBRID"], help="the default is what fits the model")
    parser.add_argument("--resource-info", help="file with one host a line; this program starts itself on all of them")
    parser.add_argument("--ckpt-dir", help="where the training is saved and resumed")
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    text, n_words = read(args.data, args.words)
    held_out = len(text) // 50
    train, test = text[:-held_out], text[-held_out:]
    windows = torch.arange(args.context)

    def samples(of: torch.Tensor, at: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        return {"words": [of[at[:, None] + windows]], "following": [of[at + args.context]]}

    model = Words(n_words, args.context, args.width)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    config = parallax.Config()
    config.run_option = args.run_option
    # As the other examples: each worker has its part of one batch.
    config.average_sparse = True
    if args.ckpt_dir is not None:
        config.ckpt_config = parallax.CheckPointConfig(args.ckpt_dir, save_ckpt_steps=100)

    def run(session: Any, n_steps: int, names: Any, n_workers: int, worker: int, n_replicas: int) -> None:
        began = time.monotonic()
        order = torch.Generator().manual_seed(2)
        if worker == 0:
            print(session.explain(), file=sys.stderr)
        for step in range(1, n_steps + 1):
            batch = torch.randint(len(train) - args.context, (args.batch_size,), generator=order)[worker::n_workers]
            assert n_replicas == 1 and names["loss"] == ["replica_0/loss"]
            (loss,), _ = session.run(["loss", "train_op"], feed_dict=samples(train, batch))
            if worker == 0 and (step % 50 == 0 or step == n_steps):
                print(f"step {step}: loss {loss.item():.3f}", file=sys.stderr, flush=True)
        at = torch.arange(len(test) - args.context)[worker::n_workers]
        total = sum(session.run("sum", feed_dict=samples(test, some))[0].double() for some in at.split(1024))
        total = hvd.allreduce(torch.as_tensor(total, dtype=torch.float64), op=hvd.Sum).item()
        if worker == 0:
            perplexity = math.exp(total / (len(test) - args.context))
            seconds = time.monotonic() - began
            print(f"perplexity {perplexity:.0f} of {n_words} words on unseen text; {n_workers} workers, {seconds:.1f} s", flush=True)

    parallax.parallel_run((model, optimizer), run, args.resource_info, args.steps, parallax_config=config)


if __name__ == "__main__":
    main()
