"""``BuildStrategy.async_mode``: devices take batches one by one and wait for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, parameters, world

import phalanx.graph as fluid

__all__ = ["world"]


def strategies(iterations: int) -> dict[str, Any]:
    build, execution = fluid.BuildStrategy(), fluid.ExecutionStrategy()
    build.async_mode = True
    execution.num_iteration_per_run = iterations
    return {"build_strategy": build, "exec_strategy": execution}


def executor(world: World, devices: int, iterations: int) -> fluid.ParallelExecutor:
    _, loss = classifier()
    fluid.optimizer.Adam(0.01).minimize(loss)
    begin(world)
    return fluid.ParallelExecutor(
        loss_name=loss.name, main_program=world.main, devices=devices, **strategies(iterations)
    )


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_devices_learn_from_each_batch_once_and_runs_fall_with_devices(world: World, devices: int) -> None:
    exe = executor(world, devices, 10)
    assert exe.device_count == devices
    assert exe.effective["async_mode"] is True
    batches: Iterator[Any] = (batch(16, i) for i in range(405))
    losses: list[np.ndarray] = []
    while len(found := exe.run([exe._exe._loss], batches)[0]):
        losses.append(found)
    assert len(losses) == -(-405 // (10 * devices))
    every = np.concatenate(losses)
    assert len(every) == 405
    assert every[-20:].mean() < 0.6 * every[:20].mean()
    assert world.scope["@STEP@"].item() == 405


def test_one_device_learns_what_an_executor_does(world: World) -> None:
    exe = executor(world, 1, 6)
    start = {name: world.scope[name] for name in world.scope.names()}
    got = exe.run([exe._exe._loss], [batch(8, i) for i in range(6)])[0]
    learned = parameters(world)
    for name, value in start.items():
        world.scope[name] = value
    plain = fluid.Executor()
    wanted = [plain.run(world.main, batch(8, i), [exe._exe._loss])[0].item() for i in range(6)]
    assert got.tolist() == wanted
    assert parameters(world) == learned


def test_a_compiled_program_and_a_test_see_what_was_learned(world: World) -> None:
    _, loss = classifier()
    test = world.main.clone(for_test=True)
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    exe = fluid.Executor()
    compiled = fluid.CompiledProgram(world.main).with_data_parallel(loss.name, places=2, **strategies(20))
    before = exe.run(test, batch(64, 99), [loss])[0]
    assert len(exe.run(compiled, [batch(16, i) for i in range(40)], [loss])[0]) == 40
    assert exe.run(test, batch(64, 99), [loss])[0].item() < before.item()


def test_what_is_wrong_is_said_and_the_next_run_is_fine(world: World) -> None:
    exe = executor(world, 2, 4)
    loss, before = exe._exe._loss, parameters(world)
    wrong = batch(8)
    wrong["label"] = wrong["label"] + 99
    with pytest.raises(fluid.OpError, match="replica") as failed:
        exe.run([loss], [wrong, wrong])
    assert failed.value.replica in (0, 1)
    assert failed.value.site
    for bad in (None, batch(8), 7, "ab"):
        with pytest.raises(fluid.FeedTypeError):
            exe.run([loss], bad)
    with pytest.raises(fluid.FeedTypeError, match="batch 1"):
        exe.run([loss], [batch(8), 7])
    with pytest.raises(fluid.FeedError, match="9 batches"):
        exe.run([loss], [batch(8)] * 9)
    with pytest.raises(fluid.FetchError, match="only the loss"):
        exe.run(["fc_0.w_0"], [batch(8)])
    with pytest.raises(fluid.FetchError, match="unmerged"):
        exe.run([loss], [batch(8)], return_merged=False)
    with pytest.raises(fluid.StrategyError, match="async_mode"):
        exe.trace()
    assert parameters(world) == before
    with pytest.raises(RuntimeError, match="the disk"):
        exe.run([loss], failing())
    assert len(exe.run([loss], [batch(8)] * 5)[0]) == 5
    assert parameters(world) != before


def failing() -> Iterator[Any]:
    yield batch(8)
    raise RuntimeError("the disk is gone")


def test_conflicts_come_all_at_once(world: World) -> None:
    _, loss = classifier()
    with pytest.raises(fluid.StrategyError, match="loss"):
        fluid.ParallelExecutor(main_program=world.main, **strategies(1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    given = strategies(1)
    given["build_strategy"].sync_batch_norm = True
    given["build_strategy"].accumulate = 2
    with pytest.raises(fluid.StrategyError) as refused:
        fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, **given)
    assert "sync_batch_norm" in str(refused.value)
    assert "accumulate" in str(refused.value)
