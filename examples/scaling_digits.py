"""How many steps a trainer needs for the same accuracy, with one worker and with four.

python examples/scaling_digits.py
python examples/scaling_digits.py --kind torch --seeds 5

Each worker has a batch of its own, so four workers see four times the samples in a step. The learning rate that is scaled by the number of
workers makes use of them: the training needs about a quarter of the steps. With the rate of one worker it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import phalanx
from phalanx import data

DATA = Path(__file__).resolve().parent.parent / "data"
#: Workers, and whether the rate is scaled by their number.
RUNS = [(1, True), (4, True), (4, False)]
WIDTH = 64


def digits(part: str, folder: Path) -> data.Dataset[Any]:
    """Images as vectors, normalized, and their labels."""
    both = list(data.from_idx(folder / f"{part}-images-idx3-ubyte.gz", folder / f"{part}-labels-idx1-ubyte.gz"))
    return data.from_list(
        [((image.ravel() / 255 - 0.1307).astype("float32") / 0.3081, np.int64(n)) for image, n in both]
    )


def graph_trainer(options: dict[str, Any], rate: float, seed: int) -> Any:
    """An MLP as a static program."""
    import phalanx.graph as fluid

    def scores() -> tuple[fluid.Variable, fluid.Variable]:
        image, label = fluid.data("image", [None, 784]), fluid.data("label", [None, 1], "int64")
        return fluid.layers.fc(fluid.layers.fc(image, WIDTH, act="relu"), 10), label

    def training() -> tuple[fluid.Variable, fluid.Variable]:
        fluid.default_startup_program().random_seed = seed
        out, label = scores()
        return out, fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(out, label))

    def validation() -> tuple[fluid.Variable, dict[str, fluid.Variable]]:
        out, label = scores()
        return out, {"accuracy": fluid.layers.accuracy(out, label)}

    return fluid.Trainer(
        build_training_func=training,
        optimizer=fluid.optimizer.SGD,
        optimizer_args={"learning_rate": rate},
        build_validation_func=validation,
        **options,
    )


def torch_trainer(options: dict[str, Any], rate: float, seed: int) -> Any:
    """The same with torch."""
    import torch

    import phalanx.torch as hvd

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(784, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10))

    def loss(batch: Any) -> Any:
        images, labels = map(torch.as_tensor, batch)
        return torch.nn.functional.cross_entropy(model(images), labels)

    def accuracy(batch: Any) -> dict[str, Any]:
        images, labels = map(torch.as_tensor, batch)
        return {"accuracy": (model(images).argmax(1) == labels).float().mean()}

    return hvd.Trainer(
        build_training_func=lambda: (model, loss),
        optimizer=torch.optim.SGD,
        optimizer_args={"lr": rate},
        build_validation_func=accuracy,
        **options,
    )


KINDS: dict[str, Callable[[dict[str, Any], float, int], Any]] = {"graph": graph_trainer, "torch": torch_trainer}


def work(args: argparse.Namespace) -> None:
    """Trains on this rank; rank 0 prints the step at which the accuracy was reached, and the one at the end."""
    phalanx.init()
    train, unseen = digits("train", args.data), digits("t10k", args.data)
    found = []
    for seed in range(1, args.seeds + 1):
        options: dict[str, Any] = {
            "training_dataset": train,
            "validation_dataset": unseen,
            "batch_size": args.batch_size,
            "num_epochs": args.epochs,
            "scaling_learning_rate": not args.unscaled,
            "warmup_steps": args.warmup // phalanx.size(),
            "shuffle_buffer": 4000,
            "shuffle_seed": seed,
            "log_step_size": None,
        }
        trainer = KINDS[args.kind](options, args.lr, seed)
        # All runs look equally often, after the same numbers of samples.
        every = max(args.every // phalanx.size(), 1)
        reached = None
        with trainer.session:
            while trainer.train_on_batch():
                if (
                    trainer.global_step % every == 0
                    and trainer.validate()["accuracy"] >= args.accuracy
                    and reached is None
                ):
                    reached = trainer.global_step
            found.append((reached, trainer.global_step, trainer.validate()["accuracy"]))
    if phalanx.rank() == 0:
        print(json.dumps(found), flush=True)


def table(args: argparse.Namespace) -> None:
    """Runs all of it and prints a row each: means over the seeds."""
    print(f"{args.kind}: steps to {args.accuracy:.0%} of 1,000 unseen digits, means of {args.seeds} seeds")
    print(
        "| workers | samples in a step | learning rate | steps to it | of one worker's | steps in all | accuracy at the end |"
    )
    print("|---|---|---|---|---|---|---|")
    first = None
    for workers, scaled in RUNS:
        words = [sys.executable, "-m", "phalanx", "run", "-np", str(workers), "--", sys.executable, __file__, "--work"]
        words += sys.argv[1:]
        done = subprocess.run(words + ([] if scaled else ["--unscaled"]), stdout=subprocess.PIPE, text=True, check=True)
        line = next(line for line in done.stdout.splitlines() if "[[" in line)
        reached, steps, accuracy = zip(*json.loads(line[line.index("[[") :]), strict=True)
        rate = args.lr * (workers if scaled else 1)
        mean = None if None in reached else float(np.mean(reached))
        first = first or mean
        part = "-" if mean is None or first is None else f"{mean / first:.2f}"
        said = "not reached" if mean is None else f"{mean:.0f}"
        all_of_it = f"{steps[0]} | {np.mean(accuracy):.1%} |"
        print(f"| {workers} | {workers * args.batch_size} | {rate:g} | {said} | {part} | {all_of_it}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares one worker with four that scale their learning rate.")
    parser.add_argument("--kind", choices=sorted(KINDS), default="graph")
    parser.add_argument("--accuracy", type=float, default=0.9, help="that is to be reached")
    parser.add_argument("--batch-size", type=int, default=16, help="of each worker")
    parser.add_argument("--lr", type=float, default=0.02, help="of one worker")
    parser.add_argument("--warmup", type=int, default=20, help="steps of one worker")
    parser.add_argument("--every", type=int, default=20, help="steps of one worker between two looks")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--unscaled", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args)
    elif "PHALANX_SIZE" in os.environ:
        sys.exit("start it without phalanx run: it starts one worker, and then four")
    else:
        table(args)


if __name__ == "__main__":
    main()
