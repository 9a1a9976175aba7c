"""Writes small models from PyTorch as ONNX files, and what PyTorch computes when it trains them.

Run from the repository, with torch, onnx and onnxscript installed: python python/oracle/onnx_models.py

The files go to crates/phalanx-graph/tests/fixtures/onnx; crates/phalanx-graph/tests/onnx.rs reads them. The exporter
that is built on TorchScript is used (dynamo=False): the newer one writes batch normalisation in evaluation mode even
for a model that is being trained. One file of the newer one is written too, for the test that reads it anyway.
"""

import json
import pathlib
import warnings
from collections.abc import Callable

import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import nn

FOLDER = pathlib.Path("crates/phalanx-graph/tests/fixtures/onnx")
STEPS = 5


class Mlp(nn.Module):
    """Scores only: the program that imports it adds the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.norm = nn.LayerNorm(16)
        self.second = nn.Linear(16, 16, bias=False)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.norm(self.first(x)))
        y = torch.tanh(self.second(y)) * 0.5 + y
        return self.last(F.dropout(y, 0.0, self.training))


class Cnn(nn.Module):
    """With its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, padding=1, groups=2, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AvgPool2d(2),
        )
        self.classes = nn.Linear(8 * 2 * 2, 10)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.features(x)
        scores = self.classes(y.view(y.size(0), -1))
        return F.cross_entropy(scores, label), scores


