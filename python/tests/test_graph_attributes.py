"""What scripts set of variables acts, and what would change nothing is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import World, begin, world

import phalanx.graph as fluid

__all__ = ["world"]

layers = fluid.layers
FEED = {"x": np.ones([4, 3], "float32")}


def stacked() -> tuple[fluid.Variable, fluid.Variable, fluid.Variable]:
    """Two layers and their loss; the first one's outputs are a variable of the middle."""
    x = fluid.data("x", [None, 3])
    hidden = layers.fc(x, 4, act="tanh", param_attr="a.w", bias_attr="a.b")
    return hidden, layers.fc(hidden, 1, param_attr="b.w", bias_attr="b.b"), x


def moved(world: World, loss: fluid.Variable, devices: int = 0) -> set[str]:
    """The parameters that a step changes."""
    begin(world)
    before = {p.name: world.scope[p.name] for p in world.main.all_parameters()}
    if devices:
        fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=devices).run([], feed=FEED)
    else:
        fluid.Executor().run(world.main, feed=FEED)
    return {name for name, value in before.items() if not np.array_equal(world.scope[name], value)}


@pytest.mark.parametrize("devices", [0, 2])
def test_gradients_end_where_a_script_says_so(world: World, devices: int) -> None:
    hidden, y, _ = stacked()
    assert not hidden.stop_gradient
    hidden.stop_gradient = True
    assert hidden.stop_gradient and world.main.var(hidden.name).stop_gradient
    loss = layers.mean(y)
    _, pairs = fluid.optimizer.SGD(0.1).minimize(loss)
    assert [p.name for p, _ in pairs] == ["b.w", "b.b"]
    assert moved(world, loss, devices) == {"b.w", "b.b"}


@pytest.mark.parametrize("what", ["trainable", "stop_gradient", "ParamAttr"])
def test_a_frozen_parameter_stays_as_it_is(world: World, what: str) -> None:
    _, y, _ = stacked()
    if what == "ParamAttr":
        y = layers.fc(y, 1, param_attr=fluid.ParamAttr(name="c.w", trainable=False), bias_attr=False)
        frozen = world.main.var("c.w")
    else:
        frozen = next(p for p in world.main.all_parameters() if p.name == "a.w")
        setattr(frozen, what, what == "stop_gradient")
    assert frozen.stop_gradient
    assert frozen.trainable == (what == "stop_gradient")
    loss = layers.mean(y)
    fluid.optimizer.Adam(0.1).minimize(loss)
    assert moved(world, loss) == {"a.w", "a.b", "b.w", "b.b"} - {frozen.name}


def test_what_is_set_is_part_of_the_program(world: World) -> None:
    hidden, y, _ = stacked()
    hidden.stop_gradient = True
    loss = layers.mean(y)
    copies = [world.main.clone(), fluid.Program.parse_from_string(world.main.serialize_to_string())]
    for copy in copies:
        with fluid.program_guard(copy, fluid.Program()):
            _, pairs = fluid.optimizer.SGD(0.1).minimize(copy.var(loss.name))
        assert [p.name for p, _ in pairs] == ["b.w", "b.b"]


def test_a_frozen_parameter_learns_again_for_the_next_loss(world: World) -> None:
    _, y, _ = stacked()
    frozen = world.main.var("a.w")
    frozen.trainable = False
    one, other = layers.mean(y), layers.mean(y * 2.0)
    fluid.optimizer.SGD(0.1).minimize(one, parameter_list=["b.w"])
    frozen.trainable = True
    fluid.optimizer.SGD(0.1).minimize(other, parameter_list=["a.w"])
    assert moved(world, one) == {"a.w", "b.w"}


@pytest.mark.parametrize("devices", [0, 2])
def test_what_is_fed_has_a_gradient_if_it_is_wanted(world: World, devices: int) -> None:
    x = layers.data("x", [3], stop_gradient=False)
    assert not x.stop_gradient and fluid.data("z", [None, 1]).stop_gradient
    w = layers.create_parameter([3, 1], name="w", default_initializer=fluid.initializer.Constant(2.0))
    loss = layers.reduce_sum(layers.matmul(x, w)) + layers.reduce_sum(fluid.default_main_program().var("z")) * 0.0
    _, pairs = fluid.optimizer.SGD(0.1).minimize(loss)
    assert [p.name for p, _ in pairs] == ["w"]
    begin(world)
    feed = {**FEED, "z": np.ones([4, 1], "float32")}
    if devices:
        build = fluid.BuildStrategy()
        build.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.One
        exe = fluid.ParallelExecutor(
            loss_name=loss.name, main_program=world.main, devices=devices, build_strategy=build
        )
        (got,) = exe.run(["x@GRAD"], feed=feed)
    else:
        (got,) = fluid.Executor().run(world.main, feed=feed, fetch_list=["x@GRAD"])
    assert np.array_equal(got, np.full([4, 3], 2.0, "float32"))


