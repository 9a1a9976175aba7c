"""Handwritten digits with TensorFlow on any number of ranks: a loop of one's own around ``tf.GradientTape``.

phalanx run -np 2 python examples/tensorflow_mnist.py
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import phalanx.tensorflow as hvd

DATA = Path(__file__).resolve().parent.parent / "data"


def digits(part: str) -> tuple[Any, Any]:
    """Images as rows of pixels, and their labels."""
    with gzip.open(DATA / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 784).astype("float32") / 255
    with gzip.open(DATA / f"{part}-labels-idx1-ubyte.gz") as file:
        return pixels, np.frombuffer(file.read()[8:], np.uint8).astype("int64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="steps of 64 images on all ranks together")
    steps = parser.parse_args().steps
    hvd.init()
    images, labels = digits("train")
    tf.random.set_seed(hvd.rank())
    w1, b1 = tf.Variable(tf.random.normal([784, 64]) * 0.05), tf.Variable(tf.zeros([64]))
    w2, b2 = tf.Variable(tf.random.normal([64, 10]) * 0.1), tf.Variable(tf.zeros([10]))
    variables = [w1, b1, w2, b2]
    hvd.broadcast_variables(variables, root_rank=0)

    def scores(x: Any) -> Any:
        return tf.nn.relu(x @ w1 + b1) @ w2 + b2

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores(x)))
        tape = hvd.DistributedGradientTape(tape)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.5 * gradient)
        return hvd.allreduce(loss)

    batch = 64 // hvd.size()
    for i in range(steps):
        at = (i * 64 + hvd.rank() * batch) % (len(images) - 64)
        loss = step(tf.constant(images[at : at + batch]), tf.constant(labels[at : at + batch]))
        if hvd.rank() == 0 and i % 100 == 99:
            print(f"step {i + 1}: loss {float(loss):.3f}")
    images, labels = digits("t10k")
    if hvd.rank() == 0:
        right = np.mean(np.argmax(scores(tf.constant(images)).numpy(), 1) == labels)
        print(f"accuracy {right:.3f} on {len(labels)} images that it has not seen")


if __name__ == "__main__":
    main()
