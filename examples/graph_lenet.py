"""Handwritten digits with LeNet, written for one device and trained on several, with a test after every epoch.

python examples/graph_lenet.py --devices 2
phalanx run -np 2 python examples/graph_lenet.py --devices 1

Both learn the same, to the bit: the number of the parameters at the end says so.
Writes loss and accuracy as a picture, `graph_lenet.svg`.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
import zlib
from pathlib import Path

import numpy as np

import phalanx
import phalanx.graph as fluid

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
    x = fluid.layers.conv2d(image, num_filters=20, filter_size=5, act="relu")
    x = fluid.layers.pool2d(x, pool_size=2, pool_stride=2)
    x = fluid.layers.conv2d(x, num_filters=50, filter_size=5, act="relu")
    x = fluid.layers.pool2d(x, pool_size=2, pool_stride=2)
    x = fluid.layers.fc(x, 128, act="relu")
    x = fluid.layers.dropout(x, 0.3, dropout_implementation="upscale_in_train")
    scores = fluid.layers.fc(x, 10)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))
    return loss, fluid.layers.accuracy(scores, label)


def progress(epoch: int, step: int, n_steps: int, loss: float) -> None:
    """A bar, where somebody watches."""
    if sys.stderr.isatty():
        bar = "#" * (30 * (step + 1) // n_steps)
        end = "\n" if step + 1 == n_steps else ""
        print(f"\repoch {epoch} [{bar:<30}] loss {loss:.3f}", end=end, file=sys.stderr, flush=True)


def line(values: list[float], top: float, colour: str) -> str:
    """A curve from left to right."""
    step = 560 / max(len(values) - 1, 1)
    points = " ".join(f"{60 + i * step:.1f},{260 - 220 * min(v, top) / top:.1f}" for i, v in enumerate(values))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'


def picture(losses: list[float], accuracies: list[float]) -> str:
    """Both curves as an image."""
    marks = [
        f'<text x="50" y="{264 - 220 * part:.0f}" text-anchor="end">{part * 100:.0f} %</text>'
        f'<path d="M60 {260 - 220 * part:.0f}h560" stroke="#ddd"/>'
        for part in (0, 0.25, 0.5, 0.75, 1)
    ]
    top = max(losses)
    said = f"loss of training (top {top:.2f})", f"accuracy on unseen digits, {accuracies[-1] * 100:.1f} % in the end"
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="320" font-family="sans-serif" font-size="12">',
            '<rect width="640" height="320" fill="white"/>',
            *marks,
            line(losses, top, "#c33"),
            line(accuracies, 1.0, "#36c"),
            f'<text x="60" y="290" fill="#c33">{said[0]}</text><text x="60" y="308" fill="#36c">{said[1]}</text>',
            "</svg>\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains LeNet to read digits.")
    parser.add_argument("--devices", type=int, help="replicas; CPU_NUM or one for each core if not given")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=50, help="of all devices together")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--reduce", action="store_true", help="devices share their parameters")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--plot", type=Path, default=Path("graph_lenet.svg"))
    args = parser.parse_args()

    phalanx.init()
    rank, size = phalanx.rank(), phalanx.size()
    loss, accuracy = lenet()
    main_program = fluid.default_main_program()
    test_program = main_program.clone(for_test=True)
    images, labels = digits("train", args.data)
    test = dict(zip(("image", "label"), digits("t10k", args.data), strict=True))
    n_steps = len(images) // args.batch_size
    rate = fluid.layers.smooth_cosine_decay(args.lr, args.epochs * n_steps)
    fluid.optimizer.Adam(rate).minimize(loss)
    fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())

    build = fluid.BuildStrategy()
    build.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.BySamples
    if args.reduce:
        build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    train_exe = fluid.ParallelExecutor(
        use_cuda=False, loss_name=loss.name, main_program=main_program, build_strategy=build, devices=args.devices
    )
    test_exe = None
    mean = [fluid.Fetch(loss, "mean")]
    losses, accuracies = [], []
    random = np.random.default_rng(1)
    began = time.monotonic()
    for epoch in range(1, args.epochs + 1):
        order, sum_of_losses = random.permutation(len(images)), 0.0
        for step in range(n_steps):
            at = order[step * args.batch_size : (step + 1) * args.batch_size]
            whole = {"image": moved(images[at], random), "label": labels[at]}
            share = {name: np.array_split(value, size)[rank] for name, value in whole.items()}
            now = train_exe.run(mean, feed=share)[0].item()
            sum_of_losses += now
            if rank == 0:
                progress(epoch, step, n_steps, now)
        if test_exe is None:
            test_exe = fluid.ParallelExecutor(
                use_cuda=False, main_program=test_program, share_vars_from=train_exe, devices=args.devices
            )
        seen = test_exe.run([fluid.Fetch(accuracy, "mean")], feed=test)[0].item()
        losses.append(sum_of_losses / n_steps)
        accuracies.append(seen)
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f}, test accuracy {seen * 100:.1f} %", flush=True)
    seconds = time.monotonic() - began
    if rank != 0:
        return
    args.plot.write_text(picture(losses, accuracies))
    n_seen = args.epochs * n_steps * args.batch_size
    scope = fluid.global_scope()
    digest = zlib.crc32(b"".join(scope[p.name].tobytes() for p in main_program.all_parameters()))
    print(f"all parameters together: {digest:08x}")
    print(
        f"accuracy {accuracies[-1] * 100:.1f} % on {len(test['label'])} unseen digits; "
        f"{size} ranks of {train_exe.device_count} devices, "
        f"{seconds:.1f} s, {n_seen / seconds:.0f} digits/s with testing; {args.plot} shows it"
    )


if __name__ == "__main__":
    main()
