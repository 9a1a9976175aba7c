"""Ranks that train programs together are alike, or all of them are told that they are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import batch, classifier
from ranks import run_ranks

import phalanx
import phalanx.graph as fluid
from phalanx.exceptions import MismatchError

SAMPLES = 8


def share(step: int) -> dict[str, Any]:
    whole = batch(SAMPLES * phalanx.size(), seed=step)
    return {name: np.array_split(value, phalanx.size())[phalanx.rank()] for name, value in whole.items()}


def program(momentum: float = 0.9) -> tuple[fluid.Program, fluid.Program, Any]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        _, loss = classifier()
        fluid.optimizer.Momentum(0.2, momentum).minimize(loss)
    return main, startup, loss


class One:
    """One of several equal programs, with a scope of its own."""

    def __init__(self, seed: int, compiled: bool) -> None:
        main, startup, self.loss = program()
        self.scope = fluid.Scope(seed=seed)
        startup.random_seed = seed
        fluid.Executor().run(startup, scope=self.scope)
        self.names = [p.name for p in main.all_parameters()]
        self.compiled = fluid.CompiledProgram(main).with_data_parallel(self.loss.name, places=1) if compiled else None
        if not compiled:
            self.exe = fluid.ParallelExecutor(loss_name=self.loss.name, main_program=main, scope=self.scope, devices=1)

    def run(self, step: int = 0) -> None:
        if self.compiled is not None:
            fluid.Executor().run(self.compiled, feed=share(step), fetch_list=[self.loss], scope=self.scope)
        else:
            self.exe.run([self.loss], feed=share(step))

    def bits(self) -> list[bytes]:
        return [self.scope[name].tobytes() for name in self.names]


def in_another_order(compiled: bool) -> tuple[str, list[list[bytes]]]:
    both = [One(1, compiled), One(2, compiled)]
    with pytest.raises(MismatchError) as told:
        both[phalanx.rank()].run()
    for i in (1, 0, 0, 1):
        both[i].run()
    return str(told.value), [one.bits() for one in both]


@pytest.mark.parametrize("compiled", [False, True])
def test_equal_programs_in_another_order_are_told_and_then_run_in_the_right_one(compiled: bool) -> None:
    (first, bits), (second, others) = run_ranks(2, in_another_order, compiled)
    assert first == second
    assert "1 of equal programs" in first
    assert bits == others
    assert bits[0] != bits[1]


def with_another_momentum() -> str:
    main, startup, loss = program(0.9 - 0.1 * phalanx.rank())
    with fluid.scope_guard(fluid.Scope()):
        fluid.Executor().run(startup)
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, devices=1)
        with pytest.raises(MismatchError) as told:
            exe.run([loss], feed=share(0))
    return str(told.value)


def test_ranks_that_update_in_another_way_are_told() -> None:
    first, second = run_ranks(2, with_another_momentum)
    assert first == second
    assert "0.8" in first


def with_values(how: str) -> tuple[list[str], list[bytes]]:
    one = One(1, compiled=False)
    one.run()
    name, rank = one.names[0], phalanx.rank()
    if how == "written":
        one.scope[name] = one.scope[name] + rank
    elif (how, rank) == ("loaded by rank 0", 0):
        one.scope[name] = one.scope[name] * 2
    elif (how, rank) == ("trained alone by rank 1", 1):
        main = one.exe._program
        with pytest.warns(UserWarning, match="alone"):
            fluid.Executor().run(main, feed=share(1), fetch_list=[one.loss], scope=one.scope)
    told = []
    for _ in range(2):
        with pytest.raises(fluid.errors.GraphError) as error:
            one.run(1)
        told.append(str(error.value))
    for each in one.names:
        one.scope[each] = np.zeros_like(one.scope[each])
    if how == "trained alone by rank 1":
        # Its velocities and its count of steps are others, too.
        with pytest.raises(fluid.errors.GraphError):
            one.run(1)
    else:
        one.run(1)
    return told, one.bits()


@pytest.mark.parametrize("how", ["written", "loaded by rank 0", "trained alone by rank 1"])
def test_values_that_only_some_ranks_have_are_refused_with_their_names(how: str) -> None:
    (first, bits), (second, others) = run_ranks(2, with_values, how)
    assert first == second
    assert all("differs between process 0 and process 1" in text for text in first)
    assert bits == others


def with_statistics(how: str) -> str:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.data("x", [None, 4])
        normal = fluid.layers.batch_norm(fluid.layers.fc(x, 4), moving_mean_name="mm", moving_variance_name="mv")
        loss = fluid.layers.mean(fluid.layers.square(normal - 1.0))
        forward = main.clone()
        fluid.optimizer.SGD(0.1).minimize(loss)
    scope = fluid.Scope()
    fluid.Executor().run(startup, scope=scope)
    build = fluid.BuildStrategy()
    build.sync_batch_norm = True
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, build_strategy=build, scope=scope, devices=1)
    feed = {"x": np.random.default_rng(phalanx.rank()).normal(size=[4, 4]).astype("float32")}
    exe.run([loss], feed=feed)
    if phalanx.rank() == 0 and how == "written":
        scope["mm"] = np.full([4], 3.0, "float32")
    elif phalanx.rank() == 0:
        fluid.Executor().run(forward, feed=feed, fetch_list=[loss], scope=scope)
    with pytest.raises(fluid.errors.GraphError) as error:
        exe.run([loss], feed=feed)
    return str(error.value)


@pytest.mark.parametrize("how", ["written", "run forward"])
def test_statistics_over_all_samples_that_only_one_rank_changes_are_refused(how: str) -> None:
    first, second = run_ranks(2, with_statistics, how)
    assert first == second
    assert "`mm` differs" in first
