"""No word is accepted and ignored: every parameter of every public function is read by it."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

PACKAGES = ["phalanx", "phalanx.torch", "phalanx.numpy", "phalanx.graph", "horovod"]

#: Parameters that need not be read, each with its reason.
_SPEED = "Paddle's word for another way to compute the same: nothing depends on it"
_NAME = "Paddle's name of an operation, which no result depends on"
_GRAPH = "phalanx.graph"
EXCEPTIONS: dict[str, str] = {
    **{
        f"{_GRAPH}.framework.memory_optimize({word})": "memory is planned anyway, and the function says so"
        for word in ("skip_opt_set", "print_log", "level", "skip_grads")
    },
    f"{_GRAPH}.framework.release_memory(skip_opt_set)": "memory is planned anyway, and the function says so",
    f"{_GRAPH}.layers.composed.case(name)": _NAME,
    f"{_GRAPH}.layers.composed.switch_case(name)": _NAME,
    f"{_GRAPH}.layers.composed.fill_constant_batch_size_like(force_cpu)": "all memory is the CPU's",
    f"{_GRAPH}.layers.shaping.ones(force_cpu)": "all memory is the CPU's",
    f"{_GRAPH}.layers.shaping.zeros(force_cpu)": "all memory is the CPU's",
    f"{_GRAPH}.layers.readers.create_py_reader_by_data(name)": _NAME,
    f"{_GRAPH}.layers.readers.double_buffer(name)": _NAME,
    f"{_GRAPH}.executor.Executor.run(use_program_cache)": "programs are always cached",
    f"{_GRAPH}.variable.Variable.to_string(throw_on_error)": "the text has nothing that could be absent",
    f"{_GRAPH}.variable.Variable.to_string(with_details)": "the text is always the whole one",
    f"{_GRAPH}.layers.functions.Print(print_tensor_lod)": "sequences are padded here, and shown with their padding",
    f"{_GRAPH}.layers.images.conv2d_transpose(use_cudnn)": _SPEED,
    f"{_GRAPH}.layers.shaping.gather(overwrite)": "gradients of rows that were taken twice are always added",
    f"{_GRAPH}.layers.shaping.reshape(inplace)": _SPEED,
    f"{_GRAPH}.nets.img_conv_group(use_cudnn)": _SPEED,
    f"{_GRAPH}.nets.simple_img_conv_pool(use_cudnn)": _SPEED,
    f"{_GRAPH}.io.DataLoader.from_generator(keep_order)": "order is always kept",
    f"{_GRAPH}.io.DataLoader.from_generator(use_double_buffer)": _SPEED,
    f"{_GRAPH}.io.PyReader.__init__(use_double_buffer)": _SPEED,
    f"{_GRAPH}.layers.arithmetic.softmax(use_cudnn)": _SPEED,
    f"{_GRAPH}.layers.control.cond(name)": _NAME,
    f"{_GRAPH}.layers.control.while_loop(name)": _NAME,
    f"{_GRAPH}.layers.control.while_loop(is_test)": _SPEED,
    f"{_GRAPH}.layers.loss.softmax_with_cross_entropy(numeric_stable_mode)": "it is always stable",
    f"{_GRAPH}.layers.network.batch_norm(in_place)": _SPEED,
    f"{_GRAPH}.layers.network.conv2d(use_cudnn)": _SPEED,
    f"{_GRAPH}.layers.sequence.sequence_pool(is_test)": _SPEED,
    f"{_GRAPH}.layers.sequence.sequence_softmax(use_cudnn)": _SPEED,
    f"{_GRAPH}.program.Program.to_string(throw_on_error)": "every program can be written down",
    f"{_GRAPH}.program.Program.to_string(with_details)": "the text has all of them",
    f"{_GRAPH}.saving.load_inference_model(params_filename)": "model and parameters are in one file",
    f"{_GRAPH}.saving.save_inference_model(params_filename)": "model and parameters are in one file",
    **{
        f"horovod.ray.elastic.ElasticRayExecutor.{name}({word})": "elastic jobs are refused, whatever they are given"
        for name in ("__init__", "create_settings")
        for word in ("_", "__")
    },
    "phalanx.distributed.hooks.LoadCheckpoint.after_create_session(coord)": "TensorFlow's; hooks of users may read it",
    "phalanx.distributed.hooks.SessionRunHook.before_run(run_context)": "for hooks of users, who override it",
    "phalanx.torch.collectives.join(device)": "Horovod's; tensors say themselves where they are",
    "phalanx.torch.elastic.sampler.ElasticSampler.record_batch(batch_idx)": "Horovod's; batches are counted",
}


def modules(package: str) -> Iterator[Any]:
    module = importlib.import_module(package)
    yield module
    for info in pkgutil.walk_packages(getattr(module, "__path__", []), f"{package}.", onerror=lambda _: None):
        if any(part.startswith("_") for part in info.name.split(".")):
            continue
        try:
            yield importlib.import_module(info.name)
        except ImportError as refusal:
            # Frameworks that are not there say so when they are imported, and accept nothing.
            is_absent = (refusal.name or "").split(".")[0] in ("jax", "keras", "tensorflow")
            assert is_absent or "docs/from-horovod.md" in str(refusal), refusal


def functions(module: Any) -> Iterator[tuple[str, Any]]:
    """Public functions and methods that a module shows, under the names where they were written."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in names:
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield f"{value.__module__}.{value.__qualname__}", value
        elif inspect.isclass(value) and value.__module__.split(".")[0] in ("phalanx", "horovod"):
            for attribute, member in vars(value).items():
                method = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
                is_public = not attribute.startswith("_") or attribute in ("__init__", "__call__")
                if inspect.isfunction(method) and is_public:
                    yield f"{value.__module__}.{method.__qualname__}", method


def unread(function: Any) -> list[str]:
    """Parameters of which the body of a function does nothing with the value."""
    function = inspect.unwrap(function)
    if function.__module__.split(".")[0] not in ("phalanx", "horovod"):
        return []
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return []
    (written,) = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))][:1] or [None]
    if written is None or does_nothing(written):
        return []
    arguments = written.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    read = {
        node.id
        for statement in written.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    calls_super = any(isinstance(n, ast.Name) and n.id == "super" for s in written.body for n in ast.walk(s))
    return [
        a.arg
        for a in named
        if a.arg not in read and a.arg not in ("self", "cls") and not (calls_super and a.arg == "_")
    ]


def does_nothing(written: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the body only documents or refuses: then nothing is accepted."""
    body = [s for s in written.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return all(isinstance(s, (ast.Raise, ast.Pass)) for s in body)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_parameter_is_read(package: str) -> None:
    ignored = {}
    for module in modules(package):
        for name, function in functions(module):
            words = [w for w in unread(function) if f"{name}({w})" not in EXCEPTIONS]
            if words:
                ignored[name] = words
    assert not ignored


def accepts_and_ignores(used: int, ignored: int) -> int:
    return used


def test_the_test_finds_what_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepts_and_ignores, "__module__", "phalanx.test")
    assert unread(accepts_and_ignores) == ["ignored"]


def test_exceptions_are_still_needed() -> None:
    known = {
        name: function for package in PACKAGES for module in modules(package) for name, function in functions(module)
    }
    for exception, reason in EXCEPTIONS.items():
        name, word = exception.removesuffix(")").split("(")
        assert reason
        assert name in known and word in unread(known[name]), f"{exception} is read, or gone"
