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
