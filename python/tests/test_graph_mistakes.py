"""Mistakes of somebody who is new here, and what they are told."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, world
from ranks import run_ranks

import phalanx
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
    with pytest.raises(fluid.LossError, match=r"no variable of that name; did you mean `mean_0.tmp_0`\?"):
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
        fluid.StrategyError, match=r"^the strategies contradict each other: bucket_bytes is 0.*; num_iteration"
    ):
        fluid.ParallelExecutor(False, loss.name, world.main, None, execution, build)


def test_nobody_shares_with_itself(world: World) -> None:
    loss, _ = executors(world)
    first, second, third = (fluid.CompiledProgram(world.main) for _ in range(3))
    with pytest.raises(fluid.StrategyError, match="with itself") as caught:
        first.with_data_parallel(loss.name, share_vars_from=first, places=2)
    assert caught.value.var == "share_vars_from"
    first.with_data_parallel(loss.name, share_vars_from=second, places=2)
    second.with_data_parallel(loss.name, share_vars_from=third, places=2)
    with pytest.raises(fluid.StrategyError, match="with itself"):
        third.with_data_parallel(loss.name, share_vars_from=first, places=2)
    # What was refused has not happened.
    third.with_data_parallel(loss.name, places=2)
    assert len(fluid.Executor().run(first, feed=batch(8), fetch_list=[loss])[0]) == 2


def merged(world: World, k_steps: int, devices: int, **given: Any) -> tuple[list[bytes], np.ndarray[Any, Any]]:
    """Parameters after each of four runs with a quarter of the samples each, or one run with all of them."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=2)
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
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
        ({"avg": False}, "gradients are averaged"),
    ]:
        with pytest.raises(fluid.ProgramError, match=says):
            fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), **given)
    words = fluid.data("words", [None, 1], "int64")
    loss = fluid.layers.mean(fluid.layers.embedding(words, [10, 2], is_sparse=True))
    with pytest.raises(fluid.ProgramError, match="sparse") as caught:
        fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), 2).minimize(loss)
    assert re.search(r"test_graph_mistakes\.py:\d+", str(caught.value.site))


def test_updates_may_be_fetched_in_any_form(world: World) -> None:
    _, loss = classifier()
    ops, pairs = fluid.optimizer.SGD(0.1).minimize(loss)
    exe, feed, learned = fluid.Executor(), batch(8), []
    compiled = fluid.CompiledProgram(world.main).with_data_parallel(loss_name=loss.name, places=2)
    for program in (world.main, compiled):
        for fetch in ([loss, (ops, pairs)], [loss, ops], [loss, *ops]):
            begin(world)
            assert len(exe.run(program, feed=feed, fetch_list=fetch)) == 1
            learned.append(world.scope["fc_0.w_0"].tobytes())
        assert len(set(learned[-3:])) == 1
    begin(world)
    assert world.scope["fc_0.w_0"].tobytes() not in learned
    parallel = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2)
    for fetch in ([loss, ops], [loss, (ops, pairs)], [loss, *ops]):
        with pytest.raises(TypeError, match=r"what minimize\(\) returns can be fetched only with Executor\.run"):
            parallel.run(fetch, feed=feed)


def test_a_loader_of_the_program_that_was_cloned_is_named(world: World) -> None:
    _, loss = classifier()
    test = world.main.clone(for_test=True)
    begin(world)
    variables = [world.main.var("x"), world.main.var("label")]
    loader = fluid.io.DataLoader.from_generator(variables, capacity=2, iterable=False)
    loader.set_batch_generator(lambda: iter([batch(4)] * 3))
    alone, parallel = fluid.Executor(), fluid.ParallelExecutor(main_program=test, devices=2)
    runs = [lambda: alone.run(test, fetch_list=[loss.name]), lambda: parallel.run([loss.name])]
    for run in runs:
        with pytest.raises(fluid.FeedError) as quiet:
            run()
        assert "loader" not in str(quiet.value), "it was not started"
    loader.start()
    for run in runs:
        with pytest.raises(fluid.FeedError, match="a loader that was started gives it, but belongs to the program"):
            run()
    assert np.isfinite(alone.run(world.main, fetch_list=[loss])[0])
    loader.reset()


