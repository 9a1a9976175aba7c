"""``use_prune``: only what is fetched is computed, by an Executor and by compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, parameters, world

import phalanx.graph as fluid

__all__ = ["world"]

Run = Callable[..., list[Any]]


def plain(world: World, loss: fluid.Variable) -> Run:
    exe = fluid.Executor(fluid.CPUPlace())
    return lambda **given: exe.run(world.main, **given)


def compiled(world: World, loss: fluid.Variable) -> Run:
    exe = fluid.Executor(fluid.CPUPlace())
    both = fluid.CompiledProgram(world.main).with_data_parallel(loss_name=loss.name, places=2)
    return lambda **given: exe.run(both, **given)


WAYS = pytest.mark.parametrize("way", [plain, compiled])


@WAYS
def test_the_loss_alone_changes_nothing_and_needs_only_its_feeds(world: World, way: Any) -> None:
    _, loss = classifier()
    other = fluid.layers.data("other", [3])
    aside = fluid.layers.fc(other, 2)
    fluid.optimizer.Adam(0.1).minimize(loss)
    begin(world)
    run, before = way(world, loss), parameters(world)
    first = run(feed=batch(8), fetch_list=[loss], use_prune=True)
    again = run(feed=batch(8), fetch_list=[loss], use_prune=True)
    assert parameters(world) == before
    assert np.array_equal(first[0], again[0])
    # What only the rest needs may be fed, but what nothing knows may not.
    full = {**batch(8), "other": np.ones([8, 3], "float32")}
    assert np.array_equal(run(feed=full, fetch_list=[loss], use_prune=True)[0], first[0])
    with pytest.raises(fluid.FeedError, match="nobody"):
        run(feed={**full, "nobody": np.ones([8, 3], "float32")}, fetch_list=[loss], use_prune=True)
    with pytest.raises(fluid.FeedError, match="label"):
        run(feed={"x": full["x"]}, fetch_list=[loss], use_prune=True)
    with pytest.raises(fluid.FeedError, match="other"):
        run(feed=batch(8), fetch_list=[loss])
    assert run(feed={"other": full["other"]}, fetch_list=[aside], use_prune=True)[0].shape == (8, 2)
    assert parameters(world) == before
    run(feed=full, fetch_list=[loss])
    assert parameters(world) != before


@WAYS
def test_what_minimize_gave_keeps_the_update_to_the_bit(world: World, way: Any) -> None:
    _, loss = classifier()
    other = fluid.layers.data("other", [3])
    fluid.layers.fc(other, 2)
    updates = fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    begin(world)
    start = {name: world.scope[name] for name in world.scope.names()}
    run, full = way(world, loss), np.ones([8, 3], "float32")
    wanted = [run(feed={**batch(8, i), "other": full}, fetch_list=[loss])[0] for i in range(4)]
    learned = parameters(world)
    for name, value in start.items():
        world.scope[name] = value
    got = [run(feed=batch(8, i), fetch_list=[loss, updates]) for i in range(4)]
    assert all(len(one) == 1 and np.array_equal(one[0], w) for one, w in zip(got, wanted, strict=True))
    assert parameters(world) == learned
    # Alone, too: then nothing comes back.
    assert run(feed=batch(8), fetch_list=updates) == []
    assert parameters(world) != learned


@WAYS
def test_a_program_that_grows_is_cut_anew_and_nonsense_is_refused(world: World, way: Any) -> None:
    scores, loss = classifier()
    begin(world)
    run = way(world, loss)
    with pytest.raises(fluid.FetchError, match="fetch_list is empty"):
        run(feed=batch(4), use_prune=True)
    with pytest.raises(fluid.FetchError, match="nobody"):
        run(feed=batch(4), fetch_list=["nobody"], use_prune=True)
    with pytest.raises(TypeError):
        run(feed=batch(4), fetch_list=[(1, 2)], use_prune=True)
    once = run(feed={"x": batch(4)["x"]}, fetch_list=[scores], use_prune=True)[0]
    if way is plain:
        double = scores * 2.0
        twice = run(feed={"x": batch(4)["x"]}, fetch_list=[double], use_prune=True)[0]
        assert np.array_equal(twice, once * 2)


def test_many_parts_of_one_program_are_not_all_kept(world: World) -> None:
    x = fluid.data("x", [None, 2])
    many = [x * float(i) for i in range(40)]
    exe = fluid.Executor()
    feed = {"x": np.ones([1, 2], "float32")}
    for _ in range(2):
        for i, y in enumerate(many):
            assert exe.run(world.main, feed=feed, fetch_list=[y], use_prune=True)[0].tolist() == [[i, i]]
    assert len(exe._parts._made[world.main][1]) <= 16


def two_inputs() -> tuple[fluid.Variable, fluid.Variable, fluid.Variable]:
    x, z = fluid.data("x", [None, 1]), fluid.data("z", [None, 1])
    return x, z, fluid.layers.mean(fluid.layers.fc(x, 1))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("iterable", [False, True])
def test_loaders_feed_the_part_that_is_run(world: World, compiled: bool, iterable: bool) -> None:
    x, z, loss = two_inputs()
    total = fluid.layers.mean(x + z)
    exe = fluid.Executor()
    exe.run(world.startup)
    program = fluid.CompiledProgram(world.main).with_data_parallel(places=2) if compiled else world.main
    loader = fluid.io.DataLoader.from_generator([x, z], capacity=2, iterable=iterable, drop_last=False)
    loader.set_batch_generator(lambda: ([np.full([4, 1], i, "float32")] * 2 for i in range(3)))
    seen = []
    if iterable:
        seen = [exe.run(program, feed=data, fetch_list=[loss], use_prune=True) for data in loader()]
    else:
        loader.start()
        with pytest.raises(fluid.EOFException):
            while True:
                seen.append(exe.run(program, fetch_list=[loss], use_prune=True))
        loader.reset()
    assert len(seen) == (3 if iterable or not compiled else 2)
    assert total.name != loss.name
