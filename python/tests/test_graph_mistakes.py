"""Mistakes of somebody who is new here, and what they are told."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, world

import phalanx.graph as fluid

__all__ = ["world"]


def executors(world: World) -> tuple[fluid.Variable, list[Any]]:
    """A loss, and ways to run its program on a feed and a list of fetches."""
    _, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=4)
    alone = fluid.Executor()
    return loss, [
        lambda feed, fetch: exe.run(fetch, feed=feed),
        lambda feed, fetch: alone.run(world.main, feed=feed, fetch_list=fetch),
    ]


def test_names_that_are_nearly_right(world: World) -> None:
    loss, runs = executors(world)
    good = batch(8)
    for run in runs:
        for feed, fetch, kind, says in [
            ({**good, "lable": good["label"]}, [loss], fluid.FeedError, "`lable` is fed.*did you mean `label`\\?"),
            ({**good, "lable": 1.0}, [loss], fluid.FeedError, "`lable` is fed.*did you mean `label`\\?"),
            ({**good, "qqq": good["x"]}, [loss], fluid.FeedError, "`qqq` is fed.*there are x, label$"),
            (good, ["mean_0.tmp_1"], fluid.FetchError, "`mean_0.tmp_1` is fetched.*did you mean `mean_0.tmp_0`\\?"),
            (good, ["qqq"], fluid.FetchError, "`qqq` is fetched.*there are x, label, .* and more$"),
        ]:
            with pytest.raises(kind, match=says) as caught:
                run(feed, fetch)
            assert caught.value.var in {*feed, *fetch} - {*good, loss}
        # What is right is not guessed at.
        with pytest.raises(fluid.FeedError) as missing:
            run({"x": good["x"]}, [loss])
        assert "did you mean" not in str(missing.value)
    with pytest.raises(fluid.LossError, match=r"no such variable; did you mean `mean_0.tmp_0`\?"):
        fluid.ParallelExecutor(loss_name="mean_0.tmp0", main_program=world.main)


def test_batches_of_different_sizes_are_compared_as_they_were_fed(world: World) -> None:
    loss, runs = executors(world)
    feed = {"x": batch(32)["x"], "label": batch(31)["label"]}
    for run in runs:
        with pytest.raises(fluid.FeedError, match="`x` is fed with 32 samples and `label` with 31") as caught:
            run(feed, [loss])
        assert (caught.value.var, caught.value.wanted, caught.value.got) == ("label", "32", "31")
        assert caught.value.replica is None


def test_one_bad_value_contradicts_nothing(world: World) -> None:
    loss, _ = executors(world)
    build, execution = fluid.BuildStrategy(), fluid.ExecutionStrategy()
    build.bucket_bytes = 0
    with pytest.raises(fluid.StrategyError, match=r"^bucket_bytes is 0"):
        fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, build_strategy=build)
    execution.num_iteration_per_run = 0
    with pytest.raises(
        fluid.StrategyError, match=r"^the strategies do not go together: bucket_bytes is 0.*; num_iteration"
    ):
        fluid.ParallelExecutor(False, loss.name, world.main, None, execution, build)


def test_nobody_shares_with_itself(world: World) -> None:
    loss, _ = executors(world)
    first, second, third = (fluid.CompiledProgram(world.main) for _ in range(3))
    with pytest.raises(fluid.StrategyError, match="from itself") as caught:
        first.with_data_parallel(loss.name, share_vars_from=first, places=2)
    assert caught.value.var == "share_vars_from"
    first.with_data_parallel(loss.name, share_vars_from=second, places=2)
    second.with_data_parallel(loss.name, share_vars_from=third, places=2)
    with pytest.raises(fluid.StrategyError, match="from itself"):
        third.with_data_parallel(loss.name, share_vars_from=first, places=2)
    # What was refused has not happened.
    third.with_data_parallel(loss.name, places=2)
    assert len(fluid.Executor().run(first, feed=batch(8), fetch_list=[loss])[0]) == 2


def merged(world: World, k_steps: int, devices: int, **given: Any) -> tuple[list[bytes], np.ndarray[Any, Any]]:
    """Parameters after each of four runs with a quarter of the samples each, or one run with all of them."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=2)
    with fluid.program_guard(main, startup), fluid.scope_guard(scope):
        scores, loss = classifier()
        inner: Any = fluid.optimizer.Momentum(0.5, 0.9)
        if given.get("recompute"):
            inner = fluid.optimizer.RecomputeOptimizer(inner)
            inner._set_checkpoints([scores])
        fluid.optimizer.GradientMergeOptimizer(inner, k_steps).minimize(loss)
        fluid.Executor().run(startup)
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, devices=devices)
        whole, seen = batch(32), []
        for piece in range(k_steps):
            exe.run([], feed={name: np.array_split(value, k_steps)[piece] for name, value in whole.items()})
            seen.append(scope["fc_0.w_0"].tobytes())
        return seen, scope["fc_0.w_0"]


@pytest.mark.parametrize("devices", [1, 2])
def test_gradients_of_several_runs_are_merged(world: World, devices: int) -> None:
    (_, whole), (seen, value) = merged(world, 1, devices), merged(world, 4, devices)
    # Nothing moves until the fourth run.
    assert seen[0] == seen[1] == seen[2] != seen[3]
    np.testing.assert_allclose(value, whole, rtol=1e-5, atol=1e-7)
    assert merged(world, 4, devices, recompute=True)[1].tobytes() == value.tobytes()


def test_wrong_merges(world: World) -> None:
    for given, says in [
        ({"k_steps": 0}, "k_steps=0"),
        ({"k_steps": True}, "k_steps=True"),
        ({"avg": False}, "takes the mean"),
    ]:
        with pytest.raises(fluid.ProgramError, match=says):
            fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), **given)
    words = fluid.data("words", [None, 1], "int64")
    loss = fluid.layers.mean(fluid.layers.embedding(words, [10, 2], is_sparse=True))
    with pytest.raises(fluid.ProgramError, match="sparse") as caught:
        fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), 2).minimize(loss)
    assert re.search(r"test_graph_mistakes\.py:\d+", str(caught.value.site))
