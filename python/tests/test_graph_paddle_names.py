"""Every name and argument that scripts of Paddle's use most: it exists and acts, or is refused in a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import World, begin, world

import phalanx.graph as fluid

layers = fluid.layers

__all__ = ["world"]


def _x() -> fluid.Variable:
    return fluid.data("x", [None, 4])


def _image() -> fluid.Variable:
    return fluid.data("image", [None, 2, 6, 6])


def _ids() -> fluid.Variable:
    return fluid.data("ids", [None, 1], "int64")


def _words() -> fluid.Variable:
    return layers.embedding(layers.data("words", [1], dtype="int64", lod_level=1, max_length=5), [9, 4])


FEED: dict[str, Any] = {
    "x": np.random.default_rng(0).uniform(0.1, 0.9, [3, 4]).astype("float32"),
    "image": np.random.default_rng(1).standard_normal([3, 2, 6, 6]).astype("float32"),
    "ids": np.array([[0], [3], [1]]),
    "words": [[1, 2], [3], [4, 5, 6]],
}

# What each gives for these feeds: the shape of its first result.
LAYERS: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "mul": (lambda: layers.mul(_x(), layers.create_parameter([4, 2])), [3, 2]),
    "sum": (lambda: layers.sum([_x(), _x()]), [3, 4]),
    "shape": (lambda: layers.shape(layers.create_parameter([4, 2])), [2]),
    "expand": (lambda: layers.expand(_x(), [1, 2]), [3, 8]),
    "pad": (lambda: layers.pad(_x(), [0, 0, 1, 2]), [3, 7]),
    "where": (lambda: layers.where(_x() > 0.5, _x(), layers.zeros_like(_x())), [3, 4]),
    "zeros_like": (lambda: layers.zeros_like(_x()), [3, 4]),
    "ones_like": (lambda: layers.ones_like(_x()), [3, 4]),
    "reduce_prod": (lambda: layers.reduce_prod(_x(), 1), [3]),
    "argsort": (lambda: layers.argsort(_x()), [3, 4]),
    "scatter": (lambda: layers.scatter(layers.create_parameter([9, 4]), _ids(), _x()), [9, 4]),
    "gather_nd": (lambda: layers.gather_nd(layers.create_parameter([9, 4]), _ids()), [3, 4]),
    "cumsum": (lambda: layers.cumsum(_x(), 1), [3, 4]),
    "cos_sim": (lambda: layers.cos_sim(_x(), _x()), [3, 1]),
    "l2_normalize": (lambda: layers.l2_normalize(_x(), 1), [3, 4]),
    "label_smooth": (lambda: layers.label_smooth(layers.one_hot(_ids(), 4)), [3, 4]),
    "log_loss": (lambda: layers.log_loss(_x(), _x()), [3, 4]),
    "conv2d_transpose": (lambda: layers.conv2d_transpose(_image(), 3, filter_size=2, stride=2), [3, 3, 12, 12]),
    "adaptive_pool2d": (lambda: layers.adaptive_pool2d(_image(), [2, 3]), [3, 2, 2, 3]),
    "group_norm": (lambda: layers.group_norm(_image(), 2), [3, 2, 6, 6]),
    "prelu": (lambda: layers.prelu(_image(), "channel"), [3, 2, 6, 6]),
    "nce": (lambda: layers.nce(_x(), _ids(), 9), [3, 1]),
    "hsigmoid": (lambda: layers.hsigmoid(_x(), _ids(), 9), [3, 1]),
    "auc": (lambda: layers.auc(_x(), layers.cast(_ids() > 0, "int64")), [1]),
    "Print": (lambda: layers.Print(_x(), summarize=1), [3, 4]),
    "py_func": (
        lambda: layers.py_func(np.sin, _x(), fluid.default_main_program().global_block().create_var(shape=[-1, 4])),
        [3, 4],
    ),
    "not_equal": (lambda: layers.not_equal(_x(), layers.zeros_like(_x())), [3, 4]),
    "autoincreased_step_counter": (lambda: layers.autoincreased_step_counter(), [1]),
    "fill_constant_batch_size_like": (
        lambda: layers.fill_constant_batch_size_like(_x(), [-1, 2], "float32", 0.5),
        [3, 2],
    ),
    "dynamic_lstm": (lambda: layers.dynamic_lstm(layers.fc(_words(), 8, 2), 8), [3, 5, 2]),
    "dynamic_gru": (lambda: layers.dynamic_gru(layers.fc(_words(), 6, 2), 2), [3, 5, 2]),
    "argmax(axis=0)": (lambda: layers.argmax(layers.create_parameter([3, 4]), axis=0), [4]),
    "argmax": (lambda: layers.argmax(_x(), axis=1), [3]),
    "fill_constant of int32": (lambda: layers.fill_constant([2], "int32", 7), [2]),
    "reshape(inplace=True)": (lambda: layers.reshape(_x(), [-1, 2, 2], inplace=True), [3, 2, 2]),
    "create_global_var(persistable=False)": (lambda: layers.create_global_var([2], 1.5, "float32", False), [2]),
    "softmax over any axis": (lambda: layers.softmax(_image(), axis=1), [3, 2, 6, 6]),
    "soft_label": (
        lambda: layers.cross_entropy(layers.softmax(_x()), layers.one_hot(_ids(), 4), soft_label=True),
        [3, 1],
    ),
    "pool2d(ceil_mode, exclusive)": (
        lambda: layers.pool2d(_image(), 4, "avg", 3, 1, ceil_mode=True, exclusive=False),
        [3, 2, 3, 3],
    ),
    "padding SAME": (lambda: layers.conv2d(_image(), 3, 3, stride=2, padding="SAME"), [3, 3, 3, 3]),
    "padding of four values": (lambda: layers.conv2d(_image(), 3, 3, padding=[0, 1, 2, 0]), [3, 3, 5, 6]),
    "NHWC": (lambda: layers.conv2d(layers.transpose(_image(), [0, 2, 3, 1]), 3, 3, data_format="NHWC"), [3, 4, 4, 3]),
    "bias_attr=False for norms": (lambda: layers.batch_norm(_image(), bias_attr=False), [3, 2, 6, 6]),
    "num_flatten_dims=-1": (lambda: layers.fc(_image(), 5, num_flatten_dims=-1), [3, 2, 6, 5]),
    "matmul of one axis": (lambda: layers.matmul(_x(), layers.create_parameter([4])), [3]),
    "powers": (lambda: (_x() ** 2.0) + 1.0 / _x() + _x() % 0.5, [3, 4]),
    "use_global_stats": (lambda: layers.batch_norm(_image(), use_global_stats=True), [3, 2, 6, 6]),
    "int32 ids": (lambda: layers.embedding(layers.cast(_ids(), "int32"), [9, 4]), [3, 4]),
    "nets.simple_img_conv_pool": (
        lambda: fluid.nets.simple_img_conv_pool(_image(), 3, 3, 2, 2, act="relu"),
        [3, 3, 2, 2],
    ),
    "nets.img_conv_group": (lambda: fluid.nets.img_conv_group(_image(), [3, 3], 2, 1, 3, "relu"), [3, 3, 5, 5]),
    "nets.sequence_conv_pool": (lambda: fluid.nets.sequence_conv_pool(_words(), 3, 3), [3, 3]),
    "fluid.embedding": (lambda: fluid.embedding(_ids(), [9, 4]), [3, 1, 4]),
    "fluid.one_hot": (lambda: fluid.one_hot(_ids(), 4), [3, 1, 4]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_the_list_acts(world: World, name: str) -> None:
    build, shape = LAYERS[name]
    out = build()
    first = out[0] if isinstance(out, tuple) else out
    begin(world)
    used = {key: value for key, value in FEED.items() if world.main._graph.var(key) is not None}
    (got,) = fluid.Executor(fluid.CPUPlace()).run(world.main, feed=used, fetch_list=[first])
    assert list(got.shape) == shape


REFUSED = {
    "While": "while_loop",
    "StaticRNN": "while_loop",
    "DynamicRNN": "dynamic_lstm",
    "IfElse": "cond",
    "Switch": "case",
    "array_write": "concat or stack",
    "array_read": "concat or stack",
    "create_array": "concat or stack",
    "array_length": "concat or stack",
}


@pytest.mark.parametrize("name", REFUSED)
def test_control_flow_in_place_is_refused_with_what_works(name: str) -> None:
    with pytest.raises(AttributeError, match=REFUSED[name]):
        getattr(layers, name)


def test_a_variable_has_no_truth(world: World) -> None:
    with pytest.raises(TypeError, match="cond"):
        bool(_x() > 0.5)


MODULES = {
    "nets": ["simple_img_conv_pool", "img_conv_group", "sequence_conv_pool"],
    "metrics": ["Accuracy", "Auc", "ChunkEvaluator", "CompositeMetric", "EditDistance", "Precision", "Recall"],
    "profiler": ["profiler", "start_profiler", "stop_profiler", "reset_profiler", "cuda_profiler"],
    "unique_name": ["generate", "guard", "switch"],
    "core": [
        "is_compiled_with_cuda",
        "is_compiled_with_mkldnn",
        "globals",
        "get_cuda_device_count",
        "CPUPlace",
        "LoDTensor",
    ],
    "reader": ["buffered", "map_readers", "xmap_readers", "chain", "compose", "firstn", "cache"],
    "optimizer": [
        "Adamax",
        "Adadelta",
        "DecayedAdagrad",
        "Ftrl",
        "Lamb",
        "ModelAverage",
        "ExponentialMovingAverage",
        "LookaheadOptimizer",
    ],
    "initializer": ["TruncatedNormal", "NumpyArrayInitializer", "Bilinear", "MSRA", "Xavier"],
    "regularizer": ["L1Decay", "L2Decay"],
    "clip": ["set_gradient_clip", "GradientClipByGlobalNorm"],
    "backward": ["append_backward"],
    "layers.device": ["get_places"],
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_its_names(module: str) -> None:
    found: Any = fluid
    for part in module.split("."):
        found = getattr(found, part)
    for name in MODULES[module]:
        assert callable(getattr(found, name)), name
    for name in ("gradients", "embedding", "one_hot", "name_scope", "data", "append_backward"):
        assert callable(getattr(fluid, name))


# As Paddle 1.8 says they begin.
STRATEGY = {
    "reduce_strategy": 0,
    "gradient_scale_strategy": 0,
    "debug_graphviz_path": "",
    "enable_sequential_execution": False,
    "remove_unnecessary_lock": True,
    "fuse_elewise_add_act_ops": False,
    "fuse_bn_act_ops": False,
    "fuse_relu_depthwise_conv": False,
    "fuse_all_optimizer_ops": False,
    "fuse_all_reduce_ops": None,
    "fuse_broadcast_ops": None,
    "memory_optimize": None,
    "enable_inplace": True,
    "sync_batch_norm": False,
    "enable_backward_optimizer_op_deps": True,
    "cache_runtime_context": False,
    "mkldnn_enabled_op_types": set(),
    "num_trainers": 1,
    "trainer_id": 0,
    "trainers_endpoints": [],
    "nccl_comm_num": 1,
    "use_hierarchical_allreduce": False,
    "hierarchical_allreduce_inter_nranks": 0,
    "is_distribution": False,
    "async_mode": False,
}


@pytest.mark.parametrize("field", STRATEGY)
def test_a_field_of_a_strategy_can_be_read_and_set_to_its_default(field: str) -> None:
    strategy = fluid.BuildStrategy()
    value = getattr(strategy, field)
    # What acts, what says that it has no effect, and what is refused, is in test_graph_paddle.py.
    setattr(strategy, field, value)


def test_values_begin_as_in_paddle(world: World) -> None:
    """Uniform in the limits of Glorot and He, tables, too; filters are normal."""
    x = fluid.data("wide", [None, 30])
    layers.fc(x, 50, param_attr="fc")
    layers.embedding(_ids(), [60, 20], param_attr="table")
    layers.conv2d(fluid.data("image8", [None, 8, 5, 5]), 16, 3, groups=4, param_attr="grouped")
    he = fluid.ParamAttr(name="he", initializer=fluid.initializer.MSRA())
    layers.fc(x, 50, param_attr=he)
    begin(world)
    limits = {"fc": (6 / 80) ** 0.5, "table": (6 / 80) ** 0.5, "he": (6 / 30) ** 0.5}
    for name, limit in limits.items():
        values = np.abs(world.scope[name])
        assert 0.95 * limit < values.max() <= limit * 1.000001, name
    # Normal, by all channels that the layer sees: filters of groups, too.
    spread = float(np.std(world.scope["grouped"]))
    assert abs(spread - (2 / (8 * 9)) ** 0.5) < 0.03


def test_the_page_has_all_names() -> None:
    """Each row of docs/graph-names.md names a module, and the rows of a module have what it exports."""
    page = Path(__file__).parents[2] / "docs/graph-names.md"
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| `")]
    told: dict[str, set[str]] = {}
    for where, names in rows:
        module = where.split("`")[1]
        told.setdefault(module, set()).update(re.findall(r"`(\w+)`", names))
    assert told["layers"] == {name for name in _exported() if not name.startswith("_")}
    for module in ("nets", "metrics", "optimizer", "initializer", "regularizer", "clip", "reader", "backward"):
        assert told[module] == set(getattr(fluid, module).__all__), module


def _exported() -> set[str]:
    parts = [
        value for value in vars(layers).values() if getattr(value, "__name__", "").startswith("phalanx.graph.layers.")
    ]
    return {name for part in parts if hasattr(part, "__all__") and part is not layers.device for name in part.__all__}