def test_arrays_of_other_types(world: World) -> None:
    x, k = fluid.data("x", [None, 2], "float64"), fluid.data("k", [None, 1], "int64")
    s, f = fluid.data("s", [None], "int32"), fluid.data("f", [None, 2])
    fetch = [x + 0.0, fluid.layers.cast(k, "float64"), s, f + 0.0]
    good = {
        "x": np.array([[1.5, 2.5], [3.5, 4.5]], "float32"),
        "k": np.array([[2**31 - 1], [-(2**31)]], "int32"),
        "s": np.array([65535, 1], "uint16"),
        "f": np.ones([2, 2], "float16"),
    }
    alone, parallel = fluid.Executor(), fluid.ParallelExecutor(main_program=world.main, devices=2)
    runs = [lambda feed: alone.run(feed=feed, fetch_list=fetch), lambda feed: parallel.run(fetch, feed=feed)]
    for run in runs:
        got = run(good)
        assert all(np.array_equal(value, good[name]) for name, value in zip("xksf", got, strict=True))
        for name, value, dtype in [
            ("f", np.ones([2, 2]), "float32"),
            ("f", np.ones([2, 2], "int64"), "float32"),
            ("k", np.ones([2, 1], "float32"), "int64"),
            ("k", np.ones([2, 1], "uint64"), "int64"),
            ("k", np.ones([2, 1], bool), "int64"),
            ("s", np.ones(2, "int64"), "int32"),
            ("s", np.ones(2, "uint32"), "int32"),
        ]:
            with pytest.raises(fluid.FeedError, match=f'feed `{name}` as array.astype\\("{dtype}"\\)') as caught:
                run({**good, name: value})
            assert caught.value.var == name
        with pytest.raises(fluid.FeedError) as shaped:
            run({**good, "f": np.ones([2, 3], "float32")})
        assert "astype" not in str(shaped.value)


def test_rates_are_set_as_numbers_or_arrays_of_one(world: World) -> None:
    loss, runs = executors(world)
    for rate in (0.5, [0.5], np.array([0.5]), np.array(0.5, "float32"), np.full([1, 1], 0.5, "float32")):
        world.scope["learning_rate"] = 0.1
        world.scope["learning_rate"] = rate
        assert (world.scope["learning_rate"].shape, world.scope["learning_rate"].item()) == ((1,), 0.5)
        for run in runs:
            world.scope["learning_rate"] = 0.1
            if not isinstance(rate, list):
                run({**batch(4), "learning_rate": rate}, [loss])
                assert world.scope["learning_rate"].item() == 0.5
    for wrong in (np.array([0.5, 0.5], "float32"), np.zeros(0, "float32")):
        with pytest.raises(fluid.StateError, match="learning_rate"):
            world.scope["learning_rate"] = wrong


def test_a_layer_that_came_too_late(world: World) -> None:
    scores, loss = classifier()
    begin(world)
    exe = fluid.ParallelExecutor(main_program=world.main, devices=2)
    test = world.main.clone(for_test=True)
    late, more = fluid.layers.softmax(scores), fluid.data("more", [None, 2])
    with pytest.raises(fluid.FetchError, match="added after the executor was made"):
        exe.run([late], feed=batch(4))
    with pytest.raises(fluid.FeedError, match=r"`more` is fed.*added after the executor"):
        exe.run([loss], feed={**batch(4), "more": np.ones([4, 2], "float32")})
    with pytest.raises(fluid.FetchError, match=r"the program that was cloned has it: it was added after clone\(\)"):
        fluid.Executor().run(test, feed=batch(4), fetch_list=[late])
    assert more.shape == (-1, 2)


