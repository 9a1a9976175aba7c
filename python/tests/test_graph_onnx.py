"""ONNX models from Python: exported by torch, imported, trained, written back, and run by another runtime."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phalanx.graph as fluid
from phalanx.graph.errors import SavedError

torch = pytest.importorskip("torch", reason="PyTorch exports the models")
for package in ("onnx", "onnxscript"):
    pytest.importorskip(package, reason="torch exports models with it")
onnxruntime = pytest.importorskip("onnxruntime", reason="it runs what is written back")

STEPS, RATE = 5, 0.1


def _model() -> Any:
    torch.manual_seed(3)
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


def _exported(model: Any, x: Any) -> bytes:
    written = io.BytesIO()
    torch.onnx.export(
        model,
        (x,),
        written,
        input_names=["x"],
        output_names=["scores"],
        dynamic_axes={"x": {0: "batch"}},
        dynamo=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
        opset_version=17,
    )
    return written.getvalue()


def _data() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.standard_normal([8, 2, 6, 6]).astype("float32"), random.integers(3, size=[8, 1])


def test_a_model_of_torch_is_trained_and_written_back(tmp_path: Path) -> None:
    model, (x, label) = _model(), _data()
    # A norm that has seen nothing has means like its shift, and the exporter would write both as one.
    model(torch.tensor(x))
    model.eval()
    file = _exported(model, torch.tensor(x))
    scope, startup = fluid.Scope(), fluid.Program()
    with fluid.scope_guard(scope), fluid.program_guard(fluid.Program(), startup):
        known = fluid.onnx.import_model(file, norms="as_written")
        with fluid.program_guard(known.program, startup):
            y = fluid.data("label", [None, 1], "int64")
            loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(known.outputs[0], y))
            test = known.program.clone(for_test=True)
            fluid.optimizer.SGD(RATE).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        feed = {known.inputs[0]: x, "label": label}
        exe.run(startup)
        two = fluid.CompiledProgram(known.program).with_data_parallel(loss.name, places=fluid.cpu_places(2))
        losses = [float(np.mean(exe.run(two, feed, [loss])[0])) for _ in range(STEPS)]
        scores = exe.run(test, feed, [known.outputs[0].name])[0]
        to = tmp_path / "trained.onnx"
        written = fluid.onnx.export_model(file, to, model=known)
    assert set(known.parameters) <= set(written)
    # The twin learns scale and shift with the statistics that the file has.
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    wanted = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        cost = torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(label).ravel())
        cost.backward()
        optimizer.step()
        wanted.append(cost.item())
    np.testing.assert_allclose(losses, wanted, rtol=2e-4)
    (run,) = onnxruntime.InferenceSession(str(to), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(run, scores, rtol=1e-3, atol=1e-4)


def test_what_is_no_model_says_so(tmp_path: Path) -> None:
    with fluid.scope_guard(fluid.Scope()):
        with pytest.raises(SavedError, match="No such file"):
            fluid.onnx.import_model(tmp_path / "none.onnx")
        with pytest.raises(SavedError, match="the model"):
            fluid.onnx.import_model(b"not a model")
        with pytest.raises(ValueError, match="choose 'learn'"):
            fluid.onnx.import_model(b"", norms="sometimes")


class _Recurrent(torch.nn.Module):
    def __init__(self, cell: str, bidirectional: bool) -> None:
        super().__init__()
        kind = torch.nn.LSTM if cell == "LSTM" else torch.nn.GRU
        self.table = torch.nn.Embedding(11, 4)
        self.cell = kind(4, 5, batch_first=True, bidirectional=bidirectional)
        self.last = torch.nn.Linear(10 if bidirectional else 5, 3)

    def forward(self, x: Any) -> Any:
        states, _ = self.cell(self.table(x))
        return self.last(states[:, -1] + states.mean(1))


class _Images(torch.nn.Module):
    """Everything else that the table of operations names: each is part of what is learned."""

    def __init__(self, mode: str, ceil: bool) -> None:
        super().__init__()
        nn = torch.nn
        self.line = nn.Conv1d(3, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.group, self.instance = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)
        self.bend, self.pool = nn.PReLU(4), nn.MaxPool2d(2, ceil_mode=ceil)
        more: dict[str, Any] = {} if mode == "nearest" else {"align_corners": False}
        self.resize = nn.Upsample(scale_factor=1.5, mode=mode, **more)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        y = self.line(x.flatten(2)).unflatten(2, x.shape[2:])
        y = self.bend(self.instance(self.group(self.up(torch.nn.functional.hardswish(y)))))
        y = self.resize(self.pool(y))
        y = torch.where(y > 0.1, y, 0.5 * y).cumsum(3)
        y = torch.tril(y, 1) + torch.triu(y, -1)
        return self.last(y.mean((2, 3)))


def _learned(model: Any, x: Any, tmp_path: Path, rtol: float = 2e-4, rate: float = RATE) -> None:
    """Losses of five steps, and what another runtime says of the file that is written back."""
    label = np.random.default_rng(1).integers(3, size=[len(x), 1])
    model.eval()
    file = _exported(model, torch.tensor(x))
    scope, startup = fluid.Scope(), fluid.Program()
    with fluid.scope_guard(scope), fluid.program_guard(fluid.Program(), startup):
        known = fluid.onnx.import_model(file, norms="as_written")
        with fluid.program_guard(known.program, startup):
            y = fluid.data("label", [None, 1], "int64")
            loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(known.outputs[0], y))
            test = known.program.clone(for_test=True)
            fluid.optimizer.SGD(rate).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        feed = {known.inputs[0]: x, "label": label}
        exe.run(startup)
        losses = [float(np.mean(exe.run(known.program, feed, [loss])[0])) for _ in range(STEPS)]
        scores = exe.run(test, feed, [known.outputs[0].name])[0]
        to = tmp_path / "trained.onnx"
        fluid.onnx.export_model(file, to, model=known)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    wanted = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        cost = torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(label).ravel())
        cost.backward()
        optimizer.step()
        wanted.append(cost.item())
    np.testing.assert_allclose(losses, wanted, rtol=rtol)
    assert losses[-1] < losses[0]
    (run,) = onnxruntime.InferenceSession(str(to), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(run, scores, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_recurrent_models_of_torch_learn(cell: str, bidirectional: bool, tmp_path: Path) -> None:
    torch.manual_seed(4)
    x = np.random.default_rng(0).integers(11, size=[6, 7])
    _learned(_Recurrent(cell, bidirectional), x, tmp_path)


@pytest.mark.parametrize(("mode", "ceil"), [("nearest", False), ("bilinear", True)])
def test_images_are_resized_cut_and_normalised_as_torch_does(mode: str, ceil: bool, tmp_path: Path) -> None:
    torch.manual_seed(5)
    x = np.random.default_rng(0).standard_normal([4, 3, 5, 5]).astype("float32")
    _learned(_Images(mode, ceil), x, tmp_path, rtol=1e-3, rate=0.01)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_a_gru_that_resets_before_the_product(direction: str, ragged: bool) -> None:
    """PyTorch exports no such GRU; the other runtime says what is right."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random, (time, n, width, h) = np.random.default_rng(0), (4, 3, 2, 3)
    d = 2 if direction == "bidirectional" else 1
    shapes = {"w": [d, 3 * h, width], "r": [d, 3 * h, h], "b": [d, 6 * h]}
    weights = [numpy_helper.from_array(random.standard_normal(s).astype("float32"), k) for k, s in shapes.items()]
    node = helper.make_node(
        "GRU",
        ["x", "w", "r", "b", *(["lengths"] if ragged else [])],
        ["y", "last"],
        hidden_size=h,
        direction=direction,
        activations=["Sigmoid", "Tanh"] * d,
    )
    fed = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [time, "batch", width])]
    feed: dict[str, Any] = {"x": random.standard_normal([time, n, width]).astype("float32")}
    before = []
    if ragged:
        fed.append(helper.make_tensor_value_info("many", TensorProto.INT64, ["batch"]))
        before.append(helper.make_node("Cast", ["many"], ["lengths"], to=TensorProto.INT32))
        feed["many"] = np.array([4, 1, 2])
    forms: dict[str, list[Any]] = {"y": [time, d, "batch", h], "last": [d, "batch", h]}
    outs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, form) for k, form in forms.items()]
    graph = helper.make_graph([*before, node], "gru", fed, outs, weights)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    onnx.checker.check_model(onnx.load_from_string(file))
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
        known = fluid.onnx.import_model(file)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        got = exe.run(known.program, feed, [v.name for v in known.outputs])
    wanted = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, feed)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
