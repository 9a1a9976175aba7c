"""What Paddle's scripts compute: first values, gradients on devices, labels of pixels, powers, whole numbers, averages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, world

import phalanx.graph as fluid
from phalanx.distributed.session import initialise

__all__ = ["world"]
layers = fluid.layers


def test_a_default_initializer_needs_no_name(world: World) -> None:
    array = np.arange(6, dtype="float32").reshape(2, 3)
    a = layers.create_parameter([2, 3], default_initializer=fluid.initializer.NumpyArrayInitializer(array))
    seeded = fluid.initializer.Normal(seed=5)
    b, c = (layers.create_parameter([50], default_initializer=seeded) for _ in range(2))
    wide = layers.create_parameter([400, 100], default_initializer=fluid.initializer.MSRA(uniform=False))
    attr = fluid.ParamAttr(initializer=fluid.initializer.Constant(2.0))
    d = layers.create_parameter([1], attr=attr, default_initializer=fluid.initializer.Constant(1.0), name="own")
    begin(world)
    np.testing.assert_array_equal(world.scope[a.name], array)
    np.testing.assert_array_equal(world.scope[b.name], world.scope[c.name])
    assert abs(world.scope[wide.name].std() - np.sqrt(2 / 400)) < 0.005
    assert d.name == "own" and world.scope["own"] == 2.0


def test_values_of_one_name_are_alike(world: World) -> None:
    x = layers.data("x", [2])

    def layer(first: float) -> Any:
        value = fluid.initializer.NumpyArrayInitializer(np.full([2, 1], first))
        return layers.fc(x, 1, param_attr=fluid.ParamAttr(name="w", initializer=value), bias_attr=False)

    layer(1.0)
    layer(1.0)
    with pytest.raises(fluid.ProgramError, match="other numbers"):
        layer(2.0)
    with fluid.program_guard(fluid.Program(), world.startup):
        x = layers.data("x", [2])
        with pytest.raises(fluid.ProgramError, match="other numbers"):
            layer(3.0)
    begin(world)
    np.testing.assert_array_equal(world.scope["w"], [[1.0], [1.0]])


def test_a_session_begins_with_given_values(world: World) -> None:
    x = layers.data("x", [2])
    value = fluid.initializer.NumpyArrayInitializer(np.ones([2, 1]))
    out = layers.fc(x, 1, param_attr=fluid.ParamAttr(name="w", initializer=value), bias_attr=False)
    begin(world)
    fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(0.0), alpha=0.5, k=1).minimize(layers.mean(out))
    world.scope["w"] = np.full([2, 1], 3.0, "float32")
    initialise(world.scope, world.main, world.startup)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(world.main, feed={"x": np.ones([1, 2], "float32")})
    # The slow weights begin with what the parameter has, and nothing pulls it elsewhere.
    np.testing.assert_array_equal(world.scope["w"], [[3.0], [3.0]])
    initialise(fresh := fluid.Scope(), world.main, world.startup)
    np.testing.assert_array_equal(fresh["w"], [[1.0], [1.0]])
    exe.run(world.main, feed={"x": np.ones([1, 2], "float32")}, scope=fresh)
    np.testing.assert_array_equal(fresh["w"], [[1.0], [1.0]])


@pytest.mark.parametrize("has_axis", [True, False])
def test_labels_belong_to_their_pixels(world: World, has_axis: bool) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    scores = random.standard_normal([2, 3, 4, 4]).astype("float32")
    ids = random.integers(0, 3, [2, 4, 4])
    x = layers.data("x", [3, 4, 4])
    label = layers.data("label", [1, 4, 4] if has_axis else [4, 4], dtype="int64")
    loss, softmax = layers.softmax_with_cross_entropy(x, label, return_softmax=True, axis=1)
    fed = {"x": scores, "label": ids.reshape([-1, *label.shape[1:]])}
    got, shown = fluid.Executor(fluid.CPUPlace()).run(feed=fed, fetch_list=[loss, softmax])
    given = torch.from_numpy(scores)
    wanted = torch.nn.functional.cross_entropy(given, torch.from_numpy(ids), reduction="none").numpy()
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-5)
    np.testing.assert_allclose(shown, torch.softmax(given, 1).numpy(), rtol=1e-5)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_gradients_of_samples_know_no_devices(world: World, devices: int) -> None:
    x = layers.data("x", [2])
    (g,) = fluid.gradients(layers.square(x), x)
    total = next(op.inputs[0] for op in world.main.global_block().ops if op.role == "Loss")
    exe = fluid.ParallelExecutor(use_cuda=False, loss_name=total, main_program=world.main, devices=devices)
    given = np.arange(10, dtype="float32").reshape(5, 2)
    np.testing.assert_allclose(exe.run([g], feed={"x": given})[0], 2 * given, rtol=1e-6)


def test_gradients_of_parameters_are_for_one_device(world: World) -> None:
    _, loss = classifier()
    fluid.gradients(loss, world.main.all_parameters())
    total = next(op.inputs[0] for op in world.main.global_block().ops if op.role == "Loss")
    fluid.ParallelExecutor(use_cuda=False, loss_name=total, main_program=world.main, devices=1)
    with pytest.raises(fluid.StrategyError, match="use an Executor"):
        fluid.ParallelExecutor(use_cuda=False, loss_name=total, main_program=world.main, devices=2)


def test_gradients_of_parameters_can_be_applied_on_devices(world: World) -> None:
    _, loss = classifier()
    parameters = world.main.all_parameters()
    fluid.optimizer.SGD(0.1).apply_gradients(list(zip(parameters, fluid.gradients(loss, parameters), strict=True)))
    begin(world)
    total = next(op.inputs[0] for op in world.main.global_block().ops if op.role == "Loss")
    exe = fluid.ParallelExecutor(use_cuda=False, loss_name=total, main_program=world.main, devices=2)
    losses = [exe.run([loss], feed=batch(16))[0].mean() for _ in range(5)]
    assert losses[-1] < losses[0]


def test_heads_have_layers_of_their_own(world: World) -> None:
    x = layers.data("x", [3, 8])
    fluid.nets.scaled_dot_product_attention(x, x, x)
    assert not world.main.all_parameters()
    out = fluid.nets.scaled_dot_product_attention(x, x, x, num_heads=2)
    assert out.shape == (-1, 3, 8)
    assert [p.shape for p in world.main.all_parameters()] == [(8, 8), (8,)] * 3


def test_averages_leave_out_what_says_so(world: World) -> None:
    x = layers.data("x", [2])
    attr = fluid.ParamAttr(name="left", do_model_average=False)
    out = layers.fc(x, 1, param_attr=attr, bias_attr=fluid.ParamAttr(name="b"))
    fluid.optimizer.SGD(0.1).minimize(layers.mean(out))
    ema = fluid.optimizer.ExponentialMovingAverage(0.5)
    ema.update()
    average = fluid.optimizer.ModelAverage(0.5, 2, 4)
    begin(world)
    exe = fluid.Executor(fluid.CPUPlace())
    for _ in range(3):
        exe.run(feed={"x": np.ones([1, 2], "float32")})
    for each in (ema, average):
        left, b = np.array(world.scope["left"]), np.array(world.scope["b"])
        with each.apply(exe), fluid.scope_guard(fluid.Scope()):
            np.testing.assert_array_equal(world.scope["left"], left)
            assert world.scope["b"] != b
        # They go back to the scope that they were taken from.
        np.testing.assert_array_equal(world.scope["b"], b)
