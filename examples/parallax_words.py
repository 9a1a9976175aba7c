"""Parallax's way to train a language model: the table of words is on servers, the rest is reduced.

python examples/parallax_words.py                                  # alone
phalanx run -np 2 python examples/parallax_words.py                # two workers
phalanx run -np 2 python examples/parallax_words.py --graph        # a static program instead of a model of torch
python examples/parallax_words.py --resource-info hosts.txt        # starts itself on the hosts of a file

Without servers the same models are torch_sparse_embedding.py and graph_words.py.
"""

from __future__ import annotations

import argparse
import gzip
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import phalanx
from phalanx import parallax

DATA = Path(__file__).resolve().parent.parent / "data" / "kjv.txt.gz"
RARE = 0


def read(path: Path, n_words: int) -> tuple[np.ndarray, int]:
    """The text as numbers of its most frequent words; all others are one word."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        words = re.findall(r"[a-z']+", file.read().lower())
    number = {word: i + 1 for i, (word, _) in enumerate(Counter(words).most_common(n_words - 1))}
    return np.array([number.get(word, RARE) for word in words]), len(number) + 1


class Text:
    """What is learned, what is unseen, and samples of both: a few words and the one that follows."""

    def __init__(self, args: argparse.Namespace) -> None:
        text, self.n_words = read(args.data, args.words)
        held_out = len(text) // 50
        self.context = args.context
        self.train, self.unseen = text[:-held_out], text[-held_out:]

    def samples(self, of: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return of[at[:, None] + np.arange(self.context)], of[at + self.context]


def train(session: Any, n_steps: int, feed: Callable[[int], dict[str, Any]], loss: str) -> None:
    """The steps of one worker."""
    if phalanx.rank() == 0:
        print(session.explain(), file=sys.stderr)
    for step in range(1, n_steps + 1):
        (now,), _ = session.run([loss, "train_op"], feed_dict=feed(step))
        if phalanx.rank() == 0 and (step % 50 == 0 or step == n_steps):
            print(f"step {step}: loss {now.item():.3f}", file=sys.stderr, flush=True)


def with_torch(args: argparse.Namespace, text: Text, config: parallax.Config) -> float:
    """Trains a module; gives the loss on unseen text."""
    import torch
    import torch.nn.functional as F

    import phalanx.torch as hvd

    class Words(torch.nn.Module):
        """Guesses a word from the few before it; what it returns can be fetched."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(text.n_words, args.width, sparse=True)
            self.hidden = torch.nn.Linear(args.context * args.width, args.width)
            self.output = torch.nn.Linear(args.width, text.n_words)

        def forward(self, words: torch.Tensor, following: torch.Tensor) -> dict[str, torch.Tensor]:
            scores = self.output(torch.tanh(self.hidden(self.embedding(words).flatten(1))))
            total = F.cross_entropy(scores, following, reduction="sum")
            return {"loss": total / len(following), "sum": total}

    def feed(of: np.ndarray, at: np.ndarray) -> dict[str, list[torch.Tensor]]:
        words, following = text.samples(of, at)
        return {"words": [torch.from_numpy(words)], "following": [torch.from_numpy(following)]}

    def run(session: Any, n_steps: int, names: Any, n_workers: int, worker: int, n_replicas: int) -> float:
        order = torch.Generator().manual_seed(2)

        def batch(_: int) -> dict[str, list[torch.Tensor]]:
            at = torch.randint(len(text.train) - args.context, (args.batch_size,), generator=order)
            return feed(text.train, at.numpy()[worker::n_workers])

        assert n_replicas == 1 and names["loss"] == ["replica_0/loss"]
        train(session, n_steps, batch, "loss")
        n = len(text.unseen) - args.context
        at = torch.arange(n)[worker::n_workers]
        total = sum(
            session.run("sum", feed_dict=feed(text.unseen, some.numpy()))[0].double() for some in at.split(1024)
        )
        return hvd.allreduce(torch.as_tensor(total, dtype=torch.float64), op=hvd.Sum).item() / n

    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = Words()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    loss: float = parallax.parallel_run((model, optimizer), run, args.resource_info, args.steps, parallax_config=config)
    return loss


def with_graph(args: argparse.Namespace, text: Text, config: parallax.Config) -> float:
    """Trains a static program; gives the loss on some unseen text."""
    from phalanx import graph

    words = graph.data("words", [None, args.context], dtype="int64")
    following = graph.data("following", [None, 1], dtype="int64")
    x = graph.layers.embedding(words, size=[text.n_words, args.width], is_sparse=True, name="table")
    x = graph.layers.fc(x, args.width, act="tanh")
    scores = graph.layers.fc(x, text.n_words)
    loss = graph.layers.mean(graph.layers.softmax_with_cross_entropy(scores, following))
    program = graph.default_main_program()
    test = program.clone(for_test=True)
    graph.optimizer.Adagrad(args.lr).minimize(loss)
    order = np.random.default_rng(2)

    def fed(of: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        seen, next_word = text.samples(of, at)
        return {"words": seen, "following": next_word[:, None]}

    check = fed(text.unseen, order.integers(len(text.unseen) - args.context, size=1024))

    def run(session: Any, n_steps: int, names: Any, n_workers: int, worker: int, n_replicas: int) -> None:
        def batch(_: int) -> dict[str, list[np.ndarray]]:
            at = order.integers(len(text.train) - args.context, size=args.batch_size)[worker::n_workers]
            return {name: [value] for name, value in fed(text.train, at).items()}

        assert n_replicas == 1 and len(names[loss.name]) == 1
        train(session, n_steps, batch, loss.name)

    parallax.parallel_run(program, run, args.resource_info, args.steps, parallax_config=config)
    # The session is closed, and this worker has the whole table again.
    return graph.Executor().run(test, feed=check, fetch_list=[loss.name])[0].item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a language model whose table is on servers.")
    parser.add_argument("--graph", action="store_true", help="a static program instead of a model of torch")
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

    text = Text(args)
    config = parallax.Config()
    config.run_option = args.run_option
    # As the other examples: each worker has its part of one batch.
    config.average_sparse = True
    if args.ckpt_dir is not None:
        config.ckpt_config = parallax.CheckPointConfig(args.ckpt_dir, save_ckpt_steps=100)
    began = time.monotonic()
    loss = (with_graph if args.graph else with_torch)(args, text, config)
    if phalanx.rank() == 0:
        seconds = time.monotonic() - began
        print(
            f"perplexity {math.exp(loss):.0f} of {text.n_words} words on unseen text; "
            f"{phalanx.size()} workers, {seconds:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
