"""Layers at the edges of what they take, against PyTorch and Paddle: shapes, NaN, types that are fed, first values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phalanx.graph as fluid

layers = fluid.layers


def _run(build: Callable[[], Any], feed: dict[str, Any]) -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        out = build()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        return exe.run(fluid.default_main_program(), feed, [out])[0]


def test_axes_are_added_and_taken_away_where_paddle_does() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 4, 6])
        places = {(-1,): (-1, 4, 6, 1), (-2,): (-1, 4, 1, 6), (0,): (1, -1, 4, 6), (1, -1): (-1, 1, 4, 6, 1)}
        for axes, wanted in places.items():
            assert layers.unsqueeze(x, list(axes)).shape == wanted
        assert layers.unsqueeze(x, -1).shape == (-1, 4, 6, 1)
        assert layers.unsqueeze(x, [2, 0]).shape == (1, -1, 4, 1, 6)
        for axis in (4, -5):
            with pytest.raises(fluid.ProgramError, match="cannot be inserted"):
                layers.unsqueeze(x, [axis])
        y = fluid.data("y", [None, 1, 6, 1])
        assert layers.squeeze(y, []).shape == (-1, 6)
        assert layers.squeeze(y, [-1]).shape == (-1, 1, 6) == layers.squeeze(y, -1).shape
        with pytest.raises(fluid.ProgramError, match="are 1"):
            layers.squeeze(y, [2])


def test_an_axis_that_was_added_last_holds_what_there_was() -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3)
    got = _run(lambda: layers.unsqueeze(fluid.data("x", [None, 3]), [-1]), {"x": x})
    np.testing.assert_array_equal(got, x[:, :, None])


@pytest.mark.parametrize("dtype", ["uint8", "bool"])
def test_booleans_are_fed_as_bytes_too(dtype: str) -> None:
    mask = np.array([True, False, True])

    def build() -> Any:
        fed = layers.cast(fluid.data("mask", [None], dtype), "bool")
        return layers.cast(layers.logical_not(fed), "float32")

    np.testing.assert_array_equal(_run(build, {"mask": mask.astype(dtype)}), [0.0, 1.0, 0.0])


def test_halves_are_widened_for_what_computes() -> None:
    x = np.array([0.5, 1.5], "float16")
    np.testing.assert_array_equal(_run(lambda: fluid.data("x", [None]) * 2.0, {"x": x}), [1.0, 3.0])
    with pytest.raises(fluid.ProgramError, match="`x` is float16"):
        _run(lambda: fluid.data("x", [None], "float16") * 2.0, {"x": x})


@pytest.mark.parametrize("way", ["upscale_in_train", "downgrade_in_infer"])
def test_dropping_everything_leaves_zeros(way: str) -> None:
    def build() -> Any:
        return layers.dropout(fluid.data("x", [None]), 1.0, dropout_implementation=way)

    got = _run(build, {"x": np.array([1.0, -2.0, np.inf], "float32")})
    np.testing.assert_array_equal(got, [0.0, 0.0, 0.0])
    with pytest.raises(fluid.ProgramError, match="at least 0 and at most 1"):
        _run(lambda: layers.dropout(fluid.data("x", [None]), 1.5), {})


def test_nan_travels_as_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x = np.array([[1.0, np.nan, 3.0], [4.0, 6.0, 5.0]], "float32")
    ours = {
        "max": (lambda v: layers.reduce_max(v, dim=1), lambda v: v.amax(1)),
        "min": (lambda v: layers.reduce_min(v, dim=1), lambda v: v.amin(1)),
        "all": (layers.reduce_max, lambda v: v.amax()),
        "argmax": (layers.argmax, lambda v: v.argmax(1)),
        "topk": (lambda v: layers.topk(v, 2)[1], lambda v: v.topk(2)[1]),
        "softplus": (lambda v: layers.softplus(v * -5.0), lambda v: torch.nn.functional.softplus(v * -5.0)),
    }
    for name, (own, other) in ours.items():
        got = _run(lambda own=own: own(fluid.data("x", [None, 3])), {"x": x})
        wanted = other(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(np.asarray(got).reshape(wanted.shape), wanted, rtol=1e-5, err_msg=name)


def test_a_row_of_nan_is_never_right() -> None:
    scores = np.array([[np.nan, np.nan], [2.0, 1.0]], "float32")
    label = np.zeros((2, 1), "int64")

    def build() -> Any:
        return layers.accuracy(fluid.data("scores", [None, 2]), fluid.data("label", [None, 1], "int64"))

    assert _run(build, {"scores": scores, "label": label}).item() == 0.5


def test_filters_of_groups_begin_as_paddles() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope(seed=3)):
        image = fluid.data("image", [None, 128, 4, 4])
        for groups in (1, 32):
            layers.conv2d(image, 128, 3, groups=groups, name=f"conv{groups}")
        fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
        for groups in (1, 32):
            got = np.asarray(fluid.global_scope().find_var(f"conv{groups}.w_0").get_tensor()).std()
            assert got == pytest.approx(math.sqrt(2 / (128 * 9)), rel=0.05), groups


def test_a_classifier_whose_right_class_has_no_probability_left_goes_on_learning() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        x = fluid.data("x", [None, 1])
        label = fluid.data("label", [None, 1], "int64")
        p = layers.fc(x, 2, act="softmax", bias_attr=False, param_attr="w")
        loss = layers.mean(layers.cross_entropy(p, label))
        fluid.optimizer.SGD(0.5).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        scope = fluid.global_scope()
        scope.find_var("w").get_tensor().set(np.array([[-500.0, 500.0]], "float32"), fluid.CPUPlace())
        feed = {"x": np.ones((1, 1), "float32"), "label": np.zeros((1, 1), "int64")}
        losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(4)]
        assert losses == pytest.approx([64.0] * 4)
        np.testing.assert_allclose(np.asarray(scope.find_var("w").get_tensor()), [[-498.0, 498.0]])


def test_a_short_last_batch_counts_as_much_as_its_samples() -> None:
    """Three samples on four devices, with Paddle's default scale: the idle one takes no weight from the others."""
    x, y = np.arange(1.0, 4.0, dtype="float32").reshape(3, 1), np.zeros((3, 1), "float32")

    def step(devices: int) -> Any:
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
            fed, target = fluid.data("x", [None, 1]), fluid.data("y", [None, 1])
            out = layers.fc(fed, 1, bias_attr=False, param_attr=fluid.ParamAttr("w", fluid.initializer.Constant(1.0)))
            loss = layers.mean(layers.square_error_cost(out, target))
            fluid.optimizer.SGD(0.01).minimize(loss)
            fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
            exe = fluid.ParallelExecutor(False, loss_name=loss.name, devices=devices)
            exe.run([], feed={"x": x, "y": y})
            return np.asarray(fluid.global_scope().find_var("w").get_tensor()).item()

    assert step(4) == pytest.approx(step(1), rel=1e-6)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_a_variable_in_the_scope_begins_with_any_number(dtype: str) -> None:
    for value in (0, 1, 100):
        got = _run(lambda value=value: layers.create_global_var([2], value, dtype, force_cpu=True), {})
        assert got.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(got, np.full(2, value, dtype))
        # What is not kept in the scope has any number, too.
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        assert layers.create_global_var([2], 1, "int32", persistable=False).dtype == "int32"
        with pytest.raises(fluid.ProgramError, match="300"):
            layers.create_global_var([2], 300, "uint8")


def test_counters_of_any_type_grow() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        counters = [layers.create_global_var([1], 5, dtype) for dtype in ("int32", "int64", "float32", "float64")]
        for counter in counters:
            layers.increment(counter, 2)
        half = layers.increment(counters[2], 0.5, in_place=False)
        with pytest.raises(fluid.ProgramError, match="whole numbers"):
            layers.increment(counters[0], 0.5)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        for wanted in (7, 9):
            got = exe.run(fetch_list=[*counters, half])
            assert [each.item() for each in got] == [wanted] * 4 + [wanted + 0.5]