class Words(nn.Module):
    """An embedding, attention to one place, and the likelihood of logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.score = nn.Linear(8, 1)
        self.classes = nn.Linear(8, 20)

    def forward(self, words: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        weights = torch.softmax(self.score(x), dim=1)
        mixed = (weights * x).sum(dim=1) + x[:, -1]
        scale = (mixed**2).mean(dim=-1, keepdim=True) + 1e-3
        return F.nll_loss(F.log_softmax(self.classes(mixed / torch.sqrt(scale)), dim=-1), label)


def listed(tensor: torch.Tensor) -> dict[str, object]:
    return {"dims": list(tensor.shape), "data": tensor.flatten().tolist()}


def exported(model: nn.Module, args: tuple[torch.Tensor, ...], names: list[str], outputs: list[str], path: str) -> None:
    torch.onnx.export(
        model,
        args,
        path,
        dynamo=False,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        opset_version=17,
        input_names=names,
        output_names=outputs,
        dynamic_axes={n: {0: "batch"} for n in names},
    )
    # Exporting runs the model, which moves running statistics: begin with those of the file.
    held = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in onnx.load(path).graph.initializer}
    model.load_state_dict({k: held.get(k, v) for k, v in model.state_dict().items()})


def biased(norm: nn.Module, args: tuple[torch.Tensor, ...], before: torch.Tensor) -> None:
    """PyTorch keeps the unbiased variance in its statistics, ONNX the other. Training does not read them."""
    n = args[0].numel() / args[0].shape[1]
    keep = 1 - norm.momentum
    norm.running_var = keep * before + (norm.running_var - keep * before) * (n - 1) / n


def trained(
    model: nn.Module, args: tuple[torch.Tensor, ...], loss_of: Callable[..., torch.Tensor], rate: float
) -> dict[str, object]:
    for norm in model.modules():
        if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)):
            norm.register_forward_pre_hook(lambda m, _: setattr(m, "before", m.running_var.clone()))
            norm.register_forward_hook(lambda m, i, _: biased(m, i, m.before))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses: list[float] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(*args))
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return {
        "rate": rate,
        "losses": losses,
        "parameters": [k for k, _ in model.named_parameters()],
        "after": {k: listed(v) for k, v in model.state_dict().items() if v.is_floating_point()},
    }


def first(out: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return out[0] if isinstance(out, tuple) else out


def write(name: str, model: nn.Module, feeds: dict[str, torch.Tensor], outputs: list[str]) -> None:
    model.train()
    has_loss = "loss" in outputs
    names = [k for k in feeds if k != "label" or has_loss]
    args = tuple(feeds[k] for k in names)
    exported(model, args, names, outputs, str(FOLDER / f"{name}.onnx"))
    loss_of = first if has_loss else lambda out: F.cross_entropy(out, feeds["label"])
    wanted = trained(model, args, loss_of, 0.1) | {"feeds": {k: listed(v) for k, v in feeds.items()}}
    (FOLDER / f"{name}.json").write_text(json.dumps(wanted, allow_nan=False) + "\n")


class Case(nn.Module):
    """One or a few operations on `w * x`, or on `w + x` of positive numbers."""

    def __init__(self, body: Callable[..., torch.Tensor], width: list[int], plus: bool) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(width) + 0.5)
        self.body = body
        self.plus = plus

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        y = self.body(x + self.w if self.plus else x * self.w, label)
        return y if y.dim() == 0 else (y * y).mean()


class Layer(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return (y * y).mean() + 0 * label.float().mean()


def attention(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    n, t, width = x.shape
    heads = x.view(n, t, 2, width // 2).transpose(1, 2)
    scores = heads @ heads.transpose(-1, -2) / (width // 2) ** 0.5
    return (torch.softmax(scores, -1) @ heads).transpose(1, 2).reshape(n, t, width)


def pieces(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    a, b, c = torch.split(x, [2, 3, 1], dim=1)
    corner = x[:, :, 1:3].transpose(1, 2).unsqueeze(1).squeeze(1)[:, :, :4]
    return torch.cat([b[:, 1:], a, c.expand(-1, 3, -1), corner, x[:, -1].unsqueeze(1)], dim=1)


BODIES: dict[str, tuple[Callable[..., torch.Tensor], list[int], bool]] = {
    "attention": (attention, [5, 8], False),
    "pieces": (pieces, [6, 4], False),
    "softmax over an inner axis": (lambda x, _: torch.softmax(x, 1), [6, 4], False),
    "loss of logarithms": (lambda x, y: F.nll_loss(torch.log(torch.softmax(x, 1)), y), [6], False),
    "sum of losses": (lambda x, y: F.cross_entropy(x, y, reduction="sum"), [6], False),
    "ignored labels": (lambda x, y: F.cross_entropy(x, y, ignore_index=2), [6], False),
    "classes in the middle": (
        lambda x, y: F.cross_entropy(x, y.unsqueeze(1).expand(-1, 4), ignore_index=1),
        [6, 4],
        False,
    ),
    "functions": (lambda x, _: torch.exp(-x) + torch.log(x) + torch.sqrt(x) + 1 / x + torch.erf(x) + x**3, [6], True),
    "more functions": (
        lambda x, _: (
            F.leaky_relu(x) + F.elu(x) + F.softplus(x) + torch.sigmoid(x) + torch.clamp(x, -0.5, 0.5) + x.abs()
        ),
        [6],
        False,
    ),
    "curve of tanh": (lambda x, _: F.gelu(x, approximate="tanh"), [6], False),
    "stretched": (lambda x, _: (x.mean(dim=1, keepdim=True) - x) / (x.sum(dim=2, keepdim=True) + 9), [6, 4], True),
    "largest": (lambda x, _: torch.maximum(x, -x * 0.5) + x.amax(dim=1, keepdim=True), [6], False),
    "view by size": (
        lambda x, _: x.view(x.size(0) * x.size(1), x.size(2)).view(-1, x.size(1) * x.size(2)),
        [6, 4],
        False,
    ),
}


LAYERS: dict[str, tuple[nn.Module, list[int]]] = {
    "convolution": (nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), [2, 7, 6]),
    "convolution by channel": (nn.Conv2d(4, 4, 3, groups=4, bias=False), [4, 5, 5]),
    "mean of windows": (
        nn.Sequential(nn.Conv2d(1, 2, 1), nn.AvgPool2d(3, 2, padding=1, count_include_pad=False)),
        [1, 7, 7],
    ),
    "mean of images": (nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), [1, 6, 6]),
    "largest of windows": (nn.Sequential(nn.Conv2d(1, 2, 1), nn.MaxPool2d(3, 2, padding=1)), [1, 7, 7]),
    "norm of features": (nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=0.3)), [6]),
    "norm of layers": (nn.Sequential(nn.Linear(6, 5), nn.LayerNorm([4, 5])), [4, 6]),
    "transformer": (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu"), [5, 8]),
}


def cases() -> None:
    """Many small models in one file, with the model as hexadecimal digits."""
    path = FOLDER / "case.onnx"
    out: dict[str, object] = {}
    label = torch.tensor([0, 2, 1, 3, 2])
    models = {name: (Case(body, dims, plus), dims) for name, (body, dims, plus) in BODIES.items()}
    models |= {name: (Layer(body), dims) for name, (body, dims) in LAYERS.items()}
    for name, (model, dims) in models.items():
        model.train()
        x = torch.rand(5, *dims) if isinstance(model, Case) and model.plus else torch.randn(5, *dims)
        exported(model, (x, label), ["x", "label"], ["loss"], str(path))
        feeds = {"feeds": {"x": listed(x), "label": listed(label)}}
        out[name] = trained(model, (x, label), first, 0.01) | feeds | {"onnx": path.read_bytes().hex()}
    path.unlink()
    (FOLDER / "cases.json").write_text(json.dumps(out, allow_nan=False) + "\n")


def predicting(model: nn.Module, feeds: dict[str, torch.Tensor]) -> None:
    """The same model for prediction, with the same names, so that what was learned can be written into it."""
    model.eval()
    torch.onnx.export(
        model,
        tuple(feeds.values()),
        str(FOLDER / "cnn_predict.onnx"),
        dynamo=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
        opset_version=17,
        input_names=list(feeds),
        output_names=["loss", "scores"],
        dynamic_axes={n: {0: "batch"} for n in feeds},
    )


def newer(model: nn.Module, feeds: dict[str, torch.Tensor]) -> None:
    """The same model from the exporter built on torch.export. Its optimizer would fold norms into convolutions."""
    model.train()
    batch = torch.export.Dim("batch")
    shapes = tuple({0: batch} for _ in feeds)
    names = list(feeds)
    made = torch.onnx.export(
        model,
        tuple(feeds.values()),
        dynamo=True,
        input_names=names,
        output_names=["loss", "scores"],
        dynamic_shapes=shapes,
        optimize=False,
        verbose=False,
    )
    path = str(FOLDER / "newer.onnx")
    made.save(path, external_data=False)
    # It notes where in whose files each operation was written.
    plain = onnx.load(path)
    graph = plain.graph
    for part in [plain, graph, *graph.node, *graph.input, *graph.output, *graph.value_info]:
        part.ClearField("metadata_props")
    onnx.save(plain, path)


def baked(model: nn.Module) -> None:
    """A mistake that people make: the batch is a number."""
    model.train()
    options = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False, "opset_version": 17}
    path = str(FOLDER / "baked.onnx")
    torch.onnx.export(model, (torch.randn(8, 12),), path, dynamo=False, input_names=["x"], **options)


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.manual_seed(3)
    FOLDER.mkdir(parents=True, exist_ok=True)
    labels = torch.randint(0, 4, (8,))
    write("mlp", Mlp(), {"x": torch.randn(8, 12), "label": labels}, ["scores"])
    images = {"x": torch.randn(6, 1, 8, 8), "label": torch.randint(0, 10, (6,))}
    model = Cnn()
    first_values = {k: v.clone() for k, v in model.state_dict().items()}
    write("cnn", model, images, ["loss", "scores"])
    # While it is as trained: of initializers with equal values the exporter keeps one.
    predicting(model, images)
    model.load_state_dict(first_values)
    newer(model, images)
    words = {"words": torch.randint(0, 20, (7, 5)), "label": torch.randint(0, 20, (7,))}
    write("words", Words(), words, ["loss"])
    baked(Mlp())
    cases()


main()
