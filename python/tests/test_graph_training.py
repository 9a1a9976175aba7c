"""Training: optimizers against their formulas, rates, clipping, sparse tables, layers with statistics, examples."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, parameters, world

import phalanx.graph as fluid

__all__ = ["world"]

EXAMPLES = Path(__file__).parents[2] / "examples"
W = np.array([[0.5], [-1.0], [2.0]])
STEPS = 5


def gradient(step: int, w: np.ndarray) -> np.ndarray:
    """That of ``mean((x w)^2)`` for what is fed in this step."""
    x = inputs(step)
    return 2 * x.T @ (x @ w) / len(x)


def inputs(step: int) -> np.ndarray:
    return np.random.default_rng(step).standard_normal([4, 3])


def sgd(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    return w - 0.1 * g


def momentum(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    s["v"] = 0.9 * s.get("v", 0) + g
    return w - 0.1 * s["v"]


def nesterov(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    s["v"] = 0.9 * s.get("v", 0) + g
    return w - 0.1 * (g + 0.9 * s["v"])


def adam(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int, decay: float = 0.0) -> np.ndarray:
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.99 * s.get("v", 0) + 0.01 * g * g
    m, v = s["m"] / (1 - 0.9**t), s["v"] / (1 - 0.99**t)
    return w - 0.1 * (m / (np.sqrt(v) + 1e-8) + decay * w)


def adamw(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    return adam(s, w, g, t, 0.01)


def adagrad(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    s["s"] = s.get("s", 0) + g * g
    return w - 0.1 * g / (np.sqrt(s["s"]) + 1e-6)


def l2(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    return w - 0.1 * (g + 0.5 * w)


def clipped(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    return w - 0.1 * np.clip(g, -0.25, 0.25)


def short(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    return w - 0.1 * g * min(1, 0.3 / np.linalg.norm(g))


def piecewise(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    return w - (0.1 if t <= 2 else 0.01) * g


def warm(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    return w - 0.1 * min(1, (t - 1) / 3) * g


def warmer(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    """Up to a rate that is not the one that follows."""
    return w - (0.5 * (t - 1) / 3 if t <= 3 else 0.1) * g


def waves(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    return w - 0.1 * 0.5 * (np.cos(np.pi * (t - 1) / 2) + 1) * g


def rmsprop(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    """Epsilon is under the root, and large enough to be seen."""
    s["s"] = 0.95 * s.get("s", 0) + 0.05 * g * g
    s["v"] = 0.5 * s.get("v", 0) + 0.1 * g / np.sqrt(s["s"] + 0.1)
    return w - s["v"]


def decayed(s: dict[str, Any], w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    """What decays is not clipped."""
    return w - 0.1 * (g * min(1, 0.3 / np.linalg.norm(g)) + 0.5 * w)


opt = fluid.optimizer
RULES: list[tuple[Callable[..., Any], Callable[[], fluid.optimizer.Optimizer]]] = [
    (sgd, lambda: opt.SGD(0.1)),
    (momentum, lambda: opt.Momentum(0.1, momentum=0.9)),
    (nesterov, lambda: opt.Momentum(0.1, momentum=0.9, use_nesterov=True)),
    (adam, lambda: opt.Adam(0.1, beta2=0.99)),
    (adamw, lambda: opt.AdamW(0.1, beta2=0.99)),
    (adagrad, lambda: opt.Adagrad(0.1)),
    (l2, lambda: opt.SGD(0.1, regularization=fluid.regularizer.L2Decay(0.5))),
    (clipped, lambda: opt.SGD(0.1, grad_clip=fluid.clip.GradientClipByValue(0.25))),
    (short, lambda: opt.SGD(0.1, grad_clip=fluid.clip.GradientClipByNorm(0.3))),
    (short, lambda: opt.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.3))),
    (piecewise, lambda: opt.SGD(fluid.layers.piecewise_decay([2], [0.1, 0.01]))),
    (warm, lambda: opt.SGD(fluid.layers.linear_lr_warmup(0.1, 3, 0.0, 0.1))),
    (warm, lambda: opt.SGD(fluid.layers.linear_lr_warmup(0.1, 3, 0.0))),
    (warmer, lambda: opt.SGD(fluid.layers.linear_lr_warmup(0.1, 3, 0.0, 0.5))),
    (waves, lambda: opt.SGD(fluid.layers.cosine_decay(0.1, 1, 2))),
    (rmsprop, lambda: opt.RMSProp(0.1, momentum=0.5, epsilon=0.1)),
    (
        decayed,
        lambda: opt.SGD(
            0.1, regularization=fluid.regularizer.L2Decay(0.5), grad_clip=fluid.clip.GradientClipByGlobalNorm(0.3)
        ),
    ),
]


@pytest.mark.parametrize(("rule", "make"), RULES, ids=[f"{i}-{rule.__name__}" for i, (rule, _) in enumerate(RULES)])
def test_optimizers_follow_their_formulas(world: World, rule: Callable[..., Any], make: Callable[[], Any]) -> None:
    x = fluid.data("x", [None, 3], "float64")
    y = fluid.layers.fc(x, 1, bias_attr=False)
    loss = fluid.layers.mean(fluid.layers.square(y))
    make().minimize(loss)
    begin(world)
    world.scope["fc_0.w_0"] = W
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2)
    w, state = W, {}
    for t in range(1, STEPS + 1):
        exe.run([], feed={"x": inputs(t)})
        w = rule(state, w, gradient(t, w), t)
        np.testing.assert_allclose(world.scope["fc_0.w_0"], w, rtol=1e-9, atol=1e-12, err_msg=f"step {t}")


@pytest.mark.parametrize(
    "make",
    [lambda: opt.RMSProp(0.05, momentum=0.5), lambda: opt.LarsMomentum(1.0, momentum=0.5, lars_coeff=0.05)],
    ids=["rmsprop", "lars"],
)
def test_the_other_optimizers_learn(world: World, make: Callable[[], Any]) -> None:
    _, loss = classifier()
    make().minimize(loss)
    begin(world)
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2)
    losses = [exe.run([fluid.Fetch(loss, "mean")], feed=batch(16))[0].item() for _ in range(60)]
    assert losses[-1] < losses[0] / 2


def table(world: World, sparse: bool, reduce: bool) -> dict[str, bytes]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()) as _:
        words = fluid.data("words", [None, 3], "int64")
        rows = fluid.layers.embedding(words, [50, 4], is_sparse=sparse, padding_idx=0)
        loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(rows, 1, num_flatten_dims=2)))
        fluid.optimizer.SGD(0.5).minimize(loss)
        fluid.Executor().run(startup)
        build = fluid.BuildStrategy()
        if reduce:
            build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, build_strategy=build, devices=3)
        random = np.random.default_rng(1)
        for _ in range(5):
            exe.run([loss], feed={"words": random.integers(50, size=[7, 3])})
        scope = fluid.global_scope()
        return {p.name: scope[p.name] for p in main.all_parameters()}


def test_sparse_tables_learn_what_dense_ones_learn(world: World) -> None:
    right = table(world, sparse=False, reduce=False)
    for reduce in (False, True):
        got = table(world, sparse=True, reduce=reduce)
        for name, value in right.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_momentum_moves_only_the_rows_that_a_run_has_used(world: World) -> None:
    """As its documentation says: in Paddle the others go on with their velocity."""
    words = fluid.data("words", [None, 1], "int64")
    rows = fluid.layers.embedding(words, [3, 2], is_sparse=True, param_attr="table")
    fluid.optimizer.Momentum(0.5, 0.9).minimize(fluid.layers.reduce_sum(rows))
    begin(world)
    exe = fluid.Executor()
    for row in (0, 1):
        before = world.scope["table"]
        exe.run(world.main, feed={"words": np.array([[row]])})
        others = [r for r in range(3) if r != row]
        assert np.array_equal(world.scope["table"][others], before[others])
        np.testing.assert_allclose(world.scope["table"][row], before[row] - 0.5, rtol=1e-6)


def test_a_transformer_block_learns(world: World) -> None:
    words = fluid.data("words", [None, 6], "int64")
    following = fluid.data("following", [None, 6, 1], "int64")
    mask = fluid.data("mask", [6, 6])
    x = fluid.layers.embedding(words, [12, 16], param_attr=fluid.initializer.Normal(0.0, 0.5))
    x = fluid.layers.layer_norm(x + fluid.layers.attention(x, num_heads=4, mask=mask), begin_norm_axis=2)
    x = x + fluid.layers.fc(fluid.layers.fc(x, 32, num_flatten_dims=2, act="gelu"), 16, num_flatten_dims=2)
    scores = fluid.layers.fc(fluid.layers.layer_norm(x, begin_norm_axis=2), 12, num_flatten_dims=2)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, following))
    fluid.optimizer.Adam(0.01).minimize(loss)
    begin(world)
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2)
    text = np.random.default_rng(0).integers(12, size=[8, 7])
    feed = {
        "words": text[:, :-1],
        "following": text[:, 1:, None],
        "mask": np.triu(np.full([6, 6], -1e9), 1).astype("float32"),
    }
    losses = [exe.run([fluid.Fetch(loss, "mean")], feed=feed)[0].item() for _ in range(80)]
    assert losses[0] > 2.0
    assert losses[-1] < 0.7


def test_images_batch_norm_and_pooling_learn(world: World) -> None:
    image = fluid.layers.data("image", [2, 8, 8])
    label = fluid.layers.data("label", [1], dtype="int64")
    x = fluid.layers.conv2d(image, 4, 3, padding=1, groups=2, bias_attr=False)
    x = fluid.layers.batch_norm(x, act="relu")
    x = fluid.layers.pool2d(x, 2, "avg", 2)
    x = fluid.layers.conv2d(x, 4, [3, 1], stride=[2, 1], act="tanh")
    x = fluid.layers.pool2d(x, pool_type="max", global_pooling=True)
    scores = fluid.layers.fc(x, 2)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))
    accuracy = fluid.layers.accuracy(scores, label)
    test = world.main.clone(for_test=True)
    fluid.optimizer.Adam(0.02).minimize(loss)
    begin(world)
    random = np.random.default_rng(0)
    right = random.integers(2, size=[16, 1])
    images = random.standard_normal([16, 2, 8, 8]).astype("float32")
    images[right[:, 0] == 1, 0] += 1.5
    feed = {"image": images, "label": right}
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2)
    for _ in range(60):
        exe.run([], feed=feed)
    tester = fluid.ParallelExecutor(main_program=test, share_vars_from=exe, devices=2)
    assert tester.run([fluid.Fetch(accuracy, "mean")], feed=feed)[0] >= 15 / 16
    before = world.scope["batch_norm_0.mean"]
    tester.run([], feed=feed)
    assert np.array_equal(world.scope["batch_norm_0.mean"], before)


def test_gradients_alone(world: World) -> None:
    _, loss = classifier(act="tanh")
    pairs = fluid.append_backward(loss, parameter_list=["fc_0.w_0"])
    assert [(p.name, g.name) for p, g in pairs] == [("fc_0.w_0", "fc_0.w_0@GRAD")]
    begin(world)
    exe, feed = fluid.Executor(), batch(5)
    grad, right = exe.run(world.main, feed=feed, fetch_list=[pairs[0][1], loss])
    w = world.scope["fc_0.w_0"]
    step = np.zeros_like(w)
    step[2, 3] = 1e-2
    around = []
    for sign in (1, -1):
        world.scope["fc_0.w_0"] = w + sign * step
        around.append(exe.run(world.main, feed=feed, fetch_list=[loss])[0].item())
    assert abs(grad[2, 3] - (around[0] - around[1]) / 2e-2) < 1e-3
    assert min(around) < right < max(around)


def test_dropout_does_not_depend_on_the_number_of_devices(world: World) -> None:
    x = fluid.data("x", [None, 32])
    y = fluid.layers.dropout(x, 0.5)
    ones = np.ones([8, 32], "float32")
    masks = []
    for devices in (1, 2, 4):
        exe = fluid.ParallelExecutor(main_program=world.main, devices=devices, scope=fluid.Scope(seed=3))
        masks.append(exe.run([y], feed={"x": ones})[0].tobytes())
    assert masks[0] == masks[1] == masks[2]
    other = fluid.ParallelExecutor(main_program=world.main, devices=2, scope=fluid.Scope(seed=4))
    assert other.run([y], feed={"x": ones})[0].tobytes() != masks[0]


def test_what_is_computed_again_has_the_same_bits(world: World) -> None:
    def train(checkpoints: list[int]) -> tuple[dict[str, bytes], int]:
        main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=1)
        with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
            x = fluid.data("x", [None, 8])
            hidden = [x]
            for _ in range(6):
                hidden.append(fluid.layers.dropout(fluid.layers.fc(hidden[-1], 64, act="tanh"), 0.2))
            loss = fluid.layers.mean(fluid.layers.fc(hidden[-1], 1))
            optimizer: Any = fluid.optimizer.Adam(0.01)
            if checkpoints:
                optimizer = fluid.optimizer.RecomputeOptimizer(optimizer)
                optimizer._set_checkpoints([hidden[i] for i in checkpoints])
            optimizer.minimize(loss)
            fluid.Executor().run(startup)
            exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, devices=2)
            for i in range(3):
                exe.run([loss], feed={"x": batch(256, seed=i)["x"]})
        return {p.name: scope[p.name].tobytes() for p in main.all_parameters()}, exe.arena_bytes()

    right, bytes_kept = train([])
    got, bytes_again = train([2, 4])
    assert got == right
    assert bytes_again < bytes_kept
    optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    _, loss = classifier()
    text = str(world.main)
    with pytest.raises(fluid.ProgramError, match="needs checkpoints"):
        optimizer.minimize(loss)
    optimizer._set_checkpoints(["no_such"])
    with pytest.raises(fluid.ProgramError, match="no_such"):
        optimizer.minimize(loss)
    assert str(world.main) == text


def test_pieces_one_after_another_learn_what_devices_learn(world: World) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.3).minimize(loss)

    def train(devices: int, pieces: int) -> dict[str, bytes]:
        begin(world)
        build = fluid.BuildStrategy()
        build.accumulate = pieces
        build.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.BySamples
        exe = fluid.ParallelExecutor(
            loss_name=loss.name, main_program=world.main, build_strategy=build, devices=devices
        )
        assert (exe.effective["accumulate"], exe.device_count) == (pieces, devices)
        for i in range(4):
            exe.run([], feed=batch(13, seed=i))
        return parameters(world)

    right = train(4, 1)
    assert train(2, 2) == right
    assert train(1, 4) == right


def example(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_lenet_reads_unseen_digits(tmp_path: Path) -> None:
    plot = tmp_path / "lenet.svg"
    said = example("graph_lenet.py", "--devices", "2", "--plot", str(plot))
    found = re.search(r"accuracy (\d+\.\d) % on 1000 unseen digits", said)
    assert found, said
    assert float(found[1]) > 97
    assert plot.read_text().count("<polyline") == 2


def test_the_language_model_learns(world: World) -> None:
    said = example("graph_words.py", "--devices", "2", "--steps", "150")
    found = re.search(r"perplexity (\d+) of 4000 words", said)
    assert found, said
    # Guessing by frequency alone gives about 400.
    assert int(found[1]) < 250


def test_nothing_is_learned_where_nothing_changes(world: World) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.0).minimize(loss)
    begin(world)
    before = parameters(world)
    fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2).run([], feed=batch(4))
    assert parameters(world) == before


def test_gradients_go_through_parts_and_scalars_of_both_shapes(world: World) -> None:
    a = np.random.default_rng(1).standard_normal([4, 3]).astype("float32")
    x = fluid.data("x", [None, 3])
    w = fluid.layers.create_parameter([3, 2], name="w")
    y = fluid.layers.matmul(x, w)
    loss = fluid.layers.mean(fluid.layers.square(y[:, 1])) + fluid.layers.fill_constant([1], "float32", 3.0)
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    before = world.scope["w"]
    value, grad = fluid.Executor().run(feed={"x": a}, fetch_list=[loss, "w@GRAD"])
    column = a @ before[:, 1]
    np.testing.assert_allclose(value, [3.0 + np.mean(column**2)], rtol=1e-5)
    np.testing.assert_allclose(grad[:, 1], 2 * a.T @ column / 4, rtol=1e-4, atol=1e-6)
    assert not grad[:, 0].any()
    np.testing.assert_allclose(world.scope["w"], before - np.float32(0.1) * grad, rtol=1e-5)
