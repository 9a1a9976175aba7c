"""Feeds and fetches: every kind, and every mistake before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, parameters, world

import phalanx.graph as fluid

__all__ = ["world"]


def executor(world: World, devices: int, **given: Any) -> tuple[fluid.ParallelExecutor, fluid.Variable, fluid.Variable]:
    scores, loss = classifier()
    fluid.optimizer.SGD(learning_rate=0.25).minimize(loss)
    begin(world)
    exe = fluid.ParallelExecutor(use_cuda=False, loss_name=loss.name, main_program=world.main, devices=devices, **given)
    return exe, scores, loss


def by_samples() -> fluid.BuildStrategy:
    strategy = fluid.BuildStrategy()
    strategy.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.BySamples
    return strategy


@pytest.mark.parametrize("samples", [1, 3, 4, 5, 6, 9])
def test_any_number_of_samples_on_four_devices(world: World, samples: int) -> None:
    """Paddle refuses 5 samples on 4 devices; here shares differ by one at most and some devices may be idle."""
    exe, scores, loss = executor(world, 4, build_strategy=by_samples())
    before = {p.name: world.scope[p.name] for p in world.main.all_parameters()}
    fed = batch(samples)
    got, each, mean = exe.run([scores, fluid.Fetch(scores, "unmerged"), fluid.Fetch(loss, "mean")], feed=fed)
    assert got.shape == (samples, 4)
    assert [len(part) for part in each] == [len(part) for part in np.array_split(fed["x"], 4) if len(part)]
    assert np.array_equal(np.concatenate(each), got)
    after = {name: world.scope[name] for name in before}
    # One device on the whole batch learns the same, and sees the same loss.
    for name, value in before.items():
        world.scope[name] = value
    alone, right = fluid.Executor().run(world.main, feed=fed, fetch_list=[scores, loss])
    np.testing.assert_allclose(got, alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mean, right, rtol=1e-5)
    for name, value in after.items():
        np.testing.assert_allclose(value, world.scope[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_list_gives_each_device_its_own(world: World) -> None:
    exe, scores, _ = executor(world, 2)
    fed = [batch(3, seed=1), batch(3, seed=2)]
    (each,) = exe.run([scores], feed=fed, return_merged=False)
    assert [part.shape for part in each] == [(3, 4), (3, 4)]
    per_device = {name: fluid.PerDevice([fed[0][name], fed[1][name]]) for name in fed[0]}
    assert exe.run([scores], feed=per_device)[0].shape == (6, 4)


def test_replicated_values_and_numbers(world: World) -> None:
    x = fluid.data("x", [None, 2])
    factor = fluid.data("factor", [1])
    y = fluid.layers.elementwise_mul(x, factor)
    exe = fluid.ParallelExecutor(main_program=world.main, devices=2)
    ones = np.ones([3, 2], "float32")
    assert np.array_equal(exe.run([y], feed={"x": ones, "factor": 3})[0], 3 * ones)
    assert np.array_equal(exe.run([y], feed={"x": ones, "factor": np.float32(0.5)})[0], 0.5 * ones)
    (both,) = exe.run([y], feed={"x": fluid.Replicate(ones), "factor": 2.0})
    assert np.array_equal(both, np.full([6, 2], 2, "float32"))
    assert np.array_equal(fluid.Executor().run(world.main, feed={"x": ones, "factor": 3}, fetch_list=y)[0], 3 * ones)


def test_feed_dict_is_the_same_as_feed(world: World) -> None:
    exe, scores, _ = executor(world, 2)
    assert exe.run([scores], feed_dict=batch(4))[0].shape == (4, 4)
    with pytest.raises(fluid.FeedError, match="pass one of them"):
        exe.run([scores], feed=batch(4), feed_dict=batch(4))


def wrong_feeds() -> list[tuple[str, Any, type[Exception], str, str | None]]:
    good = batch(4)
    x, label = good["x"], good["label"]
    return [
        ("array", x, fluid.FeedTypeError, "not a ndarray", None),
        ("generator", iter([good]), TypeError, "not a list_iterator", None),
        ("string", "x", fluid.FeedTypeError, "not a str", None),
        ("nothing", None, fluid.FeedError, "`x` is not fed", "x"),
        ("missing", {"x": x}, fluid.FeedError, "`label` is not fed", "label"),
        ("unknown", {**good, "no_such": x}, fluid.FeedError, "no feed of that name", "no_such"),
        ("computed", {**good, "fc_0.tmp_0": x}, fluid.FeedError, "no feed of that name", "fc_0.tmp_0"),
        ("float64", {**good, "x": x.astype("float64")}, fluid.FeedError, r"wants f32\[batch, 8\]", "x"),
        ("float32", {**good, "label": label.astype("float32")}, fluid.FeedError, r"wants i64\[batch, 1\]", "label"),
        ("shape", {**good, "x": x[:, :7]}, fluid.FeedError, r"got f32\[4, 7\]", "x"),
        ("rank", {**good, "label": label[:, 0]}, fluid.FeedError, r"got i64\[4\]", "label"),
        ("samples", {"x": x, "label": label[:3]}, fluid.FeedError, "samples", "label"),
        ("list value", {**good, "x": x.tolist()}, fluid.FeedTypeError, "numpy.asarray", "x"),
        ("objects", {**good, "x": np.array([None])}, fluid.FeedTypeError, "object", "x"),
        ("fraction", {**good, "label": 0.5}, fluid.FeedTypeError, "fraction", "label"),
        ("too large", {**good, "label": 2**70}, fluid.FeedTypeError, "cannot hold", "label"),
        ("float16", {**good, "label": label.astype("float16")}, fluid.FeedError, r"got f16\[4, 1\]", "label"),
        ("bool", {**good, "x": x > 0}, fluid.FeedError, r"got bool\[4, 8\]", "x"),
        ("number for name", {1: x}, fluid.FeedTypeError, "named by strings", None),
        ("no samples", {"x": x[:0], "label": label[:0]}, fluid.FeedError, "no samples", None),
        ("too many dicts", [good] * 3, fluid.FeedError, "for 3 replicas, but there are 2", "x"),
        ("no dicts", [], fluid.FeedError, "empty", None),
        ("odd element", [good, x], fluid.FeedTypeError, "element 1", None),
        ("odd names", [good, {"x": x}], fluid.FeedError, "different variables: label", "label"),
    ]


@pytest.mark.parametrize(
    ("feed", "kind", "says", "var"), [w[1:] for w in wrong_feeds()], ids=[w[0] for w in wrong_feeds()]
)
def test_wrong_feeds_change_nothing(world: World, feed: Any, kind: type[Exception], says: str, var: str | None) -> None:
    exe, scores, _ = executor(world, 2)
    before = parameters(world)
    with pytest.raises(kind, match=says) as caught:
        exe.run([scores], feed=feed)
    assert isinstance(caught.value, fluid.FeedError)
    assert caught.value.var == var
    assert parameters(world) == before
    # It can be used as if nothing had happened.
    assert exe.run([scores], feed=batch(4))[0].shape == (4, 4)


def test_wrong_feeds_name_where_the_variable_was_declared(world: World) -> None:
    exe, scores, _ = executor(world, 2)
    with pytest.raises(fluid.FeedError) as caught:
        exe.run([scores], feed={"x": batch(2)["x"]})
    assert caught.value.site == world.main.var("label").site
    assert "graphs.py:" in caught.value.site
    assert caught.value.wanted == "i64[batch, 1]"


def test_fetches_merged_unmerged_and_twice(world: World) -> None:
    exe, scores, loss = executor(world, 2)
    fed = batch(5)
    names = [scores.name, loss, scores, "fc_0.w_0", fluid.Fetch(loss, "sum"), fluid.Fetch(loss, "first")]
    got = exe.run(names, feed=fed)
    assert [value.shape for value in got] == [(5, 4), (2,), (5, 4), (8, 16), (1,), (1,)]
    assert np.array_equal(got[0], got[2])
    np.testing.assert_allclose(got[4], got[1].sum(), rtol=1e-6)
    assert got[5] == got[1][0]
    each = exe.run([scores, loss], feed=fed, return_merged=False)
    assert [[part.shape for part in one] for one in each] == [[(3, 4), (2, 4)], [(1,), (1,)]]
    assert exe.run(loss.name, feed=fed)[0].shape == (2,)
    assert exe.run([], feed=fed) == exe.run(None, feed=fed) == []
    (grad,) = exe.run(["fc_1.b_0@GRAD"], feed=fed)
    assert grad.shape == (4,)
    (tensor,) = exe.run([scores], feed=fed, return_numpy=False)
    assert (tensor.shape(), tensor.lod(), np.asarray(tensor).shape) == ([5, 4], [], (5, 4))


def test_wrong_fetches(world: World) -> None:
    exe, scores, _ = executor(world, 2)
    before = parameters(world)
    with pytest.raises(fluid.FetchError, match="no variable of that name") as caught:
        exe.run([scores, "no_such"], feed=batch(4))
    assert caught.value.var == "no_such"
    for wrong in ([3], 3, {"a": 1}, [None]):
        with pytest.raises(TypeError):
            exe.run(wrong, feed=batch(4))
    with pytest.raises(fluid.FetchError, match="cannot be merged"):
        exe.run([fluid.Fetch(scores, "average")], feed=batch(4))
    with pytest.raises(fluid.FetchError, match="different shapes"):
        exe.run([fluid.Fetch(scores, "mean")], feed=batch(3))
    assert parameters(world) == before


def test_what_was_fetched_belongs_to_whoever_fetched_it(world: World) -> None:
    exe, scores, _ = executor(world, 2)
    (first,) = exe.run([scores], feed=batch(4))
    kept = first.copy()
    exe.run([scores], feed=batch(4, seed=9))
    assert np.array_equal(first, kept)
    first[:] = 0.0
    assert first.flags.writeable


def test_arrays_of_any_layout_can_be_fed(world: World) -> None:
    exe, scores, _ = executor(world, 2)
    test = fluid.ParallelExecutor(main_program=world.main.clone(for_test=True), devices=2)
    fed = batch(4)
    (right,) = test.run([scores], feed=fed)
    turned = {"x": np.asfortranarray(fed["x"]), "label": fed["label"]}
    swapped = {"x": fed["x"].astype(">f4"), "label": fed["label"]}
    strided = {"x": np.repeat(fed["x"], 2, axis=1)[:, ::2], "label": fed["label"]}
    fed["x"].flags.writeable = False
    for other in (turned, swapped, strided, fed):
        assert test.run([scores], feed=other)[0].tobytes() == right.tobytes()
    assert exe.device_count == 2


def test_an_executor_of_one_device_refuses_lists_for_many(world: World) -> None:
    scores, _ = classifier()
    begin(world)
    with pytest.raises(fluid.FeedError, match="has one"):
        fluid.Executor().run(world.main, feed=[batch(2), batch(2)], fetch_list=[scores])
    for wrong in ("program", 3, fluid.Executor()):
        with pytest.raises(TypeError):
            fluid.Executor().run(wrong)  # type: ignore[arg-type]


def test_what_is_fed_is_not_overwritten(world: World) -> None:
    """In place or not, the arrays of the caller stay what they were, run after run."""
    for in_place in (True, False):
        strategy = by_samples()
        strategy.enable_inplace = strategy.memory_optimize = in_place
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            x = fluid.data("x", [None, 8])
            y = fluid.layers.relu(fluid.layers.scale(x, -1.0))
        fluid.Executor().run(startup)
        exe = fluid.ParallelExecutor(main_program=main, devices=2, build_strategy=strategy)
        fed = [{"x": np.linspace(-1, 1, 24, dtype="float32").reshape(3, 8) + i} for i in range(2)]
        kept = [one["x"].copy() for one in fed]
        for _ in range(10):
            (got,) = exe.run([y], feed=fed)
            assert np.array_equal(got, np.maximum(-np.concatenate(kept), 0))
        assert all(np.array_equal(one["x"], before) for one, before in zip(fed, kept, strict=True))
