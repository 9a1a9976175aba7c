"""A small regression for tests of trainers, and what one process learns of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

from phalanx import data

#: Trains on 23 samples: a folder, the last step, epochs, and whether rates are scaled and samples shuffled. Gives the
#: steps at the beginning and at the end, and the weights.
Resumed = Callable[[str, int, int, bool], tuple[int, int, list[float]]]

#: What all three weights begin with.
WEIGHT = 0.25


def samples(n: int) -> data.Dataset[Any]:
    """Pairs of three numbers and one."""
    x = np.arange(n * 3, dtype=np.float32).reshape(n, 3) / max(n * 3, 1)
    return data.from_list([(row, row.sum() * 2) for row in x])


def serial(batches: list[list[Any]], rates: list[float], momentum: float = 0.0) -> list[float]:
    """The weights after these batches, one step with each."""
    weight, velocity = np.full(3, WEIGHT), np.zeros(3)
    for batch, rate in zip(batches, rates, strict=True):
        x, y = (np.stack(part).astype("float64") for part in zip(*batch, strict=True))
        velocity = momentum * velocity + 2 * x.T @ (x @ weight - y) / len(y)
        weight = weight - rate * velocity
    return weight.tolist()


def joint(n: int, size: int, epochs: int) -> list[list[Any]]:
    """All samples in batches of this size, epoch after epoch."""
    whole = list(samples(n))
    return [whole[at : at + size] for _ in range(epochs) for at in range(0, n, size)]


def error(weight: list[float], n: int) -> float:
    """The mean square of the errors of all samples."""
    return float(np.mean([(float(x @ np.asarray(weight)) - y) ** 2 for x, y in samples(n)]))


def check_resumes(n: int, resumed: Resumed, folder: Path) -> None:
    """A training in two parts learns the bits of one in one part."""
    whole = run_ranks(n, resumed, str(folder / "whole"), 9, 9, True)
    run_ranks(n, resumed, str(folder / "parts"), 4, 9, True)
    parts = run_ranks(n, resumed, str(folder / "parts"), 9, 9, True)
    assert [one[:2] for one in parts] == [(4, 9)] * n
    assert [one[2] for one in parts] == [one[2] for one in whole]


def check_resumes_elsewhere(resumed: Resumed, folder: Path, momentum: float) -> None:
    """Two ranks make four steps, three ranks the rest of two epochs; then there is no more to do."""
    run_ranks(2, resumed, str(folder), 4, 2, False)
    ends = run_ranks(3, resumed, str(folder), 99, 2, False)
    first = list(samples(23))
    batches = [first[at : at + 4] for at in range(0, 16, 4)] + [first[16:22], first[22:]] + joint(23, 6, 1)
    assert ends[0][:2] == (4, len(batches))
    assert ends[0][2] == pytest.approx(serial(batches, [0.1] * len(batches), momentum), rel=1e-4)
    assert run_ranks(3, resumed, str(folder), 99, 2, False) == [(len(batches), *end[1:]) for end in ends]