def test_small_mistakes_have_words(world: World) -> None:
    build, execution = fluid.BuildStrategy(), fluid.ExecutionStrategy()
    with pytest.raises(TypeError, match=r"wants BuildStrategy\.ReduceStrategy\.AllReduce or .*\.Reduce or .*'Reduce'"):
        build.reduce_strategy = "Reduce"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="fuse_all_reduce_ops wants bool or None, got 3"):
        build.fuse_all_reduce_ops = 3  # type: ignore[assignment]
    with pytest.raises(fluid.StrategyError, match="num_threads cannot be negative, got -1") as caught:
        execution.num_threads = -1
    assert (caught.value.var, execution.num_threads) == ("num_threads", 0)
    with pytest.raises(fluid.FeedError, match=r"\[1, 2\] are lengths without a level.*write \[\[1, 2\]\]"):
        fluid.create_lod_tensor(np.arange(3), [1, 2])
    loss, _ = executors(world)
    with pytest.raises(TypeError, match="feed_list must be a list of variables"):
        fluid.io.DataLoader.from_generator(loss, capacity=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a list of at least one variable"):
        fluid.layers.while_loop(lambda v: v, lambda v: v, loss, maximum_trip_count=2)  # type: ignore[arg-type]
    with pytest.raises(fluid.LossError, match=f"did you mean `{loss.name}`\\? That is what was minimized") as lost:
        fluid.ParallelExecutor(loss_name="los", main_program=world.main)
    assert (lost.value.var, lost.value.wanted) == ("los", loss.name)


def warned() -> list[list[str]]:
    """What an Executor, a ParallelExecutor and an Executor that only predicts warn of on this rank."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=3)
    said: list[list[str]] = []
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        _, loss = classifier()
        test = main.clone(for_test=True)
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor()
        exe.run(startup)
        parallel = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, devices=1)
        for run in (
            lambda: [exe.run(test, feed=batch(4), fetch_list=[loss.name]) for _ in range(2)],
            lambda: [parallel.run([loss], feed=batch(4)) for _ in range(2)],
            lambda: [exe.run(main, feed=batch(4), fetch_list=[loss]) for _ in range(3)],
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run()
            said.append([f"{one.filename}: {one.message}" for one in caught])
    return said


def test_a_rank_that_trains_alone_is_warned_once() -> None:
    assert not phalanx.is_initialized()
    assert warned() == [[], [], []]
    for rank, (predicted, together, alone) in enumerate(run_ranks(2, warned)):
        assert (predicted, together) == ([], [])
        assert len(alone) == 1, "in three runs"
        assert re.search(f"rank {rank} of 2 trains this program alone.*ParallelExecutor.*CompiledProgram", alone[0])
        assert "test_graph_mistakes.py: " in alone[0]


def test_sizes_are_neither_rounded_nor_read(world: World) -> None:
    x, label = fluid.layers.data("x", [4]), fluid.layers.data("label", [1], dtype="int64")
    image = fluid.layers.data("image", [1, 8, 8])
    layers = fluid.layers
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: layers.fc(x, 2.7), "fc: size=2.7 must be a whole number"),
        (lambda: layers.fc(x, "3"), "fc: size='3' must be a whole number"),
        (lambda: layers.fc(x, label), "fc: size=`label`, which is known only in a run"),
        (lambda: layers.conv2d(image, 2.5, 3), "num_filters=2.5"),
        (lambda: layers.conv2d(image, 2, 3.5), "one whole number or two, got 3.5"),
        (lambda: layers.conv2d(image, 2, [3, 3, 3]), "one whole number or two"),
        (lambda: layers.embedding(label, 5), "embedding: size=5 must be a list"),
        (lambda: layers.embedding(label, [5]), r"must be \[height, width\]"),
        (lambda: layers.one_hot(label, "10"), "depth='10'"),
        (lambda: layers.topk(x, 2.5), "k=2.5"),
        (lambda: layers.argmax(x, "1"), "axis='1'"),
        (lambda: layers.fill_constant([1.5], "float32", 0.0), "shape=1.5"),
        (lambda: layers.transpose(x, 1), "perm=1 must be a list"),
        (lambda: layers.expand(x, 2), "expand_times=2 must be a list"),
        (lambda: layers.pixel_shuffle(x, 2), "takes images"),
        (lambda: layers.while_loop(lambda i: i < 3, lambda i: i, [label]), "pass maximum_trip_count=100"),
    ]
    for call, says in wrong:
        before = str(world.main)
        with pytest.raises(fluid.ProgramError, match=says):
            call()
        assert str(world.main) == before, says
    assert layers.fc(x, 8.0).shape == (-1, 8)
    others: list[tuple[Callable[[], Any], str]] = [
        (lambda: layers.data("y", 3), r"shape=3 of `y` must be a list of numbers; write \[3\]"),
        (lambda: layers.data([3], "y"), "name=.* must be a text"),
        (lambda: layers.data("y", [3], dtype="float23"), "no variables of 'float23'; choose one of"),
        (lambda: layers.fc(None, 3), "a variable or a list of them, got NoneType"),
        (lambda: fluid.batch(iter([1, 2]), 2), "write lambda"),
        (lambda: fluid.reader.shuffle([1, 2], 2), "write lambda"),
        (lambda: fluid.reader.chain([1]), "write lambda"),
        (lambda: fluid.reader.compose([1]), "write lambda"),
        (lambda: fluid.reader.map_readers(print, [1]), "write lambda"),
        (lambda: fluid.reader.firstn([1], 1), "write lambda"),
        (lambda: fluid.reader.cache([1]), "write lambda"),
        (lambda: fluid.reader.buffered([1], 1), "write lambda"),
        (lambda: fluid.reader.xmap_readers(print, [1], 1, 1), "write lambda"),
    ]
    for call, says in others:
        with pytest.raises(TypeError, match=says):
            call()


def test_files_of_paddles_say_that_they_cannot_be_read(world: World, tmp_path: Path) -> None:
    classifier()
    (tmp_path / "fc_0.w_0").write_bytes(bytes(40))
    exe = fluid.Executor()
    with pytest.raises(FileNotFoundError, match="Paddle has written cannot be read"):
        fluid.io.load_params(exe, tmp_path)
    (tmp_path / "__model__").write_bytes(b"\x0a\x05\x08\x00" * 40)
    with pytest.raises(fluid.SavedError, match=r"Paddle's cannot be read.*import_model"):
        fluid.io.load_inference_model(tmp_path, exe)
    with pytest.raises(fluid.SavedError, match="Paddle's cannot be read"):
        fluid.io.load_params(exe, tmp_path, filename="__model__")


def test_an_array_for_sequences_says_what_to_feed(world: World) -> None:
    words = fluid.layers.data("words", [1], dtype="int64", lod_level=1, max_length=4)
    out = fluid.layers.sequence_pool(fluid.layers.embedding(words, [9, 2]), "sum")
    begin(world)
    with pytest.raises(fluid.FeedError, match="feed `words` as a list of sequences, or as a LoDTensor"):
        fluid.Executor().run(feed={"words": np.array([[1, 2, 3]])}, fetch_list=[out])
    assert words.to_string(True) == repr(words)
