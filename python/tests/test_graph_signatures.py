"""Arguments of Paddle 1.8's names: each is there, and acts or is refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import World, begin, world

import phalanx.graph as fluid

__all__ = ["world"]
layers = fluid.layers

_ONE = "x name"
_PAIR = "x y axis act name"
_REDUCED = "input dim keep_dim name"
_DECAYED = "learning_rate decay_steps decay_rate staircase"
_OPTIMIZER = "parameter_list regularization grad_clip name"
_FILES = "executor dirname main_program filename"

LAYERS = {
    "fc": "input size num_flatten_dims param_attr bias_attr act name",
    "embedding": "input size is_sparse is_distributed padding_idx param_attr dtype",
    "conv2d": "input num_filters filter_size stride padding dilation groups param_attr bias_attr use_cudnn act name data_format",
    "conv2d_transpose": "input num_filters output_size filter_size padding stride dilation groups param_attr bias_attr "
    "use_cudnn act name data_format",
    "pool2d": "input pool_size pool_type pool_stride pool_padding global_pooling use_cudnn ceil_mode name exclusive data_format",
    "adaptive_pool2d": "input pool_size pool_type require_index name",
    "batch_norm": "input act is_test momentum epsilon param_attr bias_attr data_layout in_place name moving_mean_name "
    "moving_variance_name do_model_average_for_mean_and_var use_global_stats",
    "instance_norm": "input epsilon param_attr bias_attr name",
    "layer_norm": "input scale shift begin_norm_axis epsilon param_attr bias_attr act name",
    "group_norm": "input groups epsilon param_attr bias_attr act data_layout name",
    "dropout": "x dropout_prob is_test seed name dropout_implementation",
    "softmax": "input use_cudnn name axis",
    "prelu": "x mode param_attr name",
    "maxout": "x groups name axis",
    "pixel_shuffle": "x upscale_factor",
    "dynamic_lstm": "input size h_0 c_0 param_attr bias_attr use_peepholes is_reverse gate_activation cell_activation "
    "candidate_activation dtype name",
    "dynamic_gru": "input size param_attr bias_attr is_reverse gate_activation candidate_activation h_0 origin_mode",
    "linear_chain_crf": "input label param_attr length",
    "crf_decoding": "input param_attr label length",
    "sequence_conv": "input num_filters filter_size filter_stride padding padding_start bias_attr param_attr act name",
    "sequence_pool": "input pool_type is_test pad_value",
    "sequence_softmax": "input use_cudnn name",
    "sequence_expand": "x y ref_level name",
    "sequence_mask": "x maxlen dtype name",
    "sequence_pad": "x pad_value maxlen name",
    "sequence_unpad": "x length name",
    "sequence_concat": "input name",
    "sequence_first_step": "input",
    "sequence_last_step": "input",
    "cos_sim": "X Y",
    "l2_normalize": "x axis epsilon name",
    "label_smooth": "label prior_dist epsilon dtype name",
    "cross_entropy": "input label soft_label ignore_index",
    "softmax_with_cross_entropy": "logits label soft_label ignore_index numeric_stable_mode return_softmax axis",
    "sigmoid_cross_entropy_with_logits": "x label ignore_index name normalize",
    "square_error_cost": "input label",
    "log_loss": "input label epsilon name",
    "huber_loss": "input label delta",
    "smooth_l1": "x y inside_weight outside_weight sigma",
    "kldiv_loss": "x target reduction name",
    "margin_rank_loss": "label left right margin name",
    "rank_loss": "label left right name",
    "mse_loss": "input label",
    "nce": "input label num_total_classes sample_weight param_attr bias_attr num_neg_samples name sampler custom_dist seed "
    "is_sparse",
    "hsigmoid": "input label num_classes param_attr bias_attr name path_table path_code is_custom is_sparse",
    "edit_distance": "input label normalized ignored_tokens input_length label_length",
    "accuracy": "input label k correct total",
    "auc": "input label curve num_thresholds topk slide_steps",
    "mul": "x y x_num_col_dims y_num_col_dims name",
    "matmul": "x y transpose_x transpose_y alpha name",
    "sum": "x",
    "sums": "input out",
    "mean": "x name",
    "scale": "x scale bias bias_after_scale act name",
    "clip": "x min max name",
    "pow": "x factor name",
    "leaky_relu": "x alpha name",
    "elu": "x alpha name",
    "relu6": "x threshold name",
    "swish": "x beta name",
    "hard_sigmoid": "x slope offset name",
    "gelu": "x approximate",
    **dict.fromkeys(
        [
            "relu",
            "tanh",
            "sigmoid",
            "softplus",
            "softsign",
            "exp",
            "log",
            "sqrt",
            "rsqrt",
            "square",
            "abs",
            "reciprocal",
            "sin",
            "cos",
            "floor",
            "ceil",
            "round",
        ],
        _ONE,
    ),
    "sign": "x",
    **{f"elementwise_{op}": _PAIR for op in ["add", "sub", "mul", "div", "max", "min", "pow", "mod", "floordiv"]},
    **{f"reduce_{op}": _REDUCED for op in ["sum", "mean", "max", "min", "prod", "all", "any"]},
    "less_than": "x y force_cpu cond",
    **dict.fromkeys(["equal", "not_equal", "less_equal", "greater_than", "greater_equal"], "x y cond"),
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor"], "x y out name"),
    "logical_not": "x out name",
    "topk": "input k name",
    "argmax": "x axis",
    "argmin": "x axis",
    "argsort": "input axis descending name",
    "cumsum": "x axis exclusive reverse",
    "transpose": "x perm name",
    "reshape": "x shape actual_shape act inplace name",
    "flatten": "x axis name",
    "squeeze": "input axes name",
    "unsqueeze": "input axes name",
    "stack": "x axis name",
    "concat": "input axis name",
    "split": "input num_or_sections dim name",
    "slice": "input axes starts ends",
    "shape": "input",
    "expand": "x expand_times name",
    "expand_as": "x target_tensor name",
    "pad": "x paddings pad_value name",
    "pad2d": "input paddings mode pad_value data_format name",
    "gather": "input index overwrite",
    "gather_nd": "input index name",
    "scatter": "input index updates name overwrite",
    "one_hot": "input depth allow_out_of_range",
    "where": "condition",
    "cast": "x dtype",
    "assign": "input output",
    "data": "name shape append_batch_size dtype lod_level type stop_gradient",
    "create_parameter": "shape dtype name attr is_bias default_initializer",
    "create_global_var": "shape value dtype persistable force_cpu name",
    "fill_constant": "shape dtype value force_cpu out name",
    "fill_constant_batch_size_like": "input shape dtype value input_dim_idx output_dim_idx force_cpu",
    "zeros": "shape dtype force_cpu",
    "ones": "shape dtype force_cpu",
    "zeros_like": "x out",
    "ones_like": "x out",
    "uniform_random": "shape dtype min max seed name",
    "gaussian_random": "shape mean std seed dtype",
    "has_inf": "x",
    "has_nan": "x",
    "autoincreased_step_counter": "counter_name begin step",
    "increment": "x value in_place",
    "Print": "input first_n message summarize print_tensor_name print_tensor_type print_tensor_shape print_tensor_lod print_phase",
    "py_func": "func x out backward_func skip_vars_in_backward_input",
    "cond": "pred true_fn false_fn name",
    "case": "pred_fn_pairs default name",
    "switch_case": "branch_index branch_fns default name",
    "while_loop": "cond body loop_vars is_test name",
    "py_reader": "capacity shapes dtypes lod_levels name use_double_buffer",
    "read_file": "reader",
    "double_buffer": "reader place name",
    "create_py_reader_by_data": "capacity feed_list name use_double_buffer",
    **dict.fromkeys(["exponential_decay", "natural_exp_decay", "inverse_time_decay"], _DECAYED),
    "polynomial_decay": "learning_rate decay_steps end_learning_rate power cycle",
    "piecewise_decay": "boundaries values",
    "noam_decay": "d_model warmup_steps learning_rate",
    "cosine_decay": "learning_rate step_each_epoch epochs",
    "linear_lr_warmup": "learning_rate warmup_steps start_lr end_lr",
}

OTHERS = {
    "data": "name shape dtype lod_level",
    "embedding": "input size is_sparse is_distributed padding_idx param_attr dtype",
    "one_hot": "input depth allow_out_of_range",
    "gradients": "targets inputs target_gradients no_grad_set",
    "append_backward": "loss parameter_list no_grad_set callbacks checkpoints",
    "ParamAttr": "name initializer learning_rate regularizer trainable do_model_average",
    "program_guard": "main_program startup_program",
    "name_scope": "prefix",
    "scope_guard": "scope",
    "Executor": "place",
    "Executor.run": "program feed fetch_list feed_var_name fetch_var_name scope return_numpy use_program_cache return_merged "
    "use_prune",
    "ParallelExecutor": "use_cuda loss_name main_program share_vars_from exec_strategy build_strategy num_trainers trainer_id "
    "scope",
    "ParallelExecutor.run": "fetch_list feed feed_dict return_numpy",
    "CompiledProgram": "program_or_graph build_strategy",
    "CompiledProgram.with_data_parallel": "loss_name build_strategy exec_strategy share_vars_from places",
    "DataFeeder": "feed_list place program",
    "DataFeeder.feed": "iterable",
    "DataFeeder.feed_parallel": "iterable num_places",
    "DataFeeder.decorate_reader": "reader multi_devices num_places drop_last",
    "save": "program model_path",
    "load": "program model_path executor var_list",
    "memory_optimize": "input_program skip_opt_set print_log level skip_grads",
    "release_memory": "input_program skip_opt_set",
    "create_lod_tensor": "data recursive_seq_lens place",
    "unique_name.guard": "new_generator",
    "unique_name.generate": "key",
    "clip.set_gradient_clip": "clip param_list program",
    "clip.GradientClipByValue": "max min need_clip",
    "clip.GradientClipByNorm": "clip_norm need_clip",
    "clip.GradientClipByGlobalNorm": "clip_norm group_name need_clip",
    "regularizer.L1Decay": "regularization_coeff",
    "regularizer.L2Decay": "regularization_coeff",
    "initializer.Constant": "value force_cpu",
    "initializer.Uniform": "low high seed diag_num diag_step diag_val",
    "initializer.Normal": "loc scale seed",
    "initializer.TruncatedNormal": "loc scale seed",
    "initializer.Xavier": "uniform fan_in fan_out seed",
    "initializer.MSRA": "uniform fan_in seed",
    "initializer.NumpyArrayInitializer": "value",
    "io.DataLoader.from_generator": "feed_list capacity use_double_buffer iterable return_list use_multiprocess drop_last",
    "io.PyReader": "feed_list capacity use_double_buffer iterable return_list",
    "io.PyReader.decorate_sample_generator": "sample_generator batch_size drop_last places",
    "io.PyReader.decorate_sample_list_generator": "reader places",
    "io.PyReader.decorate_batch_generator": "reader places",
    "io.batch": "reader batch_size drop_last",
    "io.shuffle": "reader buf_size",
    **{f"io.{verb}_{what}": _FILES for verb in ("save", "load") for what in ("params", "persistables")},
    "io.save_inference_model": "dirname feeded_var_names target_vars executor main_program model_filename params_filename "
    "export_for_deployment program_only",
    "io.load_inference_model": "dirname executor model_filename params_filename pserver_endpoints",
    "nets.simple_img_conv_pool": "input num_filters filter_size pool_size pool_stride pool_padding pool_type global_pooling "
    "conv_stride conv_padding conv_dilation conv_groups param_attr bias_attr act use_cudnn",
    "nets.img_conv_group": "input conv_num_filter pool_size conv_padding conv_filter_size conv_act param_attr "
    "conv_with_batchnorm conv_batchnorm_drop_rate pool_stride pool_type use_cudnn",
    "nets.sequence_conv_pool": "input num_filters filter_size param_attr act pool_type bias_attr",
    "nets.glu": "input dim",
    "nets.scaled_dot_product_attention": "queries keys values num_heads dropout_rate",
    "reader.buffered": "reader size",
    "reader.map_readers": "func readers",
    "reader.xmap_readers": "mapper reader process_num buffer_size order",
    "reader.chain": "readers",
    "reader.compose": "readers check_alignment",
    "reader.firstn": "reader n",
    "reader.cache": "reader",
    **{
        f"metrics.{name}": "name"
        for name in ["Precision", "Recall", "Accuracy", "ChunkEvaluator", "EditDistance", "CompositeMetric"]
    },
    "metrics.Auc": "name curve num_thresholds",
    "profiler.profiler": "state sorted_key profile_path tracer_option",
    "profiler.start_profiler": "state tracer_option",
    "profiler.stop_profiler": "sorted_key profile_path",
    "profiler.reset_profiler": "",
    "optimizer.SGD": f"learning_rate {_OPTIMIZER}",
    "optimizer.Momentum": f"learning_rate momentum use_nesterov {_OPTIMIZER}",
    "optimizer.Adagrad": f"learning_rate epsilon {_OPTIMIZER} initial_accumulator_value",
    "optimizer.Adam": f"learning_rate beta1 beta2 epsilon {_OPTIMIZER} lazy_mode",
    "optimizer.Adamax": f"learning_rate beta1 beta2 epsilon {_OPTIMIZER}",
    "optimizer.Adadelta": f"learning_rate epsilon rho {_OPTIMIZER}",
    "optimizer.DecayedAdagrad": f"learning_rate decay epsilon {_OPTIMIZER}",
    "optimizer.RMSProp": f"learning_rate rho epsilon momentum centered {_OPTIMIZER}",
    "optimizer.Ftrl": f"learning_rate l1 l2 lr_power {_OPTIMIZER}",
    "optimizer.Lamb": f"learning_rate lamb_weight_decay beta1 beta2 epsilon exclude_from_weight_decay_fn {_OPTIMIZER}",
    "optimizer.LarsMomentum": f"learning_rate momentum lars_coeff lars_weight_decay {_OPTIMIZER}",
    "optimizer.Optimizer.minimize": "loss startup_program parameter_list no_grad_set",
    "optimizer.Optimizer.backward": "loss startup_program parameter_list no_grad_set callbacks",
    "optimizer.Optimizer.apply_gradients": "params_grads",
    "optimizer.ModelAverage": "average_window_rate min_average_window max_average_window regularization name",
    "optimizer.ModelAverage.apply": "executor need_restore",
    "optimizer.ExponentialMovingAverage": "decay thres_steps name",
    "optimizer.LookaheadOptimizer": "inner_optimizer alpha k",
    "optimizer.RecomputeOptimizer": "optimizer",
    "optimizer.GradientMergeOptimizer": "inner_optimizer k_steps avg",
}


def _taken(function: Any) -> set[str]:
    """The names of arguments; those that an optimizer hands to its base class are its own."""
    parameters = inspect.signature(function).parameters
    found = set(parameters)
    if "common" in found:
        found |= set(inspect.signature(fluid.optimizer.Optimizer.__init__).parameters)
    return found


def _find(path: str) -> Any:
    found: Any = fluid
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_knows_paddles_arguments(name: str) -> None:
    missing = [argument for argument in LAYERS[name].split() if argument not in _taken(getattr(layers, name))]
    assert not missing


@pytest.mark.parametrize("path", OTHERS)
def test_a_name_knows_paddles_arguments(path: str) -> None:
    assert not [argument for argument in OTHERS[path].split() if argument not in _taken(_find(path))]


def test_what_cannot_act_is_refused_by_name(world: World) -> None:
    x, label = fluid.data("x", [None, 4]), fluid.data("label", [None, 1], "int64")
    flag, image = x > 0.0, fluid.data("image", [None, 3, 8, 8])
    loss = layers.mean(layers.fc(x, 1))
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: layers.topk(x, label), "topk: k is `label`"),
        (lambda: layers.equal(x, x, cond=flag), "equal: cond="),
        (lambda: layers.less_than(x, x, force_cpu=True, cond=flag), "less_than: cond="),
        (lambda: layers.less_than(x, x, None, flag), "less_than: cond="),
        (lambda: layers.less_than(x, x, False, flag), "less_than: cond="),
        (lambda: layers.logical_and(flag, flag, out=flag), "logical_and: out="),
        (lambda: layers.logical_not(flag, out=flag), "logical_not: out="),
        (lambda: layers.sums([x, x], out=x), "sums: out="),
        (lambda: layers.accuracy(x, label, correct=label), "accuracy: correct="),
        (lambda: layers.accuracy(x, label, total=label), "accuracy: total="),
        (lambda: layers.uniform_random([2], seed=3), "uniform_random: seed=3"),
        (lambda: layers.gaussian_random([2], seed=3), "gaussian_random: seed=3"),
        (lambda: layers.dropout(x, 0.5, seed=3), "seed=3"),
        (lambda: layers.embedding(label, [5, 2], is_distributed=True), "is_distributed=True"),
        (lambda: layers.adaptive_pool2d(x, 2, require_index=True), "require_index=False"),
        (lambda: layers.sequence_pool(x, "max", pad_value=1.0), "pad_value=1.0"),
        (lambda: layers.nce(x, label, 5, custom_dist=[0.2] * 5), "uniform or log_uniform"),
        (lambda: layers.hsigmoid(x, label, 5, path_table=label), "path_table"),
        (lambda: layers.reshape(x, [0, 2, 2], actual_shape=label), "reshape"),
        (lambda: layers.fill_constant([1], "float32", 0.0, out=x), "out"),
        (lambda: layers.one_hot(label, 3, allow_out_of_range=True), "allow_out_of_range=True"),
        (lambda: layers.polynomial_decay(0.1, 0), "polynomial_decay: decay_steps=0 must be more than 0"),
        (lambda: layers.inverse_time_decay(0.1, 10, -1.0), "decay_rate=-1.0 must be at least 0"),
        (lambda: layers.noam_decay(0, 10), "d_model=0 must be more than 0"),
        (lambda: layers.noam_decay(4, 4, learning_rate=x), "learning_rate=`x`, which is known only in a run"),
        (lambda: layers.exponential_decay(float("nan"), 10, 0.5), "learning_rate=nan must be a finite number"),
        (lambda: layers.piecewise_decay([1], [0.1, "0.2"]), "values='0.2' must be a finite number"),
        (lambda: layers.linear_lr_warmup(0.1, 3, "0", 0.1), "start_lr='0' must be a finite number"),
        (lambda: layers.batch_norm(x, momentum=2.0), "batch_norm: momentum=2.0 must be at least 0 and at most 1"),
        (lambda: layers.batch_norm(x, epsilon=-1.0), "epsilon=-1.0 must be at least 0"),
        (lambda: layers.layer_norm(x, epsilon="1e-5"), "layer_norm: epsilon='1e-5' must be a finite number"),
        (lambda: layers.dropout(x, 1.5), "dropout_prob=1.5 must be at least 0 and at most 1"),
        (lambda: layers.leaky_relu(x, alpha="0.1"), "leaky_relu: alpha='0.1' must be a finite number"),
        (lambda: layers.clip(x, 1.0, -1.0), "clip: max=-1.0 must be at least 1"),
        (lambda: layers.uniform_random([2], min=1.0, max=0.0), "max=0.0 must be at least 1"),
        (lambda: layers.gaussian_random([2], std=-1.0), "std=-1.0 must be at least 0"),
        (lambda: layers.huber_loss(x, x, 0.0), "huber_loss: delta=0.0 must be more than 0"),
        (lambda: layers.smooth_l1(x, x, sigma=0), "smooth_l1: sigma=0 must be more than 0"),
        (lambda: layers.polynomial_decay(0.1, 4, cycle="False"), "cycle='False' must be True or False"),
        (lambda: layers.conv2d(image, 2, 3, stride=0), "stride or dilation must be at least 1, got 0"),
        (lambda: layers.conv2d(image, 2, 3, padding=-1), "padding must be at least 0, got -1"),
        (lambda: layers.piecewise_decay([4, 2], [0.1, 0.05, 0.01]), "must rise"),
        (lambda: layers.log_loss(x, x, epsilon=-1.0), "log_loss: epsilon=-1.0 must be at least 0"),
        (lambda: layers.embedding(label, [3, 2], padding_idx=7), "padding_idx=7 is not one of the 3 rows"),
        (lambda: fluid.clip.GradientClipByNorm(-1.0), "clip_norm=-1.0 must be more than 0"),
        (lambda: fluid.clip.GradientClipByGlobalNorm(0.0), "clip_norm=0.0 must be more than 0"),
        (lambda: fluid.clip.GradientClipByValue(-1.0), "max=-1.0 must be at least 0"),
        (lambda: fluid.clip.GradientClipByValue(max=-1.0, min=1.0), "max=-1.0 must be at least 1"),
        (lambda: fluid.regularizer.L2Decay(float("nan")), "regularization_coeff=nan must be a finite number"),
        (lambda: fluid.initializer.Normal(0.0, -1.0), "Normal: scale=-1.0 must be at least 0"),
        (lambda: fluid.initializer.Uniform(1.0, -1.0), "Uniform: high=-1.0 must be at least 1"),
        (lambda: fluid.optimizer.Ftrl(0.1, lr_power=0.5), "lr_power=0.5 must be at most 0"),
        (lambda: fluid.optimizer.Adam(beta1=1.0), "Adam: beta1=1.0 must be at least 0 and less than 1"),
        (lambda: fluid.optimizer.Momentum(0.1, momentum=-0.9), "Momentum: momentum=-0.9 must be at least 0"),
        (lambda: fluid.optimizer.RMSProp(0.1, epsilon="1e-6"), "epsilon='1e-6' must be a finite number"),
        (lambda: fluid.append_backward(loss, callbacks=[print]), "callbacks="),
        (lambda: fluid.append_backward(loss, checkpoints=[x]), "RecomputeOptimizer"),
        (lambda: fluid.optimizer.RMSProp(0.1, centered=True), "centered=True"),
        (lambda: fluid.optimizer.Lamb(0.1, exclude_from_weight_decay_fn=print), "exclude_from_weight_decay_fn"),
        (lambda: fluid.optimizer.Adagrad(0.1, initial_accumulator_value=-1.0), "initial_accumulator_value=-1.0"),
        (lambda: fluid.optimizer.ExponentialMovingAverage(thres_steps=label), "thres_steps"),
        (lambda: fluid.initializer.Uniform(diag_num=2), "diag_num=2"),
        (lambda: fluid.clip.GradientClipByNorm(1.0, need_clip=print), "need_clip"),
        (lambda: fluid.clip.GradientClipByGlobalNorm(1.0, group_name="other"), "group_name='other'"),
        (lambda: fluid.load(world.main, "path", var_list=[x]), "var_list="),
        (
            lambda: fluid.io.save_inference_model("path", ["x"], [x], fluid.Executor(), program_only=True),
            "program_only",
        ),
        (
            lambda: fluid.io.save_inference_model("p", ["x"], [x], fluid.Executor(), export_for_deployment=False),
            "export_for_deployment=False",
        ),
        (lambda: fluid.io.load_inference_model("p", fluid.Executor(), pserver_endpoints=["a"]), "pserver_endpoints="),
    ]
    for wrong, says in refused:
        before = str(world.main)
        with pytest.raises(fluid.GraphError, match=says):
            wrong()
        assert str(world.main) == before, says
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: x @ np.ones([4, 2], "float32"), "takes two variables, got ndarray"),
        (lambda: np.ones([2, 4], "float32") @ x, "takes two variables, got ndarray"),
        (lambda: x @ 2.0, "takes two variables, got float"),
        (lambda: fluid.optimizer.Adam(lazy_mode=1), "lazy_mode must be True or False, got 1"),
        (lambda: fluid.Executor().run(world.main, None, None, world.scope), "pass scope=… by name"),
    ]
    for wrong, says in mistakes:
        with pytest.raises(TypeError, match=says):
            wrong()


def test_arguments_without_effect_are_taken(world: World) -> None:
    x = fluid.data("x", [None, 4, 3, 3])
    layers.softmax(layers.conv2d(x, 2, 3, use_cudnn=False), use_cudnn=True)
    layers.batch_norm(x, in_place=True, do_model_average_for_mean_and_var=False)
    layers.zeros([2], "float32", True)
    y = layers.less_than(layers.ones([2], "float32", force_cpu=True), layers.zeros([2]), True)
    begin(world)
    fed = {"x": np.zeros([1, 4, 3, 3], "float32")}
    (got,) = fluid.Executor().run(world.main, fed, [y], "feed", "fetch", world.scope, True, use_program_cache=True)
    np.testing.assert_array_equal(got, [False, False])
    assert [piece.name for piece in layers.split(x, 2, dim=1, name="half")] == ["half_0", "half_1"]
    assert layers.stack([x, x], name="pair").name == "pair"
    assert layers.uniform_random([2], name="noise").name == "noise"


def test_a_name_may_be_the_second_argument_of_gelu(world: World) -> None:
    x = fluid.data("x", [None, 4])
    named, bent = layers.gelu(x, "bent"), layers.gelu(x, True, "by_tanh")
    assert (named.name, bent.name) == ("bent", "by_tanh")
    fed = np.linspace(-2, 2, 4, dtype="float32").reshape(1, 4)
    exact, near, plain = fluid.Executor().run(feed={"x": fed}, fetch_list=[named, bent, layers.gelu(x)])
    np.testing.assert_array_equal(exact, plain)
    assert not np.array_equal(exact, near)
    np.testing.assert_allclose(exact, near, atol=1e-2)


NAN = float("nan")


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (lambda x: layers.conv2d(x, 2, 3, padding=1.5), "one whole number or two, got 1.5"),
        (lambda x: layers.conv2d(x, 2, 3, padding=[1, 0.5]), r"one whole number or two, got \[1, 0.5\]"),
        (lambda x: layers.conv2d(x, 2, 3, padding=[1, 0.5, 1, 1]), "padding=0.5 must be a whole number"),
        (lambda x: layers.pool2d(x, 2, pool_padding=0.5), "one whole number or two, got 0.5"),
        (lambda x: layers.conv2d_transpose(x, 2, filter_size=3, padding=0.5), "one whole number or two, got 0.5"),
        (lambda x: layers.conv2d(x, 2, 3, padding=NAN), "one whole number or two, got nan"),
        (lambda x: layers.conv2d(x, 2, NAN), "one whole number or two, got nan"),
        (lambda x: layers.reshape(x, [NAN, -1]), r"cannot be \[nan, -1\]"),
        (lambda x: layers.fc(x, NAN), "size=nan must be a whole number"),
        (lambda x: layers.fc(x, float("inf")), "size=inf must be a whole number"),
        (lambda x: layers.conv2d(x, NAN, 3), "num_filters=nan must be a whole number"),
        (lambda x: layers.create_parameter([2, NAN]), "shape=nan must be a whole number"),
    ],
)
def test_a_size_is_a_whole_number(world: World, layer: Callable[[Any], Any], says: str) -> None:
    x = fluid.data("x", [None, 2, 3, 3])
    before = str(world.main)
    with pytest.raises(fluid.ProgramError, match=says):
        layer(x)
    assert str(world.main) == before


@pytest.mark.parametrize("padding", [[5, 0, 0, 0], [0, 0, 2, 3]])
def test_a_padding_that_leaves_nothing_is_refused(world: World, padding: list[int]) -> None:
    """A transposed convolution loses its padding: of 5 x 5 at most 4 rows and columns."""
    x = fluid.data("x", [None, 2, 3, 3])
    with pytest.raises(fluid.ProgramError, match="padding.*leaves nothing of a result of"):
        layers.conv2d_transpose(x, 2, filter_size=3, padding=padding)
    assert layers.conv2d_transpose(x, 2, filter_size=3, padding=[4, 0, 0, 2]).shape == (-1, 2, 1, 3)


def test_lazy_mode_is_said_once(world: World) -> None:
    fluid.optimizer.Adam(0.1, lazy_mode=True)
    with pytest.warns(UserWarning, match="is_sparse=False"):
        fluid.optimizer.Adam(0.1, lazy_mode=False)
