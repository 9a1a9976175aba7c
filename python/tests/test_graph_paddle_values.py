"""What Paddle's scripts compute: first values, gradients on devices, labels of pixels, powers, whole numbers, averages."""

from __future__ import annotations

from collections.abc import Callable
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
    pairs: list[Any] = list(zip(parameters, fluid.gradients(loss, parameters), strict=True))
    fluid.optimizer.SGD(0.1).apply_gradients(pairs)
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


def test_powers_below_zero_and_of_zero(world: World) -> None:
    x, y = layers.data("x", [1], stop_gradient=False), layers.data("y", [1])
    power, other = layers.elementwise_pow(x, y), x**y
    fluid.append_backward(layers.mean(power))
    bases = np.array([-2, -2, -2, 0, 0, 0, 0, 3, 0.5], "float32").reshape(-1, 1)
    by = np.array([2, 3, 0.5, 0, 1, 2, -1, 2, -2], "float32").reshape(-1, 1)
    exe = fluid.Executor(fluid.CPUPlace())
    got, same, grad = exe.run(feed={"x": bases, "y": by}, fetch_list=[power, other, "x@GRAD"])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, bases**by, rtol=1e-5)
        wanted = by * bases ** (by - 1)
    np.testing.assert_array_equal(got, same)
    defined = [0, 1, 4, 5, 7, 8]
    np.testing.assert_allclose(grad[defined] * len(bases), wanted[defined], rtol=1e-5)


def test_whole_numbers_stay_what_they_are(world: World) -> None:
    x = layers.data("x", [1], dtype="int64")
    small = layers.data("small", [1], dtype="int32")
    refused: list[Callable[[], Any]] = [
        lambda: layers.fill_constant([1], "int64", 2**53 + 1),
        lambda: layers.fill_constant([1], "int32", 2**31),
        lambda: layers.fill_constant([1], "int64", 0.5),
        lambda: layers.create_global_var([1], 2**53 + 1, "int64"),
        lambda: layers.assign(np.array([2**53 + 1])),
        lambda: small * 2**40,
        lambda: small < 2**40,
    ]
    for wrong in refused:
        with pytest.raises(fluid.ProgramError):
            wrong()
    big = np.array([[2**53 + 1]])
    fed = {"x": big, "small": np.ones([1, 1], "int32")}
    got = fluid.Executor(fluid.CPUPlace()).run(feed=fed, fetch_list=[layers.cast(x, "int64"), x.astype("int64")])
    np.testing.assert_array_equal(got, [big, big])


def test_infinite_numbers_are_not_written(world: World) -> None:
    x = layers.data("x", [2])
    refused: list[Callable[[], Any]] = [
        lambda: layers.clip(x, 0.0, float("inf")),
        lambda: layers.fill_constant([1], "float32", float("nan")),
    ]
    for wrong in refused:
        with pytest.raises(fluid.ProgramError, match="finite"):
            wrong()


@pytest.mark.parametrize("pool_type", ["max", "avg"])
def test_pools_and_their_padding(world: World, pool_type: str) -> None:
    x = layers.data("x", [1, 4, 4])
    whole = layers.pool2d(x, pool_type=pool_type, pool_padding=[1, 2, 0, 0], global_pooling=True)
    even = layers.pool2d(x, 3, pool_type, 1, "SAME")
    assert even.shape == (-1, 1, 4, 4)
    given = -1.0 - np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    wanted = [given.max() if pool_type == "max" else given.mean()]
    if pool_type == "max":
        other = layers.pool2d(x, 2, "max", 1, "SAME")
        assert fluid.Executor().run(feed={"x": given}, fetch_list=[other])[0].max() == -1.0
    else:
        with pytest.raises(fluid.ProgramError, match="exclusive=False"):
            layers.pool2d(x, 2, "avg", 1, "SAME")
    got = fluid.Executor().run(feed={"x": given}, fetch_list=[whole, even])
    np.testing.assert_allclose(got[0].ravel(), wanted)
    corner = given[0, 0, :2, :2]
    np.testing.assert_allclose(got[1][0, 0, 0, 0], corner.max() if pool_type == "max" else corner.mean())