@pytest.mark.parametrize("inside", ["cond", "while"])
def test_gradients_end_within_bodies_too(world: World, inside: str) -> None:
    _, y, _ = stacked()

    def stopped() -> fluid.Variable:
        again = y * 2.0
        again.stop_gradient = True
        return again + y

    if inside == "cond":
        zero = layers.fill_constant([], "float32", 0.0)
        both = layers.cond(layers.less_than(zero, zero + 1.0), stopped, lambda: y * 3.0)
    else:
        i = layers.fill_constant([], "int64", 0)
        _, both = layers.while_loop(
            lambda i, v: i < 1,
            lambda i, v: (layers.increment(i, in_place=False), stopped()),
            [i, y * 0.0],
            maximum_trip_count=2,
        )
    loss = layers.mean(both)
    _, pairs = fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["b.b"])
    begin(world)
    (got,) = fluid.Executor().run(world.main, feed=FEED, fetch_list=[pairs[0][1]])
    np.testing.assert_allclose(got, [1.0], rtol=1e-6)


def late(world: World) -> tuple[fluid.Variable, Any]:
    hidden, y, _ = stacked()
    fluid.optimizer.SGD(0.1).minimize(layers.mean(y))
    return hidden, world.main.var("a.w")


def test_what_comes_too_late_is_refused(world: World) -> None:
    hidden, w = late(world)
    for var, what, value in [(hidden, "stop_gradient", True), (w, "trainable", False), (w, "stop_gradient", True)]:
        with pytest.raises(fluid.ProgramError, match=f"{what} of `.*` is set too late.*no_grad_set") as caught:
            setattr(var, what, value)
        assert caught.value.var == var.name
        # What it is already may be said.
        setattr(var, what, not value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("stop_gradients", True, "stop_gradient can be set"),
        ("trainable", False, "only parameters are learned"),
        ("regularizer", None, "ParamAttr"),
        ("gradient_clip_attr", None, "grad_clip"),
        ("name", "other", "cannot be set"),
        ("shape", [3], "reshape"),
        ("block", None, "cannot be set"),
    ],
)
def test_unknown_attributes_are_refused(world: World, name: str, value: Any, said: str) -> None:
    hidden, _, _ = stacked()
    with pytest.raises(AttributeError, match=f"'{name}' of `{hidden.name}` cannot be set.*{said}|{said}"):
        setattr(hidden, name, value)


def test_nonsense_is_refused(world: World) -> None:
    hidden, _, x = stacked()
    label = fluid.data("label", [None, 1], "int64")
    state = layers.create_global_var([1], 0.0, "float32", name="state")
    assert state.stop_gradient and label.stop_gradient
    with pytest.raises(TypeError, match="stop_gradient must be True or False, got 1"):
        hidden.stop_gradient = 1  # type: ignore[assignment]
    with pytest.raises(fluid.ProgramError, match="`label` is int64, which has no gradient"):
        label.stop_gradient = False
    with pytest.raises(fluid.ProgramError, match="`ids` is int64"):
        layers.data("ids", [1], dtype="int64", stop_gradient=False)
    with pytest.raises(fluid.ProgramError, match="create_parameter"):
        state.stop_gradient = False
    w = world.main.var("a.w")
    w.trainable = False
    with pytest.raises(fluid.ProgramError, match="trainable = True"):
        w.stop_gradient = False
    x.stop_gradient = False
    assert not x.stop_gradient


def test_a_counter_of_the_scope_is_raised_in_its_place(world: World) -> None:
    counter = layers.create_global_var([1], 3, "int64", name="counter")
    assert layers.increment(counter) is counter
    y = fluid.data("x", [None, 3]) * 2.0
    begin(world)
    exe = fluid.Executor()
    for run in range(1, 4):
        (got,) = exe.run(world.main, feed=FEED, fetch_list=[counter])
        assert got.tolist() == [3 + run] == world.scope["counter"].tolist()
    parallel = fluid.ParallelExecutor(main_program=world.main, devices=2)
    parallel.run([y], feed=FEED)
    assert world.scope["counter"].tolist() == [7]


def test_what_is_computed_anew_is_not_raised_in_its_place(world: World) -> None:
    i = layers.fill_constant([1], "int64", 0)
    before = str(world.main)
    with pytest.raises(fluid.ProgramError, match="i = increment") as caught:
        layers.increment(i)
    assert caught.value.var == i.name and caught.value.site is not None
    assert str(world.main) == before
    (got,) = fluid.Executor().run(world.main, fetch_list=[layers.increment(i, 2, in_place=False)])
    assert got.tolist() == [2]


@pytest.mark.parametrize("devices", [0, 1, 2])
def test_a_loss_has_the_shape_that_scripts_index(world: World, devices: int) -> None:
    x = fluid.data("x", [None, 3])
    losses = [layers.mean(x), layers.reduce_sum(x), layers.mse_loss(x, x)]
    if devices:
        exe = fluid.ParallelExecutor(main_program=world.main, devices=devices)
        got = exe.run(losses, feed=FEED)
        each = exe.run([losses[0]], feed=FEED, return_merged=False)[0]
        assert [one.shape for one in each] == [(1,)] * devices
        (tensor,) = exe.run([fluid.Fetch(losses[0], "mean")], feed=FEED, return_numpy=False)
        assert tensor.shape() == [1] and np.asarray(tensor).shape == (1,)
    else:
        got = fluid.Executor().run(world.main, feed=FEED, fetch_list=losses)
    assert [one.shape for one in got] == [(max(devices, 1),)] * 3
    assert [one[0] for one in got] == [1.0, 12.0 / max(devices, 1), 0.0]
