"""Optimizers, averages and first values: thirty steps against their formulas, on one device and on two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phalanx.graph as fluid

layers, STEPS = fluid.layers, 30
DATA = np.random.default_rng(4)
X = DATA.standard_normal([8, 5])
Y = DATA.standard_normal([8, 1])
BEGIN = DATA.standard_normal([5, 1])


def _gradient(w: Any) -> Any:
    return 2.0 / len(X) * X.T @ (X @ w - Y)


def _program(minimize: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, y = fluid.data("x", [None, 5], "float64"), fluid.data("y", [None, 1], "float64")
        first = fluid.initializer.NumpyArrayInitializer(BEGIN)
        out = layers.fc(x, 1, param_attr=fluid.ParamAttr("w", first), bias_attr=False)
        loss = layers.mse_loss(out, y)
        minimize(loss)
    return main, startup, loss


def _trained(minimize: Callable[[Any], Any], devices: int, see: Callable[[Any], None] | None = None) -> list[Any]:
    """The weights after each step."""
    main, startup, loss = _program(minimize)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        compiled = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=fluid.cpu_places(devices))
        seen = []
        for _ in range(STEPS):
            exe.run(main if devices == 1 else compiled, {"x": X, "y": Y}, [loss])
            seen.append(np.array(fluid.global_scope()["w"]))
        if see is not None:
            see(exe)
        return seen


def _formula(step: Callable[[Any, Any, dict[str, Any], int], Any]) -> list[Any]:
    w, state, seen = BEGIN.copy(), {"a": np.zeros_like(BEGIN), "b": np.zeros_like(BEGIN)}, []
    for t in range(1, STEPS + 1):
        w = step(w, _gradient(w), state, t)
        seen.append(w.copy())
    return seen


def adamax(w: Any, g: Any, s: Any, t: int) -> Any:
    s["a"] = 0.9 * s["a"] + 0.1 * g
    s["b"] = np.maximum(np.abs(g), 0.99 * s["b"] + 1e-8)
    return w - 0.05 / (1 - 0.9**t) * s["a"] / s["b"]


def adadelta(w: Any, g: Any, s: Any, t: int) -> Any:
    s["a"] = 0.9 * s["a"] + 0.1 * g * g
    step = np.sqrt(s["b"] + 1e-6) / np.sqrt(s["a"] + 1e-6) * g
    s["b"] = 0.9 * s["b"] + 0.1 * step * step
    return w - 0.7 * step


def decayed(w: Any, g: Any, s: Any, t: int) -> Any:
    s["a"] = 0.95 * s["a"] + 0.05 * g * g
    return w - 0.02 * g / (np.sqrt(s["a"]) + 1e-6)


def adagrad_from(w: Any, g: Any, s: Any, t: int) -> Any:
    s["a"] = s["a"] + g * g
    return w - 0.2 * g / (np.sqrt(s["a"] + 0.3) + 1e-6)


def noam(w: Any, g: Any, s: Any, t: int) -> Any:
    return w - 2.0 * 16**-0.5 * min(t**-0.5, t * 5**-1.5) * g


def ftrl(w: Any, g: Any, s: Any, t: int, power: float = -0.5) -> Any:
    after = s["a"] + g * g
    s["b"] = s["b"] + g - (after**-power - s["a"] ** -power) / 0.3 * w
    s["a"] = after
    edge = np.where(s["b"] < 0, -0.1, 0.1)
    return np.where(np.abs(s["b"]) <= 0.1, 0.0, (edge - s["b"]) / (after**-power / 0.3 + 2 * 0.2))


def lamb(w: Any, g: Any, s: Any, t: int) -> Any:
    s["a"], s["b"] = 0.9 * s["a"] + 0.1 * g, 0.99 * s["b"] + 0.01 * g * g
    way = s["a"] / (1 - 0.9**t) / (np.sqrt(s["b"] / (1 - 0.99**t)) + 1e-6) + 0.01 * w
    return w - 0.05 * np.linalg.norm(w) / np.linalg.norm(way) * way


def sgd_with_signs(w: Any, g: Any, s: Any, t: int) -> Any:
    return w - 0.1 * (g + 0.05 * np.sign(w))


def clipped(w: Any, g: Any, s: Any, t: int) -> Any:
    return w - 0.1 * g * min(1.0, 0.2 / np.linalg.norm(g))


def _clipped(loss: Any) -> None:
    fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(0.2))
    fluid.optimizer.SGD(0.1).minimize(loss)


def _by_variable(loss: Any) -> None:
    rate = layers.create_global_var([1], 0.1, "float64", True, "my_rate")
    fluid.optimizer.SGD(rate, regularization=fluid.regularizer.L1Decay(0.05)).minimize(loss)


RULES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "adamax": (lambda loss: fluid.optimizer.Adamax(0.05, beta2=0.99).minimize(loss), adamax),
    "adadelta": (lambda loss: fluid.optimizer.Adadelta(0.7, rho=0.9).minimize(loss), adadelta),
    "decayed adagrad": (lambda loss: fluid.optimizer.DecayedAdagrad(0.02).minimize(loss), decayed),
    "adagrad from": (
        lambda loss: fluid.optimizer.Adagrad(0.2, initial_accumulator_value=0.3).minimize(loss),
        adagrad_from,
    ),
    "noam": (lambda loss: fluid.optimizer.SGD(layers.noam_decay(16, 5, learning_rate=2.0)).minimize(loss), noam),
    "ftrl": (lambda loss: fluid.optimizer.Ftrl(0.3, l1=0.1, l2=0.2).minimize(loss), ftrl),
    "ftrl with a power": (
        lambda loss: fluid.optimizer.Ftrl(0.3, l1=0.1, l2=0.2, lr_power=-0.4).minimize(loss),
        lambda w, g, s, t: ftrl(w, g, s, t, -0.4),
    ),
    "lamb": (lambda loss: fluid.optimizer.Lamb(0.05, beta2=0.99).minimize(loss), lamb),
    "l1 decay": (
        lambda loss: fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L1Decay(0.05)).minimize(loss),
        sgd_with_signs,
    ),
    "clip of a program": (_clipped, clipped),
    "a variable as rate": (_by_variable, sgd_with_signs),
}


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", RULES)
def test_thirty_steps_follow_the_formula(name: str, devices: int) -> None:
    minimize, formula = RULES[name]
    wanted = _formula(formula)
    for mine, theirs in zip(_trained(minimize, devices), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-11)


def test_adadelta_is_that_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is what it is compared with")
    w = torch.nn.Parameter(torch.tensor(BEGIN))
    optimizer = torch.optim.Adadelta([w], lr=0.7, rho=0.9, eps=1e-6)
    for mine in _trained(lambda loss: fluid.optimizer.Adadelta(0.7, rho=0.9).minimize(loss), 1):
        optimizer.zero_grad()
        ((torch.tensor(X) @ w - torch.tensor(Y)) ** 2).mean().backward()
        optimizer.step()
        np.testing.assert_allclose(mine, w.detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize("devices", [1, 2])
def test_averages_follow_the_parameters(devices: int) -> None:
    made: dict[str, Any] = {}
    applied: dict[str, Any] = {}

    def minimize(loss: Any) -> None:
        fluid.optimizer.SGD(0.1).minimize(loss)
        made["ema"] = fluid.optimizer.ExponentialMovingAverage(0.8)
        made["ema"].update()
        made["mean"] = fluid.optimizer.ModelAverage(0.5, min_average_window=4, max_average_window=6)

    def see(exe: Any) -> None:
        for name, average in made.items():
            before = np.array(fluid.global_scope()["w"])
            with average.apply(exe):
                applied[name] = np.array(fluid.global_scope()["w"])
            np.testing.assert_array_equal(fluid.global_scope()["w"], before)

    seen = _trained(minimize, devices, see)
    ema = np.zeros_like(BEGIN)
    window: list[Any] = []
    last: list[Any] = []
    for t, w in enumerate(seen, 1):
        ema = 0.8 * ema + 0.2 * w
        window = [*window, w]
        if len(window) >= 4 and len(window) >= min(6, t * 0.5):
            window, last = [], window
    np.testing.assert_allclose(applied["ema"], ema / (1 - 0.8**STEPS), rtol=1e-9)
    np.testing.assert_allclose(applied["mean"], np.mean([*last, *window], axis=0), rtol=1e-9)


@pytest.mark.parametrize("devices", [1, 2])
def test_lookahead_goes_back_to_slow_weights(devices: int) -> None:
    inner = fluid.optimizer.SGD(0.1)
    seen = _trained(lambda loss: fluid.optimizer.LookaheadOptimizer(inner, alpha=0.6, k=4).minimize(loss), devices)
    w, slow = BEGIN.copy(), BEGIN.copy()
    for t, mine in enumerate(seen, 1):
        w = w - 0.1 * _gradient(w)
        if t % 4 == 0:
            slow = slow + 0.6 * (w - slow)
            w = slow.copy()
        np.testing.assert_allclose(mine, w, rtol=1e-9)


def test_programs_for_testing_leave_averages_alone() -> None:
    def minimize(loss: Any) -> None:
        fluid.optimizer.SGD(0.1).minimize(loss)
        fluid.optimizer.ExponentialMovingAverage(0.8).update()

    main, _, _ = _program(minimize)
    names = {op.type for op in main.clone(for_test=True).global_block().ops}
    assert not names & {"increment", "assign", "sgd"}


def _first(initializer: Any, shape: list[int], seed: int = 1) -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope(seed=seed)):
        fluid.default_startup_program().random_seed = seed
        layers.create_parameter(shape, "float32", "p", default_initializer=initializer)
        fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
        return np.array(fluid.global_scope()["p"])


def test_first_values_are_as_they_say() -> None:
    init = fluid.initializer
    cut = _first(init.TruncatedNormal(1.0, 0.5), [200, 50])
    assert np.abs(cut - 1.0).max() <= 1.0
    # The deviation of a normal distribution that is cut at two deviations.
    assert abs(cut.std() / 0.5 - 0.8796) < 0.02
    assert abs(_first(init.Xavier(uniform=False), [300, 100]).std() - np.sqrt(2 / 400)) < 0.002
    assert abs(_first(init.MSRA(), [300, 100]).max() - np.sqrt(6 / 300)) < 0.001
    assert abs(_first(init.MSRA(uniform=False), [300, 100]).std() - np.sqrt(2 / 300)) < 0.002
    np.testing.assert_array_equal(_first(init.NumpyArrayInitializer(np.eye(3)), [3, 3]), np.eye(3))
    with pytest.raises(fluid.ProgramError, match=r"the array is \[3, 3\]"):
        _first(init.NumpyArrayInitializer(np.eye(3)), [4, 3])


def test_a_seed_of_its_own_does_not_depend_on_the_scope() -> None:
    init = fluid.initializer
    for one in (
        init.Uniform(seed=9),
        init.Normal(seed=9),
        init.TruncatedNormal(seed=9),
        init.Xavier(seed=9),
        init.MSRA(seed=9),
    ):
        np.testing.assert_array_equal(_first(one, [4, 3], 1), _first(one, [4, 3], 2))
    assert (_first(init.Normal(), [4, 3], 1) != _first(init.Normal(), [4, 3], 2)).any()


def test_bilinear_filters_interpolate() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        x = fluid.data("x", [None, 1, 3, 3])
        attr = fluid.ParamAttr(initializer=fluid.initializer.Bilinear())
        out = layers.conv2d_transpose(x, 1, filter_size=4, stride=2, padding=1, param_attr=attr, bias_attr=False)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        ramp = np.broadcast_to(np.arange(3, dtype="float32"), [1, 1, 3, 3]).copy()
        (got,) = exe.run(feed={"x": ramp}, fetch_list=[out])
    np.testing.assert_allclose(got[0, 0, 2, 1:5], [0.25, 0.75, 1.25, 1.75], rtol=1e-6)