def test_names_reach_parameters_of_nhwc(world: World) -> None:
    x = layers.data("x", [4, 4, 3])
    out = layers.batch_norm(layers.conv2d(x, 2, 3, name="c", data_format="NHWC"), name="n", data_layout="NHWC")
    assert out.name == "n" and "c" in world.main.global_block().vars
    assert [p.name for p in world.main.all_parameters()] == ["c.w_0", "c.b_0", "n.w_0", "n.b_0"]
    assert layers.batch_norm(layers.data("rows", [5]), data_layout="NHWC").shape == (-1, 5)


def test_devices_without_a_dict_learn_nothing(world: World) -> None:
    words = layers.data("words", [1], dtype="int64", lod_level=1, max_length=4)
    table = layers.embedding(words, [9, 3], param_attr=fluid.ParamAttr(name="table"))
    loss = layers.mean(layers.fc(layers.sequence_pool(table, "sum"), 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    sequences = [[[1], [2]], [[3]]]
    left = []
    for devices in (1, 3):
        begin(world)
        exe = fluid.ParallelExecutor(use_cuda=False, loss_name=loss.name, main_program=world.main, devices=devices)
        exe.run([loss], feed=[{"words": sequences}])
        left.append(np.array(world.scope["table"]))
    np.testing.assert_allclose(left[0], left[1], rtol=1e-6)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        y = layers.data("x", [2, 3], append_batch_size=False) * 2.0
        exe = fluid.ParallelExecutor(use_cuda=False, main_program=y.program, devices=2)
        with pytest.raises(fluid.FeedError, match="fixed batch"):
            exe.run([y], feed=[{"x": np.ones([2, 3], "float32")}])


@pytest.mark.parametrize("reduce", ["AllReduce", "Reduce"])
def test_rates_that_the_program_computes_are_one_on_all_devices(reduce: str) -> None:
    # ASIDE-1
    def trained(devices: int | None) -> tuple[list[float], bytes]:
        main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=3)
        with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
            _, loss = classifier()
            step = layers.cast(layers.autoincreased_step_counter(begin=1), "float32")
            rate = layers.fill_constant([1], "float32", 0.4) / (step + 1.0)
            fluid.optimizer.Momentum(rate, 0.9).minimize(loss)
            fluid.Executor().run(startup)
            build = fluid.BuildStrategy()
            build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy[reduce]
            build.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.BySamples
            rates = []
            exe = fluid.Executor()
            if devices is not None:
                parallel = fluid.ParallelExecutor(
                    loss_name=loss.name, main_program=main, build_strategy=build, devices=devices
                )
            for seed in range(3):
                if devices is None:
                    got = exe.run(main, feed=batch(12, seed=seed), fetch_list=[rate])[0]
                else:
                    got = parallel.run([rate], feed=batch(12, seed=seed))[0]
                rates.append(float(got.reshape(-1)[0]))
                assert got.size == 1, "one value for all devices"
            return rates, scope[main.all_parameters()[0].name].tobytes()

    rates, weights = trained(None)
    np.testing.assert_allclose(rates, [0.4 / 2, 0.4 / 3, 0.4 / 4], rtol=1e-6)
    assert trained(1) == (rates, weights)
    two, three = trained(2), trained(3)
    assert two[0] == three[0] == rates
    np.testing.assert_allclose(
        np.frombuffer(two[1], "float32"), np.frombuffer(weights, "float32"), rtol=1e-4, atol=1e-6
    )


def test_rates_and_wrapped_optimizers_say_what_to_write(world: World) -> None:
    _, loss = classifier()
    rate = layers.reduce_mean(loss) * 2.0
    fluid.optimizer.SGD(rate).minimize(loss)
    with pytest.raises(fluid.GraphError, match="piecewise_decay"):
        fluid.ParallelExecutor(use_cuda=False, loss_name=loss.name, main_program=world.main, devices=2)
    with pytest.raises(fluid.ProgramError, match="LAMB"):
        fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.Lamb(0.1), k_steps=2)


