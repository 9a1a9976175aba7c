"""The King James text as samples, and a network that guesses the next letter: what the examples about sessions have in common."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

import phalanx.graph as fluid

TEXT = Path(__file__).resolve().parent.parent / "data" / "kjv.txt.gz"
#: A blank is letter 0.
LETTERS = " abcdefghijklmnopqrstuvwxyz"
N_SEEN = 6


def to_sample(verse: str) -> tuple[np.ndarray, np.ndarray]:
    """A few letters of a verse, and the one after them; which ones depends on the verse alone."""
    letters = [max(0, LETTERS.find(letter)) for letter in verse.lower().ljust(N_SEEN + 1)]
    at = zlib.crc32(verse.encode()) % (len(letters) - N_SEEN)
    return np.array(letters[at : at + N_SEEN]), np.array([letters[at + N_SEEN]])


def as_feed(batch: Any) -> dict[str, Any]:
    """A batch of samples for the network."""
    seen, following = batch
    return {"seen": seen, "following": following}


def create_graph() -> tuple[fluid.Variable, fluid.Variable]:
    """The mean loss, and the part of the letters that is guessed rightly."""
    seen = fluid.layers.data("seen", [N_SEEN], dtype="int64")
    following = fluid.layers.data("following", [1], dtype="int64")
    x = fluid.layers.embedding(seen, size=[len(LETTERS), 16])
    x = fluid.layers.fc(x, 64, act="tanh")
    scores = fluid.layers.fc(x, len(LETTERS))
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, following))
    return loss, fluid.layers.accuracy(scores, following)
