"""Handwritten digits with JAX and optax on any number of ranks.

phalanx run -np 2 python examples/jax_mnist.py
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import phalanx.jax as hvd

DATA = Path(__file__).resolve().parent.parent / "data"


def digits(part: str) -> tuple[Any, Any]:
    """Images as rows of pixels, and their labels."""
    with gzip.open(DATA / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 784).astype("float32") / 255
    with gzip.open(DATA / f"{part}-labels-idx1-ubyte.gz") as file:
        return pixels, np.frombuffer(file.read()[8:], np.uint8).astype("int32")


def scores(parameters: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ parameters["w1"] + parameters["b1"])
    return hidden @ parameters["w2"] + parameters["b2"]


def loss_of(parameters: Any, x: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(scores(parameters, x), y).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="steps of 64 images on all ranks together")
    steps = parser.parse_args().steps
    hvd.init()
    images, labels = digits("train")
    first, second = jax.random.split(jax.random.key(hvd.rank()))
    parameters: Any = {
        "w1": jax.random.normal(first, (784, 64)) * 0.05,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(second, (64, 10)) * 0.1,
        "b2": jnp.zeros(10),
    }
    parameters = hvd.broadcast(parameters, root_rank=0)
    optimizer = optax.adam(0.003)
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        loss, gradients = hvd.value_and_grad(loss_of)(parameters, x, y)
        changes, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, changes), state, loss

    batch = 64 // hvd.size()
    for i in range(steps):
        at = (i * 64 + hvd.rank() * batch) % (len(images) - 64)
        with hvd.errors():
            parameters, state, loss = step(parameters, state, images[at : at + batch], labels[at : at + batch])
        if hvd.rank() == 0 and i % 100 == 99:
            print(f"step {i + 1}: loss {float(loss):.3f}")
    images, labels = digits("t10k")
    if hvd.rank() == 0:
        right = float(jnp.mean(jnp.argmax(scores(parameters, images), 1) == labels))
        print(f"accuracy {right:.3f} on {len(labels)} images that it has not seen")


if __name__ == "__main__":
    main()