@pytest.mark.parametrize("sampler", ["uniform", "log_uniform"])
def test_noise_contrasts_at_any_score(world: World, sampler: str) -> None:
    x, label = layers.data("x", [2]), layers.data("label", [1], dtype="int64")
    attr = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
    cost = layers.nce(x, label, 1, num_neg_samples=2, param_attr=attr, bias_attr=False, sampler=sampler)
    with pytest.raises(fluid.ProgramError, match="at least 1"):
        layers.nce(x, label, 5, num_neg_samples=0)
    begin(world)
    scores = np.array([-400.0, -3.0, 0.0, 2.0, 400.0])
    fed = {"x": np.stack([scores, np.zeros(5)], 1).astype("float32"), "label": np.zeros([5, 1], "int64")}
    (got,) = fluid.Executor().run(feed=fed, fetch_list=[cost])
    # Of one class each draw is that one, twice as noise.
    o, e = 1 / (1 + np.exp(-scores)), 2.0
    wanted = -np.log(o / (o + e)) - 2 * np.log(e / (o + e))
    np.testing.assert_allclose(got[:, 0], wanted, rtol=1e-5)


def test_flags_are_read_in_runs(world: World) -> None:
    y = layers.log(layers.data("x", [1]))
    fed = {"x": -np.ones([1, 1], "float32")}
    exe = fluid.Executor(fluid.CPUPlace())
    parallel = fluid.ParallelExecutor(use_cuda=False, main_program=world.main, devices=1)
    exe.run(feed=fed, fetch_list=[y])
    with pytest.raises(fluid.StrategyError, match="1 or true"):
        fluid.set_flags({"FLAGS_check_nan_inf": "perhaps"})
    fluid.set_flags({"FLAGS_check_nan_inf": "true"})
    try:
        with pytest.raises(fluid.NotFiniteError):
            exe.run(feed=fed, fetch_list=[y])
        with pytest.raises(fluid.StrategyError, match="set it before"):
            parallel.run([y], feed=fed)
    finally:
        fluid.set_flags({"FLAGS_check_nan_inf": "false"})
    exe.run(feed=fed, fetch_list=[y])


def test_a_profile_leaves_recording_as_it_was(world: World) -> None:
    y = layers.data("x", [1]) * 2.0
    exe = fluid.ParallelExecutor(use_cuda=False, main_program=world.main, devices=1)
    fed = {"x": np.ones([1, 1], "float32")}
    exe.record(True)
    fluid.profiler.start_profiler("CPU")
    exe.run([y], feed=fed)
    fluid.profiler.stop_profiler(None, None)
    exe.run([y], feed=fed)
    assert exe.trace() is not None


def test_accuracies_of_devices_have_weights(world: World) -> None:
    metric = fluid.metrics.Accuracy()
    metric.update(np.array([0.0, 1.0]), np.array([1, 3]))
    assert metric.eval() == 0.75
    metric.update(np.array([0.0, 1.0]), 4)
    assert metric.eval() == 0.625
    with pytest.raises(ValueError, match="belong together"):
        metric.update(np.array([0.0, 1.0]), np.array([1, 2, 3]))
    precision = fluid.metrics.Precision()
    precision.update(np.array([0.5, 0.6]), np.array([1, 1]))
    assert precision.tp == 1


@pytest.mark.parametrize("order", [True, False])
def test_samples_before_an_error_come_first(order: bool) -> None:
    def reader() -> Any:
        yield from range(5)
        raise OSError("the file ends here")

    got = []
    with pytest.raises(OSError, match="ends here"):
        for sample in fluid.reader.xmap_readers(lambda s: s * 2, reader, 2, 3, order)():
            got.append(sample)
    assert sorted(got) == [0, 2, 4, 6, 8]
