"""Layers against PyTorch: values and gradients in float32 and float64, and gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import phalanx.graph as fluid

torch = pytest.importorskip("torch", reason="PyTorch is what layers are compared with")
F = torch.nn.functional
layers = fluid.layers


class Case(NamedTuple):
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: list[list[int]]
    # What is fed beside the inputs that have gradients.
    whole: dict[str, Any] = {}  # noqa: RUF012
    low: float = -2.0


IDS = np.array([2, 0, 1], "int64")
PLACES = np.array([[0, 1], [2, 3], [0, 1]], "int64")
MASK = np.array([[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 0]], "uint8")


def _torch_hsigmoid(x: Any, w: Any, b: Any) -> Any:
    """Class by class, node by node."""
    labels, classes, losses = [0, 3, 4], 5, []
    for i, label in enumerate(labels):
        leaf, total = label + classes, 0.0
        for bit in range(leaf.bit_length() - 1):
            node, right = (leaf >> (bit + 1)) - 1, (leaf >> bit) & 1
            score = x[i] @ w[node] + b[node]
            total = total + F.softplus(score) - right * score
        losses.append(total)
    return torch.stack(losses).reshape(3, 1)


def _torch_lstm(x: Any, w: Any, h: Any, c: Any, seen: Any) -> Any:
    """Paddle's equations: candidate, input, forget, output; gates see the cell."""
    hidden, cells, (wi, wf, wo) = [], [], seen.chunk(3)
    for k in range(x.shape[1]):
        g, i, f, o = (x[:, k] + h @ w).chunk(4, 1)
        c_new = torch.sigmoid(f + wf * c) * c + torch.sigmoid(i + wi * c) * F.relu(g)
        h = torch.sigmoid(o + wo * c_new) * torch.tanh(c_new)
        c = c_new
        hidden.append(h)
        cells.append(c)
    return torch.cat([torch.stack(hidden, 1), torch.stack(cells, 1)], 2)


def _lstm(*inputs: Any) -> Any:
    from phalanx.graph._adding import append_all

    form = {"reverse": False, "ragged": False, "peepholes": True}
    acts = {"gate": "Sigmoid", "cell": "Tanh", "candidate": "Relu"}
    hidden, cells, _ = append_all("PeepholeLstm", {**form, **acts}, list(inputs), "lstm")
    return layers.concat([hidden, cells], 2)


def _torch_gru(origin: bool) -> Callable[..., Any]:
    """Paddle's equations: update, reset, candidate; the reset gate acts on the state."""

    def states(x: Any, w: Any, h: Any) -> Any:
        size, out = h.shape[1], []
        both, new = w.flatten()[: 2 * size * size].reshape(size, -1), w.flatten()[2 * size * size :].reshape(size, -1)
        for k in range(x.shape[1]):
            u, r = torch.sigmoid(x[:, k, : 2 * size] + h @ both).chunk(2, 1)
            c = torch.tanh(x[:, k, 2 * size :] + (r * h) @ new)
            h = u * h + (1 - u) * c if origin else (1 - u) * h + u * c
            out.append(h)
        return torch.stack(out, 1)

    return states


def _gru(origin: bool) -> Callable[..., Any]:
    form = {"reverse": False, "ragged": False, "origin": origin, "gate": "Sigmoid", "candidate": "Tanh"}
    return _op("ResetGru", form)


def _op(kind: str, form: Any) -> Callable[..., Any]:
    from phalanx.graph._adding import append

    return lambda *inputs: append(kind, form, list(inputs), kind.lower())


