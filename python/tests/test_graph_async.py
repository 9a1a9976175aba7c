"""``BuildStrategy.async_mode``: devices take batches one by one and wait for nobody."""

from __future__ import annotations

import signal
import weakref
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
    with pytest.raises(fluid.FetchError, match="return_merged=False"):
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


def test_batches_are_asked_for_one_by_one_and_may_share_their_memory(world: World) -> None:
    """PYGRAPH-5."""
    exe = executor(world, 1, 20)
    start = {name: world.scope[name] for name in world.scope.names()}
    buffer = batch(8)
    read: list[int] = []

    def reused() -> Iterator[Any]:
        for i in range(20):
            read.append(i)
            for name, value in batch(8, i).items():
                buffer[name][:] = value
            yield buffer

    got = exe.run([exe._exe._loss], reused())[0]
    assert read == list(range(20))
    for name, value in start.items():
        world.scope[name] = value
    wanted = exe.run([exe._exe._loss], [batch(8, i) for i in range(20)])[0]
    assert got.tolist() == wanted.tolist()


@pytest.mark.parametrize("devices", [1, 3])
def test_a_reader_that_fails_comes_out_as_itself_and_updates_stay(world: World, devices: int) -> None:
    exe = executor(world, devices, 100)

    class Disk(Exception):
        pass

    gone = Disk("gone")

    def failing_late() -> Iterator[Any]:
        for i in range(30):
            yield batch(8, i)
        try:
            raise OSError("below")
        except OSError as why:
            raise gone from why

    before = parameters(world)
    with pytest.raises(Disk) as failed:
        exe.run([exe._exe._loss], failing_late())
    assert failed.value is gone
    assert isinstance(failed.value.__cause__, OSError)
    assert "failing_late" in [entry.name for entry in failed.traceback]
    # Those that were being computed when it failed are lost, one for each other device at most.
    assert 30 - (devices - 1) <= world.scope["@STEP@"].item() <= 30
    assert parameters(world) != before
    assert len(exe.run([exe._exe._loss], [batch(8)] * 5)[0]) == 5


def test_a_reader_is_not_asked_for_more_than_a_run_takes(world: World) -> None:
    exe = executor(world, 2, 3)
    read: list[int] = []

    def endless() -> Iterator[Any]:
        while True:
            read.append(len(read))
            yield batch(4, len(read))

    batches = endless()
    for run in (1, 2, 3):
        assert len(exe.run([exe._exe._loss], batches)[0]) == 6
        assert len(read) == 6 * run


def test_a_reader_that_wants_the_scope_of_its_own_run_is_told_so(world: World) -> None:
    exe = executor(world, 2, 4)
    other = fluid.Executor()

    def looks() -> Iterator[Any]:
        yield batch(8)
        world.scope["fc_0.w_0"]

    def runs() -> Iterator[Any]:
        yield batch(8)
        other.run(world.main, batch(8), [])

    for reader in (looks, runs):
        with pytest.raises(fluid.StateError, match="between runs"):
            exe.run([exe._exe._loss], reader())
    assert world.scope["fc_0.w_0"].shape == (8, 16)


def test_a_loader_whose_thread_wants_the_scope_of_the_run_is_told_so(world: World) -> None:
    exe = executor(world, 2, 20)
    feeds = [world.main.var("x"), world.main.var("label")]
    loader = fluid.io.DataLoader.from_generator(feed_list=feeds, capacity=1)

    def looks() -> Iterator[Any]:
        for i in range(40):
            world.scope["fc_0.w_0"]
            yield batch(8, i)

    loader.set_batch_generator(looks)
    with pytest.raises(fluid.StateError, match="between runs"):
        exe.run([exe._exe._loss], loader())
    assert len(exe.run([exe._exe._loss], [batch(8)] * 5)[0]) == 5


def loader_of(world: World, places: int | None, **how: Any) -> fluid.io.GeneratorLoader:
    feeds = [world.main.var("x"), world.main.var("label")]
    loader = fluid.io.DataLoader.from_generator(feed_list=feeds, capacity=4, **how)
    return loader.set_batch_generator(
        lambda: (batch(8, i) for i in range(17)), places=None if places is None else fluid.cpu_places(places)
    )


@pytest.mark.parametrize("places", [None, 1, 3])
def test_a_loader_gives_its_batches_one_by_one(world: World, places: int | None) -> None:
    exe = executor(world, 1, 5)
    loss = exe._exe._loss
    start = {name: world.scope[name] for name in world.scope.names()}
    epoch = loader_of(world, places, drop_last=False)()
    got: list[float] = []
    sizes = []
    while len(found := exe.run([loss], epoch)[0]):
        got += found.tolist()
        sizes.append(len(found))
    # Groups of three do not end where runs do, and nothing is lost.
    assert sizes == [5, 5, 5, 2]
    for name, value in start.items():
        world.scope[name] = value
    plain = fluid.Executor()
    assert got == [plain.run(world.main, batch(8, i), [loss])[0].item() for i in range(17)]


def test_a_loader_that_was_started_feeds_runs_until_its_end(world: World) -> None:
    exe = executor(world, 2, 4)
    loss = exe._exe._loss
    loader = loader_of(world, None, iterable=False)
    with pytest.raises(fluid.FeedError, match="start"):
        exe.run([loss])
    for _ in range(2):
        loader.start()
        sizes = []
        with pytest.raises(fluid.core.EOFException):
            while True:
                sizes.append(len(exe.run([loss])[0]))
        assert sum(sizes) == 17
        loader.reset()
    assert world.scope["@STEP@"].item() == 34


def test_a_loader_that_is_fed_wrongly_is_told_what_to_feed(world: World) -> None:
    exe = executor(world, 2, 4)
    with pytest.raises(fluid.FeedTypeError, match=r"loader\(\).*once per epoch"):
        exe.run([exe._exe._loss], loader_of(world, None))
    with pytest.raises(fluid.FeedTypeError, match="batch 0 is a list"):
        exe.run([exe._exe._loss], loader_of(world, None, return_list=True)())
    assert world.scope["@STEP@"].item() == 0


@pytest.mark.parametrize("devices", [1, 3])
def test_batches_do_not_pile_up(world: World, devices: int) -> None:
    exe = executor(world, devices, 50)
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    class Watched(np.ndarray):  # type: ignore[type-arg]
        """Arrays cannot be looked up by identity in a set; these can."""

        __hash__ = object.__hash__

    def watched(number: int) -> dict[str, Any]:
        made = batch(8, number)
        made["x"] = made["x"].view(Watched)
        alive.add(made["x"])
        return made

    def counted() -> Iterator[Any]:
        nonlocal most
        for i in range(50 * devices):
            most = max(most, len(alive))
            yield watched(i)

    assert len(exe.run([exe._exe._loss], counted())[0]) == 50 * devices
    assert most <= 1, "what was read before has been copied and let go"


def test_ctrl_c_in_a_reader_ends_the_run(world: World) -> None:
    exe = executor(world, 2, 50)

    def interrupted() -> Iterator[Any]:
        for i in range(10):
            yield batch(8, i)
        signal.raise_signal(signal.SIGINT)
        while True:
            yield batch(8)

    with pytest.raises(KeyboardInterrupt):
        exe.run([exe._exe._loss], interrupted())
    assert 9 <= world.scope["@STEP@"].item() <= 10
    assert len(exe.run([exe._exe._loss], [batch(8)] * 5)[0]) == 5
