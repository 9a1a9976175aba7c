"""Compiled programs without data parallelism, and that what can be set is explained."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import World, batch, begin, classifier, parameters, world

import phalanx.graph as fluid
from phalanx.graph import strategy

__all__ = ["world"]


def test_a_program_that_is_only_compiled_learns_on_one_device(world: World) -> None:
    scores, loss = classifier()
    test = world.main.clone(for_test=True)
    _, pairs = fluid.optimizer.Adam(0.01).minimize(loss)
    begin(world)
    start = {name: world.scope[name] for name in world.scope.names()}
    exe, compiled = fluid.Executor(), fluid.CompiledProgram(world.main)
    got = [exe.run(compiled, batch(8, i), [loss])[0].item() for i in range(4)]
    assert compiled._executor(world.scope).device_count == 1
    learned = parameters(world)
    for name, value in start.items():
        world.scope[name] = value
    assert got == [exe.run(world.main, batch(8, i), [loss])[0].item() for i in range(4)]
    assert parameters(world) == learned
    # A part of it, and one that does not learn.
    assert exe.run(compiled, batch(8), [scores], use_prune=True)[0].shape == (8, 4)
    assert exe.run(fluid.CompiledProgram(test), batch(8), [scores])[0].shape == (8, 4)
    assert parameters(world) == learned
    assert len(pairs) == len(learned)


def test_with_data_parallel_still_wants_the_loss(world: World) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    compiled = fluid.CompiledProgram(world.main).with_data_parallel(places=2)
    with pytest.raises(fluid.LossError, match=loss.name):
        fluid.Executor().run(compiled, batch(8), [loss])


@pytest.mark.parametrize("kind", [strategy.BuildStrategy, strategy.ExecutionStrategy])
def test_every_field_is_explained(kind: Any) -> None:
    assert list(kind._meanings) == [name for name in kind._fields if not name.startswith("_")]


def test_checkpoints_are_given_in_one_of_three_ways(world: World) -> None:
    scores, loss = classifier()
    hidden = next(op.inputs[0] for op in world.main.global_block().ops if scores.name in op.outputs)
    made = []
    for how in ("given", "set", "paddle"):
        program = world.main.clone()
        target, sgd = program.var(loss.name), fluid.optimizer.SGD(0.1)
        given = [hidden] if how == "given" else ()
        optimizer = fluid.optimizer.RecomputeOptimizer(sgd, given)
        if how == "set":
            optimizer.set_checkpoints([program.var(hidden)])
        if how == "paddle":
            optimizer._set_checkpoints([program.var(hidden)])
        with fluid.unique_name.guard():
            optimizer.minimize(target, fluid.Program())
        made.append([op[:5] for op in program.global_block().ops])
    assert made[0] == made[1] == made[2]
    with pytest.raises(fluid.ProgramError, match="set_checkpoints"):
        fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1)).minimize(loss)
    with pytest.raises(TypeError, match="checkpoints"):
        fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1), [7])  # type: ignore[list-item]