CASES = {
    "dynamic_lstm": Case(_lstm, _torch_lstm, [[2, 3, 8], [2, 8], [2, 2], [2, 2], [6]]),
    "dynamic_gru": Case(_gru(False), _torch_gru(False), [[2, 3, 6], [2, 6], [2, 2]]),
    "dynamic_gru of the paper": Case(_gru(True), _torch_gru(True), [[2, 3, 6], [2, 6], [2, 2]]),
    "mul": Case(lambda x, y: layers.mul(x, y, 2, 1), lambda x, y: x @ y, [[2, 3, 4], [4, 5]]),
    "sum": Case(lambda x, y: layers.sum([x, y, x]), lambda x, y: x + y + x, [[2, 3], [2, 3]]),
    "expand": Case(lambda x: layers.expand(x, [2, 1, 3]), lambda x: x.repeat(2, 1, 3), [[2, 3, 4]]),
    "pad": Case(lambda x: layers.pad(x, [1, 2, 0, 3], 0.5), lambda x: F.pad(x, (0, 3, 1, 2), value=0.5), [[2, 3]]),
    "pad2d": Case(
        lambda x: layers.pad2d(x, [1, 0, 2, 1], pad_value=0.5),
        lambda x: F.pad(x, (2, 1, 1, 0), value=0.5),
        [[2, 2, 3, 4]],
    ),
    "pad2d with channels last": Case(
        lambda x: layers.pad2d(x, [1, 0, 2, 1], data_format="NHWC"),
        lambda x: F.pad(x, (0, 0, 2, 1, 1, 0)),
        [[2, 3, 4, 2]],
    ),
    "expand_as": Case(
        lambda x, y: layers.expand_as(x, y) * y, lambda x, y: x.repeat(2, 1, 3) * y, [[2, 3, 1], [4, 3, 3]]
    ),
    "maxout": Case(lambda x: layers.maxout(x, 2), lambda x: x.reshape(2, 3, 2, 4, 3).amax(2), [[2, 6, 4, 3]]),
    "maxout of the last axis": Case(
        lambda x: layers.maxout(x, 3, axis=-1), lambda x: x.reshape(2, 4, 2, 3).amax(3), [[2, 4, 6]]
    ),
    "pixel_shuffle": Case(lambda x: layers.pixel_shuffle(x, 2), lambda x: F.pixel_shuffle(x, 2), [[2, 8, 3, 2]]),
    "gelu by tanh": Case(lambda x: layers.gelu(x, approximate=True), lambda x: F.gelu(x, approximate="tanh"), [[3, 4]]),
    "swish with beta": Case(lambda x: layers.swish(x, 1.7), lambda x: x * torch.sigmoid(1.7 * x), [[3, 4]]),
    "hard_sigmoid": Case(
        lambda x: layers.hard_sigmoid(x, 0.5, 0.25), lambda x: torch.clamp(0.5 * x + 0.25, 0, 1), [[3, 4]]
    ),
    "relu6 with a threshold": Case(lambda x: layers.relu6(x, 1.5), lambda x: torch.clamp(x, 0, 1.5), [[3, 4]]),
    "ignored targets": Case(
        lambda x, y: layers.sigmoid_cross_entropy_with_logits(x, layers.cast(y, x.dtype), -1, normalize=True),
        lambda x, y: (
            F.binary_cross_entropy_with_logits(x, y.clamp(min=0).to(x.dtype), reduction="none")
            * (y >= 0)
            / (y >= 0).sum()
        ),
        [[3, 4]],
        {"y": np.array([[1, 0, -1, 1], [0, -1, 1, 0], [1, 1, 0, -1]], "int64")},
    ),
    "x @ w": Case(lambda x, w: x @ w, lambda x, w: x @ w, [[3, 4], [4, 2]]),
    "where": Case(
        lambda x, y, m: layers.where(layers.cast(m, "bool"), x, y),
        lambda x, y, m: torch.where(m.bool(), x, y),
        [[3, 4], [3, 4]],
        {"m": MASK},
    ),
    "reduce_prod": Case(lambda x: layers.reduce_prod(x, 1), lambda x: x.prod(1), [[3, 4, 2]]),
    "argsort": Case(
        lambda x: layers.argsort(x, 1, descending=True)[0],
        lambda x: x.sort(1, descending=True).values,
        [[3, 4, 2]],
    ),
    "topk": Case(lambda x: layers.topk(x, 2)[0], lambda x: x.topk(2).values, [[3, 5]]),
    "scatter": Case(
        lambda x, u, i: layers.scatter(x, i, u),
        lambda x, u, i: x.index_put((i,), u),
        [[4, 2], [3, 2]],
        {"i": IDS},
    ),
    "gather_nd": Case(
        lambda x, p: layers.gather_nd(x, p), lambda x, p: x[p[:, 0], p[:, 1]], [[3, 4, 2]], {"p": PLACES}
    ),
    "cumsum": Case(lambda x: layers.cumsum(x, 1), lambda x: x.cumsum(1), [[2, 4, 3]]),
    "cumsum from the end": Case(
        lambda x: layers.cumsum(x, 1, exclusive=True, reverse=True),
        lambda x: x.flip(1).cumsum(1).flip(1) - x,
        [[2, 4, 3]],
    ),
    "cos_sim": Case(layers.cos_sim, lambda x, y: F.cosine_similarity(x, y, 1).unsqueeze(1), [[3, 4], [3, 4]]),
    "l2_normalize": Case(lambda x: layers.l2_normalize(x, 1), lambda x: F.normalize(x, dim=1), [[3, 4]]),
    "label_smooth": Case(
        lambda x: layers.label_smooth(x, epsilon=0.2, dtype=x.dtype), lambda x: x * 0.8 + 0.05, [[3, 4]]
    ),
    "log_loss": Case(
        lambda x, y: layers.log_loss(x, y),
        lambda x, y: -y * torch.log(x + 1e-4) - (1 - y) * torch.log(1 + 1e-4 - x),
        [[3, 1], [3, 1]],
        low=0.1,
    ),
    "conv2d_transpose": Case(
        lambda x, w: _op(
            "Conv2dInputGrad",
            {
                "conv": {"stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "groups": 2},
                "shape": [{"Fixed": 2}, {"Fixed": 6}, {"Fixed": 7}, {"Fixed": 7}],
            },
        )(w, x),
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=2),
        [[2, 4, 4, 4], [4, 3, 3, 3]],
    ),
    "adaptive max": Case(
        lambda x: layers.adaptive_pool2d(x, [2, 3], "max"),
        lambda x: F.adaptive_max_pool2d(x, (2, 3)),
        [[2, 2, 5, 7]],
    ),
    "adaptive mean": Case(
        lambda x: layers.adaptive_pool2d(x, [2, 3], "avg"),
        lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
        [[2, 2, 5, 7]],
    ),
    "pool with ceil": Case(
        lambda x: layers.pool2d(x, 3, "max", 2, 1, ceil_mode=True),
        lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        [[2, 2, 6, 8]],
    ),
    "mean with ceil": Case(
        lambda x: layers.pool2d(x, 3, "avg", 2, 1, ceil_mode=True, exclusive=False),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=True),
        [[2, 2, 6, 8]],
    ),
    "mean without padding": Case(
        lambda x: layers.pool2d(x, 3, "avg", 2, 1, ceil_mode=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        [[2, 2, 6, 8]],
    ),
    "group_norm": Case(
        lambda x: layers.group_norm(x, 2, param_attr=False, bias_attr=False),
        lambda x: F.group_norm(x, 2),
        [[2, 4, 3, 2]],
    ),
    "group_norm with channels last": Case(
        lambda x: layers.group_norm(x, 2, data_layout="NHWC"),
        lambda x: F.group_norm(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1),
        [[2, 3, 2, 4]],
    ),
    "instance_norm": Case(
        lambda x: layers.instance_norm(x, param_attr=False, bias_attr=False),
        lambda x: F.instance_norm(x),
        [[2, 3, 4, 3]],
    ),
    "hsigmoid": Case(
        lambda x, w, b, label: _op("HSigmoid", {"classes": 5})(x, w, b, label),
        lambda x, w, b, label: _torch_hsigmoid(x, w, b),
        [[3, 4], [4, 4], [4]],
        {"label": np.array([[0], [3], [4]], "int64")},
    ),
    "softmax of an axis": Case(lambda x: layers.softmax(x, axis=1), lambda x: x.softmax(1), [[2, 3, 4]]),
    "soft labels": Case(
        lambda x, y: layers.softmax_with_cross_entropy(x, layers.softmax(y), soft_label=True),
        lambda x, y: -(y.softmax(-1) * x.log_softmax(-1)).sum(-1, keepdim=True),
        [[3, 4], [3, 4]],
    ),
    "both outputs of the fused loss": Case(
        lambda x, i: layers.elementwise_mul(
            *reversed(layers.softmax_with_cross_entropy(x, i, return_softmax=True)), axis=0
        ),
        lambda x, i: x.softmax(-1) * F.cross_entropy(x, i, reduction="none").unsqueeze(1),
        [[3, 4]],
        {"i": IDS},
    ),
    "matmul with one axis": Case(layers.matmul, lambda x, y: x @ y, [[4], [2, 4, 3]]),
    "matmul that repeats": Case(layers.matmul, lambda x, y: x @ y, [[2, 1, 3, 4], [5, 4, 2]]),
    "powers and quotients": Case(lambda x: (1.0 / x) + x**3 + 2.0**x, lambda x: 1 / x + x**3 + 2**x, [[3, 4]], low=0.5),
    "x % y": Case(lambda x, y: x % y, lambda x, y: torch.remainder(x, y), [[3, 4], [3, 4]], low=0.6),
    "prelu": Case(
        lambda x: layers.prelu(x, "channel", fluid.ParamAttr(initializer=fluid.initializer.Constant(0.3))),
        lambda x: F.prelu(x, torch.full((3,), 0.3, dtype=x.dtype)),
        [[2, 3, 4]],
    ),
    "smooth_l1": Case(
        lambda x, y: layers.smooth_l1(x, y),
        lambda x, y: F.smooth_l1_loss(x, y, reduction="none").sum(1, keepdim=True),
        [[3, 4], [3, 4]],
    ),
    "kldiv_loss": Case(
        lambda x, y: layers.kldiv_loss(x, layers.softmax(y), "batchmean"),
        lambda x, y: F.kl_div(x, y.softmax(-1), reduction="batchmean"),
        [[3, 4], [3, 4]],
    ),
    "batch norm with learned statistics": Case(
        lambda x: layers.batch_norm(x, use_global_stats=True),
        lambda x: F.batch_norm(x, torch.zeros(3, dtype=x.dtype), torch.ones(3, dtype=x.dtype)),
        [[2, 3, 4, 2]],
    ),
}


