"""Handwritten digits with Keras on any number of ranks: ``fit`` with three more lines.

phalanx run -np 2 python examples/keras_mnist.py
"""

from __future__ import annotations

import argparse

import keras
from tensorflow_mnist import digits

import phalanx.tensorflow.keras as hvd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--images", type=int, default=10000, help="the number of images for training")
    options = parser.parse_args()
    hvd.init()
    images, labels = digits("train")
    images, labels = images[: options.images], labels[: options.images]
    model = keras.Sequential(
        [
            keras.layers.Input((784,)),
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(8, 5, activation="relu"),
            keras.layers.MaxPooling2D(4),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    rate = 0.001 * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(rate))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=1),
    ]
    mine = slice(hvd.rank(), len(images) // hvd.size() * hvd.size(), hvd.size())
    verbose = 2 if hvd.rank() == 0 else 0
    model.fit(images[mine], labels[mine], 32, epochs=options.epochs, callbacks=callbacks, verbose=verbose)
    images, labels = digits("t10k")
    if hvd.rank() == 0:
        accuracy = model.evaluate(images, labels, verbose=0)[1]
        print(f"accuracy {accuracy:.3f} on {len(labels)} images that it has not seen")


if __name__ == "__main__":
    main()
