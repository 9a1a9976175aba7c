"""Programs of their own for each test of phalanx.graph, and an end to tests that hang."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import phalanx.graph as fluid

DEADLINE_S = 120


class World(NamedTuple):
    main: fluid.Program
    startup: fluid.Program
    scope: fluid.Scope


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """New programs and a new scope; a test that hangs ends with the stacks of all threads."""
    monkeypatch.delenv("CPU_NUM", raising=False)
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    made = World(fluid.Program(), fluid.Program(), fluid.Scope(seed=7))
    with fluid.program_guard(made.main, made.startup), fluid.scope_guard(made.scope), fluid.unique_name.guard():
        yield made
    faulthandler.cancel_dump_traceback_later()


def classifier(*, act: str = "relu", width: int = 16) -> tuple[fluid.Variable, fluid.Variable]:
    """Scores and the mean loss of a small network on eight numbers and a class."""
    x = fluid.layers.data("x", [8])
    label = fluid.layers.data("label", [1], dtype="int64")
    hidden = fluid.layers.fc(x, width, act=act)
    scores = fluid.layers.fc(hidden, 4)
    return scores, fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))


def batch(n: int, seed: int = 0) -> dict[str, Any]:
    """What the classifier is fed."""
    random = np.random.default_rng(seed)
    x = random.standard_normal([n, 8]).astype("float32")
    return {"x": x, "label": np.argmax(x[:, :4], axis=1).astype("int64").reshape(n, 1)}


def begin(world: World) -> None:
    """Runs the startup program."""
    fluid.Executor(fluid.CPUPlace()).run(world.startup)


def parameters(world: World) -> dict[str, bytes]:
    """All parameters, bit by bit."""
    return {p.name: world.scope[p.name].tobytes() for p in world.main.all_parameters()}


def doubled() -> tuple[fluid.Variable, fluid.Variable]:
    x = fluid.data("x", [None, 1])
    return x, x * 2.0


def numbers(n: int, rows: int = 1) -> Callable[[], Iterator[list[Any]]]:
    """Batches 0, 1, 2, … of this number of rows."""
    return lambda: ([np.full([rows, 1], i, "float32")] for i in range(n))


def loader(x: fluid.Variable, **given: Any) -> fluid.io.GeneratorLoader:
    return fluid.io.DataLoader.from_generator(**{"feed_list": [x], "capacity": 4, **given})
