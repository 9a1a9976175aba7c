"""The example of Paddle's guide to its parallel executor, almost as it stands there."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import World, batch, classifier, world

import phalanx.graph as fluid

__all__ = ["world"]


@pytest.mark.parametrize("memory_opt", [True, False])
def test_the_example_of_the_guide(world: World, memory_opt: bool) -> None:
    use_cuda, dev_count = False, 2
    _, loss = classifier()
    train_program, test_program = world.main, world.main.clone(for_test=True)
    fluid.optimizer.SGD(learning_rate=0.5).minimize(loss)
    feed_dict = batch(32)

    # First create the Executor.
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    exe = fluid.Executor(place)

    # Run the startup program once and only once.
    exe.run(fluid.default_startup_program())

    # Define train_exe and test_exe
    exec_strategy = fluid.ExecutionStrategy()
    exec_strategy.num_threads = dev_count * 4  # the size of thread pool.
    build_strategy = fluid.BuildStrategy()
    build_strategy.memory_optimize = bool(memory_opt)

    train_exe = fluid.ParallelExecutor(
        use_cuda=use_cuda,
        main_program=train_program,
        build_strategy=build_strategy,
        exec_strategy=exec_strategy,
        loss_name=loss.name,
    )
    (first,) = train_exe.run(fetch_list=[loss.name], feed=feed_dict)
    # NOTE: loss_name is unnecessary for test_exe.
    test_exe = fluid.ParallelExecutor(
        use_cuda=use_cuda,
        main_program=test_program,
        build_strategy=build_strategy,
        exec_strategy=exec_strategy,
        share_vars_from=train_exe,
    )
    for _ in range(60):
        (train_loss,) = train_exe.run(fetch_list=[loss.name], feed=feed_dict)
        (test_loss,) = test_exe.run(fetch_list=[loss.name], feed=feed_dict)

    assert train_exe.device_count == test_exe.device_count == train_loss.shape[0]
    # Testing sees the parameters after the step of which training gave the loss before.
    assert np.mean(test_loss) < np.mean(train_loss) < np.mean(first) / 2


def test_the_same_through_a_compiled_program(world: World) -> None:
    _, loss = classifier()
    test_program = world.main.clone(for_test=True)
    fluid.optimizer.SGD(learning_rate=0.5).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    train = fluid.CompiledProgram(world.main).with_data_parallel(loss_name=loss.name, places=fluid.cpu_places(2))
    test = fluid.CompiledProgram(test_program).with_data_parallel(share_vars_from=train, places=fluid.cpu_places(2))
    # It need not have run, no more than a ParallelExecutor.
    (first,) = exe.run(test, feed=batch(8), fetch_list=[loss])
    (before,) = exe.run(train, feed=batch(8), fetch_list=[loss])
    (after,) = exe.run(test, feed=batch(8), fetch_list=[loss])
    assert before.shape == after.shape == (2,)
    assert np.array_equal(first, before)
    assert after.mean() < before.mean()
    elsewhere = fluid.CompiledProgram(test_program).with_data_parallel(share_vars_from=train, places=2)
    with fluid.scope_guard(fluid.Scope()), pytest.raises(fluid.StrategyError, match="another scope"):
        exe.run(elsewhere, feed=batch(8), fetch_list=[loss])
    with pytest.raises(fluid.StrategyError, match="already"):
        train.with_data_parallel()


def test_cuda_is_refused_where_there_is_none(world: World) -> None:
    classifier()
    with pytest.raises(fluid.StrategyError, match="CUDA is not supported"):
        fluid.CUDAPlace(0)
    with pytest.raises(ValueError, match="use_cuda=True"):
        fluid.ParallelExecutor(use_cuda=True, main_program=world.main)
    assert not fluid.is_compiled_with_cuda()
