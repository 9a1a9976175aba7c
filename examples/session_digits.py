"""Handwritten digits with a session: resumes by itself, saves, and is evaluated beside the training.

phalanx run -np 2 --evaluator python examples/session_digits.py
python examples/session_digits.py --evaluate

The evaluator reads unseen digits with each checkpoint. Stop the training with Ctrl-C or SIGTERM and start it again: it goes on where it
was. A training that has made all steps makes no more. `crates/phalanx-train/examples/session_digits.rs` is the same in Rust.
"""

from __future__ import annotations

import argparse
import gzip
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import phalanx
import phalanx.graph as fluid
from phalanx.data import Sampler
from phalanx.distributed import (
    CheckpointSaverHook,
    DistributedSession,
    LoggingTensorHook,
    NanTensorHook,
    Scaffold,
    StopAtStepHook,
    TaskSpec,
    evaluate_continuously,
)

DATA = Path(__file__).resolve().parent.parent / "data"


def digits(part: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images, normalized, and their labels."""
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16)
    with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    images = (pixels.astype(np.float32).reshape(-1, 1, 28, 28) / 255 - 0.1307) / 0.3081
    return images, labels.astype(np.int64).reshape(-1, 1)


def moved(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Each image a pixel or two aside, so that few digits teach more."""
    padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)), constant_values=images.min())
    views = np.lib.stride_tricks.sliding_window_view(padded, (28, 28), axis=(2, 3))
    down, right = random.integers(5, size=(2, len(images)))
    return np.ascontiguousarray(views[np.arange(len(images)), :, down, right])


def lenet() -> tuple[fluid.Variable, fluid.Variable]:
    """The mean loss, and the part of the digits that is read rightly."""
    image = fluid.layers.data("image", [1, 28, 28])
    label = fluid.layers.data("label", [1], dtype="int64")
    x = fluid.layers.conv2d(image, num_filters=16, filter_size=5, act="relu")
    x = fluid.layers.pool2d(x, pool_size=2, pool_stride=2)
    x = fluid.layers.conv2d(x, num_filters=32, filter_size=5, act="relu")
    x = fluid.layers.pool2d(x, pool_size=2, pool_stride=2)
    x = fluid.layers.fc(x, 128, act="relu")
    x = fluid.layers.dropout(x, 0.3, dropout_implementation="upscale_in_train")
    scores = fluid.layers.fc(x, 10)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))
    return loss, fluid.layers.accuracy(scores, label)


def evaluate(args: argparse.Namespace, program: fluid.Program, accuracy: fluid.Variable) -> None:
    """Reads the unseen digits with each checkpoint, until the training has ended."""
    images, labels = digits("t10k", args.data)
    exe = fluid.Executor(fluid.CPUPlace())

    def measure(checkpoint: Any) -> dict[str, float]:
        checkpoint.load(program)
        (right,) = exe.run(program, feed={"image": images, "label": labels}, fetch_list=[accuracy])
        print(f"step {checkpoint.step}: accuracy {right.item():.1%} on {len(labels)} unseen digits", flush=True)
        return {"accuracy": right.item()}

    evaluate_continuously(args.checkpoints, measure, newest_only=False, output_path=args.checkpoints / "evaluation")


def train(args: argparse.Namespace, loss: fluid.Variable) -> None:
    """Trains until the last step, wherever it begins."""
    phalanx.init()
    images, labels = digits("train", args.data)
    sampler = Sampler(len(images), seed=1)
    share = args.batch_size // phalanx.size()
    # All of them stay, so that an evaluator that is slower than the training misses none.
    keep = max(1, -(-args.steps // args.save_steps))
    hooks = [
        StopAtStepHook(last_step=args.steps),
        NanTensorHook(loss),
        LoggingTensorHook({"loss": loss}, every_n_iter=50),
        CheckpointSaverHook(args.checkpoints, save_steps=args.save_steps, keep=keep),
    ]
    scaffold = Scaffold(loss=loss, devices=1, state=[sampler])
    with DistributedSession(checkpoint_dir=args.checkpoints, scaffold=scaffold, hooks=hooks) as session:
        indices = iter(sampler)
        while not session.should_stop():
            batch = list(islice(indices, share))
            if len(batch) < share:
                # The rest of an epoch that is no whole batch is left out.
                sampler.set_epoch(sampler.epoch + 1)
                indices = iter(sampler)
                continue
            # Random numbers of a step do not depend on where the session began.
            random = np.random.default_rng([session.global_step, phalanx.rank()])
            session.run([], feed_dict={"image": moved(images[batch], random), "label": labels[batch]})
    if session.is_chief and session.stopped is not None:
        print(f"step {session.global_step}: stopped by {session.stopped.by}: {session.stopped.why}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a network to read digits, with a session.")
    parser.add_argument("--steps", type=int, default=1000, help="of the whole training")
    parser.add_argument("--save-steps", type=int, default=200, help="from one checkpoint to the next")
    parser.add_argument("--batch-size", type=int, default=32, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--checkpoints", type=Path, default=Path("session_digits"))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument(
        "--evaluate", action="store_true", help="the checkpoints that are there and come, instead of training"
    )
    args = parser.parse_args()

    loss, accuracy = lenet()
    for_test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adam(fluid.layers.smooth_cosine_decay(args.lr, args.steps)).minimize(loss)
    task = TaskSpec()
    if args.evaluate or (task is not None and task.is_evaluator()):
        evaluate(args, for_test, accuracy)
    else:
        train(args, loss)


if __name__ == "__main__":
    main()