class Ran(NamedTuple):
    value: Any
    gradients: list[Any]
    again: Callable[[list[Any]], Any]


def _ours(case: Case, arrays: list[Any], weights: Any, dtype: str) -> Ran:
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.scope_guard(scope):
        xs = [fluid.data(f"x{i}", list(a.shape), dtype) for i, a in enumerate(arrays)]
        fixed = [fluid.data(k, list(v.shape), v.dtype.name) for k, v in case.whole.items()]
        out = case.ours(*xs, *fixed)
        given = fluid.data("weights", list(out.shape), dtype)
        found = fluid.gradients([out], xs, [given])
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        test = main.clone(for_test=True)

        def run(program: Any, at: list[Any], fetch: list[Any]) -> Any:
            feed = {f"x{i}": a for i, a in enumerate(at)} | case.whole | {"weights": weights.reshape(out.shape)}
            with fluid.scope_guard(scope):
                return exe.run(program, feed, fetch)

        value, *gradients = run(main, arrays, [out, *found])
        return Ran(value, gradients, lambda at: float((run(test, at, [out.name])[0].ravel() * weights.ravel()).sum()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_a_layer_computes_what_pytorch_does(name: str, dtype: str) -> None:
    case = CASES[name]
    random = np.random.default_rng(len(name))
    arrays = [
        random.uniform(case.low, max(case.low + 0.7, 2.0 if case.low < 0.6 else 1.9), s).astype(dtype)
        for s in case.shapes
    ]
    if name == "log_loss":
        arrays = [random.uniform(0.1, 0.9, s).astype(dtype) for s in case.shapes]
    inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    theirs = case.theirs(*inputs, *(torch.tensor(v) for v in case.whole.values()))
    weights = random.standard_normal(tuple(theirs.shape)).astype(dtype)
    (theirs * torch.tensor(weights)).sum().backward()
    ran = _ours(case, arrays, weights, dtype)
    near: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5} if dtype == "float32" else {"rtol": 1e-9, "atol": 1e-11}
    np.testing.assert_allclose(ran.value.reshape(theirs.shape), theirs.detach().numpy(), **near)
    for x, mine in zip(inputs, ran.gradients, strict=True):
        np.testing.assert_allclose(mine.reshape(x.shape), x.grad.numpy(), **near)
    if dtype == "float64":
        _check_slopes(ran, arrays)


def _check_slopes(ran: Ran, arrays: list[Any]) -> None:
    """Some elements of each gradient against differences."""
    for k, array in enumerate(arrays):
        for at in range(0, array.size, max(1, array.size // 4)):
            sides = []
            for step in (1e-6, -1e-6):
                moved = [a.copy() for a in arrays]
                moved[k].ravel()[at] += step
                sides.append(ran.again(moved))
            slope = (sides[0] - sides[1]) / 2e-6
            assert abs(slope - ran.gradients[k].ravel()[at]) < 1e-5 * (1 + abs(slope)), (k, at)


def _run(build: Callable[[], Any], feed: dict[str, Any]) -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope(seed=3)):
        out = build()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        return exe.run(fluid.default_main_program(), feed, list(out) if isinstance(out, tuple) else [out])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_whole_numbers_are_computed_as_python_does(dtype: str) -> None:
    a, b = np.array([7, -7, 7, -7, 2**30], dtype), np.array([2, 2, -2, -2, 3], dtype)

    def build() -> Any:
        x, y = fluid.data("x", [5], dtype), fluid.data("y", [5], dtype)
        return x + y, x - y, x * y, x // y, x % y, layers.elementwise_max(x, y), -x, 3 - x, x * 2

    got = _run(build, {"x": a, "y": b})
    for mine, wanted in zip(got, [a + b, a - b, a * b, a // b, a % b, np.maximum(a, b), -a, 3 - a, a * 2], strict=True):
        np.testing.assert_array_equal(mine, wanted)
    with pytest.raises(fluid.OpError, match="divisor is zero"):
        _run(lambda: fluid.data("x", [5], dtype) % fluid.data("y", [5], dtype), {"x": a, "y": b * 0})


def test_metrics_of_sequences_and_places() -> None:
    words = [[11, 9, 20, 20, 5, 14], [1, 2]]
    truth = [[19, 9, 20, 20, 9, 14, 7], [1, 2]]

    def build() -> Any:
        a = layers.data("a", [1], dtype="int64", lod_level=1, max_length=6)
        b = layers.data("b", [1], dtype="int64", lod_level=1, max_length=7)
        return layers.edit_distance(a, b, normalized=False)

    column = [[[w] for w in s] for s in words], [[[w] for w in s] for s in truth]
    distance, count = _run(build, {"a": column[0], "b": column[1]})
    assert distance.ravel().tolist() == [3.0, 0.0]
    assert count.tolist() == [2]


def test_noise_is_told_from_words() -> None:
    """The loss of nce falls, and a class that is right more often has a higher score."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope(seed=5)):
        x = fluid.data("x", [None, 4])
        label = fluid.data("label", [None, 1], "int64")
        loss = layers.mean(layers.nce(x, label, 20, num_neg_samples=5, param_attr="w", is_sparse=True))
        fluid.optimizer.SGD(0.5).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        rows = np.eye(4, dtype="float32").repeat(2, 0)
        feed = {"x": rows, "label": np.arange(4, dtype="int64").repeat(2).reshape(-1, 1)}
        losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(60)]
        scores = rows @ np.asarray(fluid.global_scope()["w"]).T
    assert losses[-1] < 0.6 * losses[0]
    assert (scores.argmax(1) == feed["label"].ravel()).all()


def _nce(sampler: str, dtype: str, at: dict[str, Any]) -> list[Any]:
    """The costs, the classes that were drawn, and the gradients of input, weights and biases. Each call draws the same."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope(seed=7)):
        x = fluid.data("x", [3, 4], dtype)
        label = fluid.data("label", [3, 1], "int64")
        first = {k: fluid.ParamAttr(k, fluid.initializer.NumpyArrayInitializer(at[k])) for k in ("w", "b")}
        cost = layers.nce(x, label, 6, param_attr=first["w"], bias_attr=first["b"], num_neg_samples=5, sampler=sampler)
        main = fluid.default_main_program()
        (joined,) = (op for op in main.global_block().ops if op.kind == "Concat")
        wanted = [x, *(main.global_block().var(k) for k in ("w", "b"))]
        found = fluid.gradients([layers.reduce_sum(cost)], wanted)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        feed = {"x": at["x"], "label": np.array([[0], [5], [3]], "int64")}
        return exe.run(main, feed, [cost, joined.outputs[0], *found])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sampler", ["uniform", "log_uniform"])
def test_noise_costs_what_the_formula_says(sampler: str, dtype: str) -> None:
    random = np.random.default_rng(8)
    at = {k: random.standard_normal(s).astype(dtype) for k, s in {"x": [3, 4], "w": [6, 4], "b": [6, 1]}.items()}
    cost, ids, *gradients = _nce(sampler, dtype, at)
    assert ids[:, 0].tolist() == [0, 5, 3] and ids.min() >= 0 and ids.max() <= 5
    x, w, b = (torch.tensor(at[k], requires_grad=True) for k in ("x", "w", "b"))
    drawn = torch.tensor(ids)
    o = torch.sigmoid((w[drawn] * x[:, None]).sum(2) + b[drawn, 0])
    rows = drawn.to(o.dtype)
    e = 5 * (torch.full_like(o, 1 / 6) if sampler == "uniform" else torch.log((rows + 2) / (rows + 1)) / np.log(7.0))
    theirs = -torch.log(o[:, :1] / (o + e)[:, :1]) - torch.log(e / (o + e))[:, 1:].sum(1, keepdim=True)
    theirs.sum().backward()
    near: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5} if dtype == "float32" else {"rtol": 1e-9, "atol": 1e-11}
    np.testing.assert_allclose(cost, theirs.detach().numpy(), **near)
    for mine, known in zip(gradients, (x, w, b), strict=True):
        np.testing.assert_allclose(mine, known.grad.numpy(), **near)
    if dtype == "float64":

        def again(moved: list[Any]) -> float:
            return float(_nce(sampler, dtype, dict(zip(("x", "w", "b"), moved, strict=True)))[0].sum())

        _check_slopes(Ran(cost, gradients, again), list(at.values()))


def test_what_layers_cannot_do_says_what_to_write() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 4])
        image = fluid.data("image", [None, 3, 5, 5])
        refused: list[tuple[Callable[[], Any], str]] = [
            (lambda: layers.where(x > 0.0), r"where\(condition, x, y\)"),
            (lambda: layers.shape(x), "fill_constant_batch_size_like"),
            (lambda: layers.expand(x, [2, 1]), "batch .* cannot be repeated"),
            (lambda: layers.pad(x, [1, 1, 0, 0]), "batch"),
            (lambda: layers.pad(x, [1, 1]), "needs 4 numbers"),
            (lambda: layers.prelu(x, "none"), "choose one of all, channel, element"),
            (lambda: layers.conv2d_transpose(image, 3), "filter_size or output_size"),
            (lambda: layers.conv2d_transpose(image, 3, output_size=99, filter_size=3), "not \\[99, 99\\]"),
            (lambda: layers.group_norm(image, 2), "2 equal groups"),
            (lambda: layers.pool2d(image, 2, "median"), "max or avg"),
            (lambda: layers.nce(x, x, 5, sampler="custom_dist"), "uniform or log_uniform"),
            (lambda: layers.zeros_like(x, out=x), "in place"),
            (lambda: layers.conv2d(image, 3, 3, padding="SAMES"), "'SAME' and 'VALID'"),
        ]
        for wrong, says in refused:
            with pytest.raises(fluid.ProgramError, match=says):
                wrong()
        for name, says in [
            ("While", "while_loop"),
            ("IfElse", "cond"),
            ("StaticRNN", "dynamic_lstm"),
            ("array_write", "concat or stack"),
        ]:
            with pytest.raises(AttributeError, match=says):
                getattr(layers, name)


def test_transposed_convolutions_lose_what_padding_says() -> None:
    image = np.random.default_rng(1).standard_normal([2, 3, 5, 4]).astype("float32")
    weights = np.random.default_rng(2).standard_normal([3, 2, 3, 3]).astype("float32")
    attr = fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(weights))

    def build() -> Any:
        x, last = fluid.data("x", [None, 3, 5, 4]), fluid.data("last", [None, 5, 4, 3])

        def layer(given: Any, padding: Any, data_format: str = "NCHW") -> Any:
            way = {"stride": 2, "padding": padding, "param_attr": attr, "bias_attr": False, "data_format": data_format}
            return layers.conv2d_transpose(given, 2, filter_size=3, **way)

        ways = [layer(x, padding) for padding in ("SAME", "VALID", [1, 0, 0, 2], [[0, 0], [0, 0], [1, 0], [0, 2]])]
        return *ways, layer(last, "SAME", "NHWC"), layer(last, 1, "NHWC")

    same, valid, four, pairs, last, one = _run(build, {"x": image, "last": image.transpose(0, 2, 3, 1)})
    whole = F.conv_transpose2d(torch.tensor(image), torch.tensor(weights), stride=2).numpy()
    assert whole.shape == (2, 2, 11, 9)
    near = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(valid, whole, **near)
    # Five rows: two are lost, one on each side; four columns: one is lost, after them.
    np.testing.assert_allclose(same, whole[:, :, 1:10, :8], **near)
    np.testing.assert_allclose(four, whole[:, :, 1:, :7], **near)
    np.testing.assert_array_equal(four, pairs)
    np.testing.assert_array_equal(last, same.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(one, whole[:, :, 1:10, 1:8].transpose(0, 2, 3, 1), **near)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 3, 5, 4])
        for wrong, says in [
            ({"padding": "SAME", "output_size": 10}, "needs filter_size"),
            ({"padding": "SAME", "filter_size": 3, "dilation": 2}, "dilation=1"),
            ({"padding": [1, 0, 0, 0], "filter_size": 3, "output_size": 10}, "leave one of them out"),
            ({"padding": "SAMES", "filter_size": 3}, "'SAME' and 'VALID'"),
        ]:
            with pytest.raises(fluid.ProgramError, match=says):
                layers.conv2d_transpose(x, 2, **wrong)


def test_same_padding_and_channels_last_are_those_of_pytorch() -> None:
    image = np.random.default_rng(1).standard_normal([2, 7, 6, 3]).astype("float32")
    weights = np.random.default_rng(2).standard_normal([4, 3, 3, 2]).astype("float32")
    attr = fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(weights))

    def build() -> Any:
        x = fluid.data("x", [None, 7, 6, 3])
        same = layers.conv2d(x, 4, [3, 2], padding="SAME", param_attr=attr, bias_attr=False, data_format="NHWC")
        return same, layers.pool2d(x, 2, "max", 2, data_format="NHWC")

    same, pool = _run(build, {"x": image})
    turned = torch.tensor(image).permute(0, 3, 1, 2)
    wanted = F.conv2d(turned, torch.tensor(weights), padding="same").permute(0, 2, 3, 1)
    np.testing.assert_allclose(same, wanted.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(pool, F.max_pool2d(turned, 2).permute(0, 2, 3, 1).numpy())
