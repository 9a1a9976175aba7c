"""Several losses and several optimizers in one program, and a GAN as PyTorch trains it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import World, begin, world
from ranks import run_ranks

import phalanx
import phalanx.graph as fluid

__all__ = ["world"]

layers = fluid.layers
STEPS, SAMPLES = 4, 8
RATES = {"d": 0.1, "g": 0.05}
SHAPES = {"g.w": (2, 3), "g.b": (3,), "d.w": (3, 4), "d.b": (4,), "e.w": (4, 1), "e.b": (1,)}
CRITIC = ["d.w", "d.b", "e.w", "e.b"]


def first(name: str) -> np.ndarray:
    seed = sorted(SHAPES).index(name)
    return np.random.default_rng(seed).standard_normal(SHAPES[name]).astype("float32")


def given(step: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(100 + step)
    noise = random.standard_normal([SAMPLES, 2]).astype("float32")
    return {"z": noise, "real": random.standard_normal([SAMPLES, 3]).astype("float32") + 1.0}


def dense(x: fluid.Variable, size: int, name: str, act: str | None = None) -> fluid.Variable:
    return layers.fc(x, size, param_attr=f"{name}.w", bias_attr=f"{name}.b", act=act)


def generated() -> fluid.Variable:
    return dense(fluid.data("z", [None, 2]), 3, "g", "tanh")


def critic(x: fluid.Variable) -> fluid.Variable:
    return dense(dense(x, 4, "d", "tanh"), 1, "e")


def judged(x: fluid.Variable, is_real: bool) -> fluid.Variable:
    scores = critic(x)
    label = layers.sigmoid(scores * 0.0) * 2.0 if is_real else scores * 0.0
    label.stop_gradient = True
    return layers.mean(layers.sigmoid_cross_entropy_with_logits(scores, label))


def critics_loss(fake: fluid.Variable) -> fluid.Variable:
    return judged(fluid.data("real", [None, 3]), True) + judged(fake, False)


def optimizers() -> tuple[fluid.optimizer.Optimizer, fluid.optimizer.Optimizer]:
    return fluid.optimizer.Adam(RATES["d"]), fluid.optimizer.Momentum(RATES["g"], momentum=0.9)


class Gan:
    """Both updates of a step, written in one way or another; parameters after it."""

    def __init__(self, way: str, run: Callable[[fluid.Program, str], Callable[..., Any]]) -> None:
        self.scope = fluid.Scope()
        self.main, startup = fluid.Program(), fluid.Program()
        critics, makers = optimizers()
        self.steps: list[Callable[..., Any]] = []
        with fluid.unique_name.guard(), fluid.scope_guard(self.scope), fluid.program_guard(self.main, startup):
            fake = generated()
            loss = critics_loss(fake)
            if way == "programs":
                # As Paddle's own examples: one program for each player, which share parameters by name.
                critics.minimize(loss, parameter_list=CRITIC)
                other = fluid.Program()
                with fluid.program_guard(other, startup):
                    fooled = judged(generated(), True)
                    makers.minimize(fooled, parameter_list=["g.w", "g.b"])
                programs = [(self.main, loss.name), (other, fooled.name)]
            elif way == "applied":
                fooled = judged(fake, True)
                # What layers make of gradients is made of their sums over devices.
                grads = [(p, layers.scale(g, 1.0)) for p, g in critics.backward(loss, parameter_list=CRITIC)]
                critics.apply_gradients(grads)
                makers.apply_gradients(makers.backward(fooled, no_grad_set=CRITIC))
                programs = [(self.main, loss.name)]
            elif way == "together":
                fooled = judged(fake, True)
                critics.minimize(loss, parameter_list=CRITIC)
                makers.minimize(fooled, parameter_list=["g.w", "g.b"])
                programs = [(self.main, fooled.name)]
            else:
                critics.minimize(loss, parameter_list=CRITIC)
                fooled = judged(fake, True)
                makers.minimize(fooled, parameter_list=["g.w", "g.b"])
                programs = [(self.main, loss.name)]
            fluid.Executor().run(startup)
            for name in SHAPES:
                self.scope[name] = first(name)
            self.steps = [run(program, name) for program, name in programs]

    def train(self, share: Callable[[Any], Any] = lambda x: x) -> dict[str, np.ndarray]:
        with fluid.scope_guard(self.scope):
            for step in range(STEPS):
                feed = {name: share(value) for name, value in given(step).items()}
                for number, run in enumerate(self.steps):
                    run(feed if number == 0 else {"z": feed["z"]})
        return {name: self.scope[name] for name in SHAPES}


def alone(program: fluid.Program, loss: str) -> Callable[..., Any]:
    exe = fluid.Executor()
    return lambda feed: exe.run(program, feed=feed)


def parallel(devices: int) -> Callable[[fluid.Program, str], Callable[..., Any]]:
    def make(program: fluid.Program, loss: str) -> Callable[..., Any]:
        build = fluid.BuildStrategy()
        build.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.BySamples
        exe = fluid.ParallelExecutor(loss_name=loss, main_program=program, build_strategy=build, devices=devices)
        return lambda feed: exe.run([], feed=feed)

    return make


def in_torch(*, one_after_the_other: bool) -> dict[str, np.ndarray]:
    """The same in PyTorch: the generator sees the critic after its step, or as it was before."""
    import torch

    p = {name: torch.tensor(first(name), requires_grad=True) for name in SHAPES}
    critics = torch.optim.Adam([p[name] for name in CRITIC], lr=RATES["d"])
    makers = torch.optim.SGD([p["g.w"], p["g.b"]], lr=RATES["g"], momentum=0.9)

    def fake(z: torch.Tensor) -> torch.Tensor:
        return torch.tanh(z @ p["g.w"] + p["g.b"])

    def judge(x: torch.Tensor, label: float) -> torch.Tensor:
        scores = torch.tanh(x @ p["d.w"] + p["d.b"]) @ p["e.w"] + p["e.b"]
        return torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))

    for step in range(STEPS):
        z, real = (torch.tensor(given(step)[name]) for name in ("z", "real"))
        d = torch.autograd.grad(judge(real, 1.0) + judge(fake(z), 0.0), [p[name] for name in CRITIC])
        own = [p["g.w"], p["g.b"]]
        g = None if one_after_the_other else torch.autograd.grad(judge(fake(z), 1.0), own)
        for name, grad in zip(CRITIC, d, strict=True):
            p[name].grad = grad
        critics.step()
        g = torch.autograd.grad(judge(fake(z), 1.0), own) if g is None else g
        for parameter, grad in zip(own, g, strict=True):
            parameter.grad = grad
        makers.step()
    return {name: value.detach().numpy() for name, value in p.items()}


def same(got: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    for name, value in right.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("devices", [0, 1, 4])
@pytest.mark.parametrize("way", ["programs", "together", "applied", "in turn"])
def test_a_gan_trains_as_in_torch(world: World, way: str, devices: int) -> None:
    make = parallel(devices) if devices else alone
    if way == "in turn" and devices:
        # What follows an update in the same program would have to wait for all replicas' updates.
        with pytest.raises(fluid.ProgramError, match="a program of its own"):
            Gan(way, make)
        return
    same(Gan(way, make).train(), in_torch(one_after_the_other=way in ("programs", "in turn")))


def on_ranks(way: str) -> dict[str, bytes]:
    rank, size = phalanx.rank(), phalanx.size()
    learned = Gan(way, parallel(2)).train(lambda value: np.array_split(value, size)[rank])
    return {name: value.tobytes() for name, value in learned.items()}


@pytest.mark.parametrize("way", ["programs", "together"])
def test_a_gan_trains_on_ranks_as_in_one_process(way: str) -> None:
    first_rank, second = run_ranks(2, on_ranks, way)
    assert first_rank == second
    right = Gan(way, parallel(4)).train()
    assert first_rank == {name: value.tobytes() for name, value in right.items()}
    same(right, in_torch(one_after_the_other=way == "programs"))


def two(world: World) -> tuple[fluid.Variable, fluid.Variable, fluid.Variable]:
    """Two losses of one parameter: their gradients are x and 3 x."""
    x = fluid.data("x", [None, 2])
    w = layers.create_parameter([2, 1], name="w", default_initializer=fluid.initializer.Constant(1.0))
    y = layers.matmul(x, w)
    return layers.mean(y), layers.mean(y * 3.0), w


ONES = {"x": np.ones([4, 2], "float32")}


@pytest.mark.parametrize("devices", [0, 2])
def test_each_loss_has_gradients_of_its_own(world: World, devices: int) -> None:
    one, three, _ = two(world)
    pairs = [fluid.append_backward(loss)[0][1] for loss in (one, three)]
    assert pairs[0].name == "w@GRAD" and pairs[1].name != pairs[0].name
    begin(world)
    if devices:
        exe = fluid.ParallelExecutor(loss_name=three.name, main_program=world.main, devices=devices)
        got = exe.run([fluid.Fetch(g, "first") for g in pairs], feed=ONES)
    else:
        got = fluid.Executor().run(world.main, feed=ONES, fetch_list=pairs)
    assert [g.ravel().tolist() for g in got] == [[1.0, 1.0], [3.0, 3.0]]


@pytest.mark.parametrize("devices", [0, 2])
def test_two_optimizers_of_one_parameter_each_follow_their_loss(world: World, devices: int) -> None:
    one, three, _ = two(world)
    fluid.optimizer.SGD(0.1).minimize(one)
    fluid.optimizer.SGD(0.01).minimize(three)
    begin(world)
    run = (parallel(devices) if devices else alone)(world.main, one.name)
    run(ONES)
    np.testing.assert_allclose(world.scope["w"].ravel(), 1.0 - 0.1 - 0.03, rtol=1e-6)
    assert [world.scope[name].item() for name in ("learning_rate", "learning_rate_1")] == pytest.approx([0.1, 0.01])
    assert [world.scope[name].item() for name in ("@STEP@", "@STEP@_1")] == [1, 1]


def test_a_loss_is_not_minimized_twice_by_mistake(world: World) -> None:
    one, _, _ = two(world)
    fluid.optimizer.SGD(0.1).minimize(one)
    before = str(world.main)
    with pytest.raises(fluid.ProgramError, match="`w` already has a gradient of") as caught:
        fluid.optimizer.SGD(0.1).minimize(one)
    assert caught.value.var == "w"
    assert str(world.main) == before


def test_one_loss_has_an_optimizer_for_each_group_of_parameters(world: World) -> None:
    x = fluid.data("x", [None, 2])
    a, b = (layers.create_parameter([2, 1], name=name, is_bias=True) for name in "ab")
    loss = layers.mean(layers.matmul(x, a) + layers.matmul(x, b))
    fluid.optimizer.SGD(0.5).minimize(loss, parameter_list=[a])
    fluid.optimizer.SGD(0.25).minimize(loss, parameter_list=["b"])
    begin(world)
    fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2).run([], feed=ONES)
    assert (world.scope["a"][0, 0], world.scope["b"][0, 0]) == (-0.5, -0.25)


def test_a_loss_of_two_moments_has_no_gradient(world: World) -> None:
    one, _, w = two(world)
    fluid.optimizer.SGD(0.1).minimize(one)
    after = layers.mean(layers.matmul(fluid.data("y", [None, 2]), w))
    with pytest.raises(fluid.ProgramError, match="before and after the update") as caught:
        fluid.optimizer.SGD(0.1).minimize(one + after)
    assert caught.value.var == "w"


@pytest.mark.parametrize("devices", [0, 2])
def test_gradients_that_a_script_has_changed_are_applied(world: World, devices: int) -> None:
    _, three, _w = two(world)
    optimizer = fluid.optimizer.SGD(0.5)
    ((found, grad),) = optimizer.backward(three)
    assert found.name == "w"
    optimizer.apply_gradients([(found, layers.clip(grad, -1.0, 1.0))])
    begin(world)
    (parallel(devices) if devices else alone)(world.main, three.name)(ONES)
    assert world.scope["w"].ravel().tolist() == [0.5, 0.5]
    assert world.main.clone(for_test=True).global_block().has_var(three.name)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"parameter_list": ["v"]}, fluid.ProgramError, "no variable `v`"),
        ({"parameter_list": ["x"]}, fluid.ProgramError, "`x` in parameter_list is not a parameter"),
        ({"parameter_list": ["w", "unused"]}, fluid.LossError, "`unused` is in parameter_list"),
        ({"parameter_list": ["w"], "no_grad_set": ["w"]}, fluid.ProgramError, "leave it out of the one or the other"),
        ({"parameter_list": [3]}, TypeError, "parameter_list must be a list of variables or names, not of int"),
        ({"no_grad_set": ["v"]}, fluid.ProgramError, "no variable `v`"),
        ({"no_grad_set": ["w"]}, fluid.LossError, "does not depend on any trainable parameter"),
    ],
)
def test_wrong_lists_of_parameters_are_refused(
    world: World, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    one, _, _ = two(world)
    layers.create_parameter([1], name="unused")
    before = str(world.main)
    for use in (fluid.optimizer.SGD(0.1).minimize, fluid.optimizer.SGD(0.1).backward, fluid.append_backward):
        with pytest.raises(error, match=said):
            use(one, **arguments)
        assert str(world.main) == before


def test_only_the_updates_that_are_fetched_run(world: World) -> None:
    x = fluid.data("x", [None, 2])
    a, b = (layers.create_parameter([2, 1], name=name, is_bias=True) for name in "ab")
    losses = [layers.mean(layers.matmul(x, v)) for v in (a, b)]
    made = [fluid.optimizer.SGD(0.5).minimize(loss) for loss in losses]
    begin(world)
    exe = fluid.Executor()
    exe.run(world.main, feed=ONES, fetch_list=[made[1]])
    assert (world.scope["a"][0, 0], world.scope["b"][0, 0]) == (0.0, -0.5)
    exe.run(world.main, feed=ONES, fetch_list=[made[0], made[1]])
    assert (world.scope["a"][0, 0], world.scope["b"][0, 0]) == (-0.5, -1.0)


def test_an_update_that_cannot_run_alone_is_refused(world: World) -> None:
    one, three, _ = two(world)
    made = [fluid.optimizer.SGD(0.5).minimize(loss) for loss in (one, three)]
    begin(world)
    with pytest.raises(fluid.FetchError, match="cannot run without the other"):
        fluid.Executor().run(world.main, feed=ONES, fetch_list=[made[1]])
    fluid.Executor().run(world.main, feed=ONES, fetch_list=made)
    assert world.scope["w"].ravel().tolist() == [-1.0, -1.0]
