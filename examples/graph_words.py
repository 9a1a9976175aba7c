"""A language model with a sparse embedding: guesses a word from the few before it, on several devices.

python examples/graph_words.py --devices 2
phalanx run -np 2 python examples/graph_words.py --devices 1

Only rows of the table whose words were seen have gradients, are added up over devices, and are updated.
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

import numpy as np

import phalanx
import phalanx.graph as fluid

DATA = Path(__file__).resolve().parent.parent / "data" / "kjv.txt.gz"
RARE = 0


def read(path: Path, n_words: int) -> tuple[np.ndarray, list[str]]:
    """The text as numbers of its most frequent words; all others are one word."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        words = re.findall(r"[a-z']+", file.read().lower())
    names = ["..."] + [word for word, _ in Counter(words).most_common(n_words - 1)]
    number = {word: i for i, word in enumerate(names)}
    return np.array([number.get(word, RARE) for word in words]), names


def model(n_words: int, context: int, width: int, sparse: bool) -> tuple[fluid.Variable, fluid.Variable]:
    """The probabilities of the next word, and the mean loss."""
    words = fluid.layers.data("words", [context], dtype="int64")
    following = fluid.layers.data("following", [1], dtype="int64")
    x = fluid.layers.embedding(words, size=[n_words, width], is_sparse=sparse, name="table")
    x = fluid.layers.fc(x, width, act="tanh")
    scores = fluid.layers.fc(x, n_words)
    losses, chances = fluid.layers.softmax_with_cross_entropy(scores, following, return_softmax=True)
    return chances, fluid.layers.mean(losses)


def progress(step: int, n_steps: int, loss: float, perplexity: float) -> None:
    """A bar where somebody watches, a line now and then elsewhere."""
    said = f"loss {loss:.3f}, perplexity on unseen text {perplexity:.0f}"
    if sys.stderr.isatty():
        bar = "#" * (30 * step // n_steps)
        print(f"\r[{bar:<30}] {said}", end="\n" if step == n_steps else "", file=sys.stderr, flush=True)
    elif step % 100 == 0 or step == n_steps:
        print(f"step {step}: {said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a language model with a sparse embedding.")
    parser.add_argument("--devices", type=int, help="replicas; CPU_NUM or one for each core if not given")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=128, help="of all ranks and devices together")
    parser.add_argument("--words", type=int, default=4000, help="size of the vocabulary")
    parser.add_argument("--context", type=int, default=4, help="words that are seen")
    parser.add_argument("--width", type=int, default=48, help="of the embedding")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--dense", action="store_true", help="dense gradients; they learn the same")
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()

    phalanx.init()
    rank, size = phalanx.rank(), phalanx.size()
    if args.batch_size % size:
        sys.exit(f"--batch-size {args.batch_size} cannot be shared equally by {size} ranks")
    text, names = read(args.data, args.words)
    held_out = len(text) // 50
    train, unseen = text[:-held_out], text[-held_out:]
    windows = np.arange(args.context)

    def samples(of: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        return {"words": of[at[:, None] + windows], "following": of[at + args.context][:, None]}

    chances, loss = model(len(names), args.context, args.width, not args.dense)
    main_program = fluid.default_main_program()
    test_program = main_program.clone(for_test=True)
    fluid.optimizer.Adagrad(args.lr).minimize(loss)
    fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
    build = fluid.BuildStrategy()
    build.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.BySamples
    build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    train_exe = fluid.ParallelExecutor(
        loss_name=loss.name, main_program=main_program, build_strategy=build, devices=args.devices
    )
    random = np.random.default_rng(2)
    mean = [fluid.Fetch(loss, "mean")]
    check = samples(unseen, random.integers(len(unseen) - args.context, size=1024))
    test_exe = fluid.ParallelExecutor(main_program=test_program, share_vars_from=train_exe, devices=args.devices)
    perplexity = math.nan
    began = time.monotonic()
    for step in range(1, args.steps + 1):
        at = random.integers(len(train) - args.context, size=args.batch_size)[rank::size]
        now = train_exe.run(mean, feed=samples(train, at))[0].item()
        if step % 50 == 0 or step == args.steps:
            perplexity = math.exp(test_exe.run(mean, feed=check)[0].item())
        if rank == 0:
            progress(step, args.steps, now, perplexity)
    seconds = time.monotonic() - began
    if rank > 0:
        return

    number = {word: i for i, word in enumerate(names)}
    said = ["and", "god", "said", "unto"][-args.context :]
    for _ in range(8):
        words = np.array([[number[word] for word in said[-args.context :]]])
        feed = {"words": words, "following": np.zeros([1, 1], np.int64)}
        guess = test_exe.run([chances], feed=feed)[0][0]
        guess[RARE] = 0.0
        said.append(names[int(guess.argmax())])
    print(" ".join(said))
    print(
        f"perplexity {perplexity:.0f} of {len(names)} words on unseen text; "
        f"{size} ranks of {train_exe.device_count} devices, {seconds:.1f} s, "
        f"{args.steps * args.batch_size / seconds:.0f} words/s with testing"
    )


if __name__ == "__main__":
    main()
