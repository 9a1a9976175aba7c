"""Python functions in programs, areas under curves, and feeds of booleans and halves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import World, begin, world

import phalanx.graph as fluid

layers = fluid.layers

__all__ = ["world"]


def _out(name: str, shape: list[int], dtype: str = "float32") -> fluid.Variable:
    return fluid.default_main_program().current_block().create_var(name=name, dtype=dtype, shape=shape)


@pytest.mark.parametrize("devices", [1, 3])
def test_a_function_and_its_gradient_are_part_of_a_network(world: World, devices: int) -> None:
    seen: list[int] = []

    def tanh(x: Any) -> Any:
        seen.append(len(x))
        return np.tanh(x)

    def slope(y: Any, dy: Any) -> Any:
        return dy * (1 - y * y)

    x = fluid.data("x", [None, 4])
    own = layers.fc(x, 3, param_attr="own", bias_attr=False)
    made = layers.py_func(tanh, own, _out("made", [-1, 3]), slope, skip_vars_in_backward_input=own)
    other = layers.tanh(layers.fc(x, 3, param_attr="other", bias_attr=False))
    costs = [layers.mean(layers.square(y)) for y in (made, other)]
    loss = layers.sum(costs)
    fluid.optimizer.SGD(0.5).minimize(loss)
    begin(world)
    world.scope["other"] = world.scope["own"]
    exe = fluid.ParallelExecutor(loss_name=loss.name, devices=devices)
    feed = {"x": np.random.default_rng(0).standard_normal([6, 4]).astype("float32")}
    before = np.array(world.scope["own"])
    for _ in range(3):
        a, b = exe.run(costs, feed)
        np.testing.assert_allclose(a, b, rtol=1e-6)
    np.testing.assert_allclose(world.scope["own"], world.scope["other"], rtol=1e-5)
    assert np.abs(world.scope["own"] - before).max() > 1e-3
    assert sorted(seen) == [6 // devices] * (3 * devices)


def test_functions_of_several_values_of_several_types(world: World) -> None:
    x, ids = fluid.data("x", [2, 3], "float64"), fluid.data("ids", [2], "int64")
    looked: list[Any] = []

    def func(x: Any, ids: Any) -> Any:
        return x[::-1] * 2, ids + 1, np.asarray(x.sum() > 0)

    outs = [_out("a", [2, 3], "float64"), _out("b", [2], "int64"), _out("c", [], "bool")]
    made = layers.py_func(func, [x, ids], outs, lambda x, ids, a, b, c, da: (da[::-1] * 2, None))
    layers.py_func(looked.append, x, None)
    (gradient,) = fluid.gradients([made[0]], [x])
    values = np.arange(6.0).reshape(2, 3)
    feed = {"x": values, "ids": np.array([4, 5])}
    a, b, c, d = fluid.Executor().run(world.main, feed=feed, fetch_list=[*made, gradient])
    assert np.array_equal(a, values[::-1] * 2) and b.tolist() == [5, 6] and c.dtype == bool and bool(c[0])
    assert d.tolist() == [[2.0] * 3] * 2
    assert len(looked) == 1 and np.array_equal(looked[0], values)


def test_what_functions_do_wrong_is_told(world: World, tmp_path: Path) -> None:
    x = fluid.data("x", [None, 2])
    feed = {"x": np.ones([3, 2], "float32")}

    def run(func: Any, name: str) -> Any:
        y = layers.py_func(func, x, _out(name, [-1, 2]))
        return fluid.Executor().run(world.main, feed=feed, fetch_list=[y], use_prune=True)

    def broken(x: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    for k, (func, says) in enumerate(
        [
            (broken, r"py_func `broken`: raised ZeroDivisionError: by nothing \(at .*test_graph_functions.py:\d+\)"),
            (lambda x: x[:1], r"value 0 has the shape \[1, 2\], not \[3, 2\]"),
            (lambda x: (x, x), "it returned 2 values, but out has 1"),
            (lambda x: x.astype(complex), "value 0 is complex128, not float32"),
        ]
    ):
        with pytest.raises(fluid.OpError, match=says):
            run(func, f"out{k}")
    with pytest.raises(TypeError, match="func is a int, not a function"):
        layers.py_func(3, x, _out("odd", [-1, 2]))
    with pytest.raises(TypeError, match="x takes variables, got ndarray"):
        layers.py_func(np.sin, feed["x"], _out("other", [-1, 2]))
    with pytest.raises(fluid.ProgramError, match="neither in x nor in out"):
        layers.py_func(np.sin, x, _out("more", [-1, 2]), np.cos, skip_vars_in_backward_input=_out("alien", [1]))
    with pytest.raises(fluid.ProgramError, match="use layers.create_global_var"):
        world.main.global_block().create_var(name="kept", shape=[1], persistable=True)
    # A function without a gradient is an end of what can be learned.
    hidden = layers.fc(x, 2)
    with pytest.raises(fluid.ProgramError, match="py_func"):
        fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.py_func(np.sin, hidden, _out("dead", [-1, 2]))))
    with pytest.raises((fluid.ProgramError, ValueError), match="cannot be written down"):
        world.main.serialize_to_string()
    with pytest.raises(fluid.GraphError, match="cannot be written down"):
        fluid.io.save_inference_model(
            str(tmp_path / "model"), ["x"], [world.main.var("out1")], fluid.Executor(), world.main
        )


def test_padding_is_not_handed_to_functions_without_its_lengths(world: World) -> None:
    x = layers.data("x", [2], lod_level=1, max_length=3)
    with pytest.raises(fluid.ProgramError, match=r"x=\[v, v.lengths\]"):
        layers.py_func(np.sin, x, _out("y", [-1, 3, 2]))

    def means(rows: Any, lengths: Any) -> Any:
        return np.stack([row[:n].mean(0) for row, n in zip(rows, lengths, strict=True)])

    y = layers.py_func(means, [x, x.lengths], _out("y2", [-1, 2]))
    sequences = [np.ones([2, 2], "float32"), np.full([3, 2], 2.0, "float32")]
    (got,) = fluid.Executor().run(world.main, feed={"x": sequences}, fetch_list=[y])
    assert got.tolist() == [[1.0, 1.0], [2.0, 2.0]]


def test_areas_grow_over_runs(world: World) -> None:
    chance, label = fluid.data("chance", [None, 2]), fluid.data("label", [None, 1], "int64")
    whole, own, counts = layers.auc(chance, label, num_thresholds=200)
    begin(world)
    random = np.random.default_rng(0)
    metric, exe = fluid.metrics.Auc("auc", num_thresholds=200), fluid.Executor()
    for _ in range(4):
        truth = random.integers(2, size=[20, 1])
        right = np.clip(truth * 0.3 + random.uniform(0, 0.7, [20, 1]), 0, 1)
        scores = np.concatenate([1 - right, right], 1).astype("float32")
        alone = fluid.metrics.Auc("auc", num_thresholds=200)
        metric.update(scores, truth)
        alone.update(scores, truth)
        got = exe.run(world.main, feed={"chance": scores, "label": truth}, fetch_list=[whole, own, *counts])
        np.testing.assert_allclose([got[0][0], got[1][0]], [metric.eval(), alone.eval()], rtol=1e-12)
    assert got[2].sum() + got[3].sum() == 20 and got[4].sum() + got[5].sum() == 80
    with pytest.raises(fluid.OpError, match="sample 1 has the score 1.5"):
        bad = {"chance": np.array([[0, 0.5], [0, 1.5]], "float32"), "label": np.ones([2, 1], "int64")}
        exe.run(world.main, feed=bad, fetch_list=[own])
    assert sum(world.scope[v.name].sum() for v in counts[2:]) == 80, "a run that failed has counted nothing"
    with pytest.raises(fluid.StrategyError, match=r"use metrics\.Auc"):
        fluid.ParallelExecutor(devices=2)
    assert fluid.ParallelExecutor(devices=1).run([own], {"chance": scores, "label": truth})[0][0] == got[1][0]
    for wrong, says in (({"curve": "PR"}, "only 'ROC'"), ({"slide_steps": 3}, "1 is this run, 0 all")):
        with pytest.raises(fluid.ProgramError, match=says):
            layers.auc(chance, label, **wrong)


@pytest.mark.parametrize("devices", [None, 2])
def test_booleans_and_halves_are_fed_and_fetched(world: World, devices: int | None) -> None:
    mask, x, half = (
        fluid.data("mask", [None, 3], "bool"),
        fluid.data("x", [None, 3]),
        fluid.data("half", [None, 3], "float16"),
    )
    taken = layers.where(mask, x, layers.cast(half, "float32"))
    out = [taken, layers.logical_not(mask), layers.cast(x, "float16"), layers.cast(half, "float64")]
    random = np.random.default_rng(0)
    feed = {
        "mask": random.integers(2, size=[4, 3]).astype(bool),
        "x": random.standard_normal([4, 3]).astype("float32"),
        "half": random.standard_normal([4, 3]).astype("float16"),
    }
    exe: Any = fluid.Executor() if devices is None else fluid.ParallelExecutor(devices=devices)
    a, b, c, d = exe.run(feed=feed, fetch_list=out)
    assert np.array_equal(a, np.where(feed["mask"], feed["x"], feed["half"].astype("float32")))
    assert b.dtype == bool and np.array_equal(b, ~feed["mask"])
    assert c.dtype == np.float16 and np.array_equal(c, feed["x"].astype("float16"))
    assert np.array_equal(d, feed["half"].astype("float64"))
    # Bytes that are no booleans count as true.
    feed["mask"] = np.full([4, 3], 7, "uint8").view(bool)
    assert np.array_equal(exe.run(feed=feed, fetch_list=[taken])[0], feed["x"])
    with pytest.raises(fluid.FeedError, match=r'array.astype\("bool"\)'):
        exe.run(feed={**feed, "mask": np.ones([4, 3], "int64")}, fetch_list=[taken])
    with pytest.raises(fluid.FeedError, match=r'array.astype\("float16"\)'):
        exe.run(feed={**feed, "half": feed["x"]}, fetch_list=[taken])
    with pytest.raises(fluid.ProgramError, match="16"):
        layers.relu(half)
