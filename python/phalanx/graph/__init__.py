"""Static training programs: written for one device, run on many, with the names of Paddle's ``fluid``.

>>> import numpy as np
>>> import phalanx.graph as fluid
>>> main, startup = fluid.Program(), fluid.Program()
>>> with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
...     x = fluid.data("x", [None, 2])
...     y = fluid.data("y", [None, 1])
...     loss = fluid.layers.mse_loss(fluid.layers.fc(x, 1), y)
...     _ = fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
...     _ = fluid.Executor(fluid.CPUPlace()).run(startup)
...     exe = fluid.ParallelExecutor(use_cuda=False, loss_name=loss.name, main_program=main, devices=2)
...     feed = {"x": np.eye(2, dtype="float32"), "y": np.ones([2, 1], "float32")}
...     losses = [exe.run([fluid.Fetch(loss, "mean")], feed=feed)[0].item() for _ in range(50)]
>>> losses[-1] < losses[0]
True
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from phalanx.graph import (
    clip,
    core,
    errors,
    framework,
    initializer,
    input,
    io,
    layers,
    metrics,
    nets,
    onnx,
    optimizer,
    profiler,
    reader,
    regularizer,
    unique_name,
)
from phalanx.graph._data import data
from phalanx.graph._feed import Fetch, PerDevice, Replicate
from phalanx.graph.backward import append_backward
from phalanx.graph.compiler import CompiledProgram
from phalanx.graph.data_feeder import DataFeeder
from phalanx.graph.errors import (
    ControlFlowError,
    EOFException,
    FeedError,
    FeedTypeError,
    FetchError,
    GraphError,
    LossError,
    NotFiniteError,
    OpError,
    ProcessError,
    ProgramError,
    SavedError,
    StateError,
    StrategyError,
    UninitialisedError,
)
from phalanx.graph.executor import Executor
from phalanx.graph.framework import (
    device_guard,
    get_flags,
    gradients,
    in_dygraph_mode,
    memory_optimize,
    name_scope,
    release_memory,
    require_version,
    set_flags,
)
from phalanx.graph.input import embedding, one_hot
from phalanx.graph.lod import LoDTensor, create_lod_tensor, create_random_int_lodtensor, unpad
from phalanx.graph.parallel_executor import ParallelExecutor
from phalanx.graph.param_attr import ParamAttr
from phalanx.graph.places import (
    CPUPlace,
    CUDAPinnedPlace,
    CUDAPlace,
    cpu_places,
    cuda_pinned_places,
    cuda_places,
    is_compiled_with_cuda,
)
from phalanx.graph.program import (
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    program_guard,
)
from phalanx.graph.reader import batch, shuffle
from phalanx.graph.saving import load, save
from phalanx.graph.scope import Scope, global_scope, scope_guard
from phalanx.graph.strategy import BuildStrategy, ExecutionStrategy

if TYPE_CHECKING:
    from phalanx.graph.trainer import Trainer


def __getattr__(name: str) -> object:
    """Imports the trainer when it is first used: it needs sessions, which need this package."""
    if name == "Trainer":
        return import_module("phalanx.graph.trainer").Trainer
    remedy = f": {_REFUSED[name]}" if name in _REFUSED else ""
    near = get_close_matches(name, __all__, n=1, cutoff=0.75)
    if near and not remedy:
        remedy = f"; did you mean {near[0]!r}?"
    raise AttributeError(f"module 'phalanx.graph' has no attribute {name!r}{remedy}")


_REFUSED = {
    "dygraph": "programs are static here; write layers, and use PyTorch with phalanx.torch for eager code",
    "DistributeTranspiler": "ranks train one program together: start them with `phalanx run` and use ParallelExecutor",
    "transpiler": "ranks train one program together: start them with `phalanx run` and use ParallelExecutor",
    "LoDTensorArray": "variables are not changed in place; use lists of arrays",
    "DatasetFactory": "use io.DataLoader, or phalanx.data",
    "WeightNormParamAttr": "use ParamAttr, and l2_normalize for the weights",
}


__all__ = [
    "BuildStrategy",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "CompiledProgram",
    "ControlFlowError",
    "DataFeeder",
    "EOFException",
    "ExecutionStrategy",
    "Executor",
    "FeedError",
    "FeedTypeError",
    "Fetch",
    "FetchError",
    "GraphError",
    "LoDTensor",
    "LossError",
    "NotFiniteError",
    "OpError",
    "ParallelExecutor",
    "ParamAttr",
    "Parameter",
    "PerDevice",
    "ProcessError",
    "Program",
    "ProgramError",
    "Replicate",
    "SavedError",
    "Scope",
    "StateError",
    "StrategyError",
    "Trainer",
    "UninitialisedError",
    "Variable",
    "append_backward",
    "batch",
    "clip",
    "core",
    "cpu_places",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "cuda_pinned_places",
    "cuda_places",
    "data",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "embedding",
    "errors",
    "framework",
    "get_flags",
    "global_scope",
    "gradients",
    "in_dygraph_mode",
    "initializer",
    "input",
    "io",
    "is_compiled_with_cuda",
    "layers",
    "load",
    "memory_optimize",
    "metrics",
    "name_scope",
    "nets",
    "one_hot",
    "onnx",
    "optimizer",
    "profiler",
    "program_guard",
    "reader",
    "regularizer",
    "release_memory",
    "require_version",
    "save",
    "scope_guard",
    "set_flags",
    "shuffle",
    "unique_name",
    "unpad",
]
