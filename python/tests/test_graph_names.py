"""Names that programs share, and those that they do not: parameters, rates, counters of steps; and seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, world

import phalanx.graph as fluid

__all__ = ["world"]

layers = fluid.layers


def another(world: World) -> fluid.Program:
    """A second program, whose parameters begin with the same startup program."""
    return fluid.Program()


def test_two_networks_on_one_scope_have_parameters_and_rates_of_their_own(world: World) -> None:
    _, first = classifier()
    fluid.optimizer.Momentum(0.5, 0.9).minimize(first)
    other = another(world)
    with fluid.program_guard(other, world.startup):
        _, second = classifier()
        fluid.optimizer.Momentum(0.25, 0.9).minimize(second)
    names = [{v.name for v in program.list_vars() if v.persistable} for program in (world.main, other)]
    assert not names[0] & names[1]
    begin(world)
    before = {name: world.scope[name] for name in names[0]}
    exe = fluid.Executor()
    for _ in range(3):
        exe.run(other, feed=batch(8))
    assert all(np.array_equal(world.scope[name], value) for name, value in before.items())
    assert (world.scope["@STEP@"].item(), world.scope["@STEP@_1"].item()) == (0, 3)
    assert (world.scope["learning_rate"].item(), world.scope["learning_rate_1"].item()) == (0.5, 0.25)


def test_programs_share_what_is_named_but_not_what_optimizers_keep(world: World) -> None:
    def net() -> fluid.Variable:
        x = fluid.data("x", [None, 8])
        return layers.mean(layers.fc(x, 1, param_attr="w", bias_attr=False))

    optimizer = fluid.optimizer.Momentum(0.5, 0.9)
    optimizer.minimize(net())
    other = another(world)
    with fluid.program_guard(other, world.startup):
        optimizer.minimize(net())
    assert (optimizer.rate_name(world.main), optimizer.rate_name(other)) == ("learning_rate", "learning_rate_1")
    begin(world)
    feed = {"x": np.ones([1, 8], "float32")}
    start = world.scope["w"]
    exe = fluid.Executor()
    exe.run(world.main, feed=feed)
    exe.run(other, feed=feed)
    # Each has its first step, of which a velocity knows nothing.
    np.testing.assert_allclose(world.scope["w"], start - 1.0, rtol=1e-5)


def test_an_optimizer_of_one_program_has_one_rate(world: World) -> None:
    a, b = (layers.create_parameter([1], name=name, is_bias=True) for name in "ab")
    optimizer = fluid.optimizer.SGD(0.5)
    for v in (a, b):
        optimizer.minimize(layers.mean(v * 1.0))
    begin(world)
    world.scope[optimizer.rate_name(world.main)] = 0.25
    fluid.Executor().run(world.main)
    assert [world.scope[name].item() for name in "ab"] == [-0.25, -0.25]
    assert (world.scope["@STEP@"].item(), world.scope["@STEP@_1"].item()) == (1, 1)


def test_merged_gradients_are_each_programs_own(world: World) -> None:
    def net() -> fluid.Variable:
        loss = layers.mean(layers.fc(fluid.data("x", [None, 8]), 1, param_attr="w", bias_attr=False))
        fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.5), k_steps=2).minimize(loss)
        return loss

    net()
    other = another(world)
    with fluid.program_guard(other, world.startup):
        net()
    begin(world)
    start, feed, exe = world.scope["w"], {"x": np.ones([1, 8], "float32")}, fluid.Executor()
    exe.run(world.main, feed=feed)
    exe.run(other, feed=feed)
    assert np.array_equal(world.scope["w"], start), "each waits for a second run of its own"
    exe.run(other, feed=feed)
    np.testing.assert_allclose(world.scope["w"], start - 0.5, rtol=1e-5)


def test_names_of_optimizers_say_whose_variables_these_are(world: World) -> None:
    _, loss = classifier()
    optimizer = fluid.optimizer.Adam(0.5, name="d")
    with pytest.raises(fluid.ProgramError, match="minimize first"):
        optimizer.rate_name(world.main)
    optimizer.minimize(loss)
    begin(world)
    assert world.scope["learning_rate_d"].item() == 0.5
    assert {"@STEP@_d", "fc_0.w_0.moment1_d", "fc_0.w_0.moment2_d"} <= set(world.scope.names())
    with pytest.raises(TypeError, match="name must be a str"):
        fluid.optimizer.SGD(0.1, name=3)  # type: ignore[arg-type]


def test_a_layer_of_the_same_name_in_another_program_is_another_layer(world: World) -> None:
    def net() -> list[str]:
        x = fluid.data("x", [None, 2, 4, 4])
        y = layers.batch_norm(x, name="norm")
        layers.fc(y, 3, name="head")
        return [v.name for v in x.program.list_vars() if v.persistable]

    first = net()
    with fluid.program_guard(another(world), world.startup):
        second = net()
    assert not set(first) & set(second), (first, second)
    assert first[0] == "norm.w_0" and "head.w_0" in first


def test_guards_begin_names_anew(world: World) -> None:
    def names() -> list[str]:
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            layers.fc(fluid.data("x", [None, 2]), 3)
            return [p.name for p in fluid.default_main_program().all_parameters()]

    with fluid.unique_name.guard():
        inner = [names(), names()]
    with fluid.unique_name.guard():
        again = names()
    assert inner == [["fc_0.w_0", "fc_0.b_0"], ["fc_1.w_0", "fc_1.b_0"]]
    assert again == inner[0]
    with fluid.unique_name.guard("left_"):
        assert names() == ["left_fc_0.w_0", "left_fc_0.b_0"]
    assert fluid.unique_name.generate("k") == "k_0"


def attr(**said: Any) -> fluid.ParamAttr:
    return fluid.ParamAttr(name="w", **said)


@pytest.mark.parametrize(
    ("said", "other", "what"),
    [
        ({}, {"trainable": False}, "trainable"),
        ({}, {"learning_rate": 2.0}, "learning_rate"),
        ({"learning_rate": 0.5}, {"learning_rate": 2.0}, "learning_rate"),
        ({}, {"regularizer": fluid.regularizer.L2Decay(0.1)}, "regularizer"),
        ({}, {"initializer": fluid.initializer.Constant(1.0)}, "initializer"),
    ],
)
def test_what_contradicts_itself_is_not_shared(
    world: World, said: dict[str, Any], other: dict[str, Any], what: str
) -> None:
    x = fluid.data("x", [None, 3])
    layers.fc(x, 3, param_attr=attr(**said))
    for fine in ({}, said):
        layers.fc(x, 3, param_attr=attr(**fine))
    with pytest.raises(fluid.ProgramError, match=f"`w` is shared, but {what} is") as caught:
        layers.fc(x, 3, param_attr=attr(**other))
    assert caught.value.var == "w"


def test_programs_that_share_a_parameter_say_the_same_of_how_it_begins(world: World) -> None:
    def net(size: int = 2, **said: Any) -> fluid.Variable:
        return layers.fc(fluid.data("x", [None, 3]), size, param_attr=attr(**said), bias_attr=False)

    net(initializer=fluid.initializer.Constant(0.5))
    # A critic that one player learns, and the other only sees.
    with fluid.program_guard(another(world), world.startup):
        net(trainable=False)
    for wrong in ({"initializer": fluid.initializer.Constant(0.25)}, {"size": 4}):
        with fluid.program_guard(another(world), world.startup):
            with pytest.raises(fluid.ProgramError, match="`w` at .*must agree") as caught:
                net(**wrong)
            assert caught.value.var == "w"
            assert fluid.default_main_program().all_parameters() == []
    begin(world)
    assert np.array_equal(world.scope["w"], np.full([3, 2], 0.5, "float32"))


@pytest.mark.parametrize("devices", [0, 2])
def test_the_seed_of_the_main_program_counts(world: World, devices: int) -> None:
    y = layers.dropout(fluid.data("x", [None, 32]), 0.5)

    def mask(seed: int) -> bytes:
        world.main.random_seed = seed
        feed, scope = {"x": np.ones([8, 32], "float32")}, fluid.Scope(seed=3)
        if devices:
            exe = fluid.ParallelExecutor(main_program=world.main, devices=devices, scope=scope)
            return exe.run([y], feed=feed)[0].tobytes()
        return executor.run(world.main, feed=feed, fetch_list=[y], scope=scope)[0].tobytes()

    executor = fluid.Executor()
    masks = [mask(seed) for seed in (0, 5, 6, 5, 0)]
    assert masks[1] == masks[3] and masks[0] == masks[4]
    assert len(set(masks)) == 3
    # That of the scope counts where the program says nothing.
    assert masks[0] == mask(3)
    with pytest.raises(fluid.ProgramError, match="random_seed must be a number"):
        mask(-1)
    with pytest.raises(AttributeError, match="random_seed can"):
        world.main.seed = 3  # type: ignore[attr-defined]


def test_layers_within_a_layer_have_names_of_their_own(world: World) -> None:
    x = layers.data("x", [5, 8])
    out = [layers.attention(x, 2).name, layers.attention(x, 2, name="look").name]
    assert out == ["fc_3.tmp_0.1", "look"]
    wanted = [f"fc_{i}.{part}_0" for i in range(7) for part in "wb"] + ["look.w_0", "look.b_0"]
    assert [p.name for p in world.main.all_parameters()] == wanted
    made = [op.outputs[0] for op in world.main.global_block().ops]
    assert made[:4] == ["fc_0.tmp_0", "fc_0.tmp_0.1", "reshape_0.tmp_0", "transpose_0.tmp_0"]
    assert made[12:16] == ["matmul_0.tmp_0", "scale_0.tmp_0", "softmax_0.tmp_0", "matmul_1.tmp_0"]
    assert made[-2:] == ["look.tmp_0", "look"]


def test_a_layer_is_added_to_the_program_of_its_input(world: World) -> None:
    other = another(world)
    with fluid.program_guard(other):
        gates = layers.data("gates", [5, 8])
    # Its first states are constants, which have no input.
    states, _ = layers.dynamic_lstm(gates, size=8)
    assert states.program is other and not world.main.list_vars()
    biases = ["slice", "reshape", "add", "slice", "reshape"]
    states = ["fill_constant", "fill_constant", "peephole_lstm"]
    assert [op.type for op in other.global_block().ops] == [*biases, *states]
