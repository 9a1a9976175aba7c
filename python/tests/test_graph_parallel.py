"""The parallel executor: strategies, shared parameters, equal bits, failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, parameters, world

import phalanx.graph as fluid

__all__ = ["world"]

Reduce = fluid.BuildStrategy.ReduceStrategy
Scale = fluid.BuildStrategy.GradientScaleStrategy


def strategy(**fields: Any) -> fluid.BuildStrategy:
    made = fluid.BuildStrategy()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def trained(
    world: World, loss: fluid.Variable, build: fluid.BuildStrategy, threads: int = 0, devices: int = 4
) -> dict[str, bytes]:
    begin(world)
    execution = fluid.ExecutionStrategy()
    execution.num_threads = threads
    exe = fluid.ParallelExecutor(False, loss.name, world.main, None, execution, build, devices=devices)
    # Equal bits of equal graphs would prove nothing.
    assert exe.effective["reduce_strategy"] == build.reduce_strategy.value
    for field in ("bucket_bytes", "fuse_all_optimizer_ops", "fuse_elewise_add_act_ops", "enable_sequential_execution"):
        assert exe.effective[field] == getattr(build, field)
    assert exe.effective["memory_optimize"] == (build.memory_optimize is not False)
    assert exe.effective["fuse_all_reduce_ops"] == (build.fuse_all_reduce_ops is not False)
    assert threads in (0, exe.effective["num_threads"])
    losses = [exe.run([loss], feed=batch(10, seed=i))[0].tobytes() for i in range(5)]
    return {**parameters(world), "losses": b"".join(losses)}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "momentum with a global norm"])
def test_all_ways_to_reduce_give_the_same_bits(world: World, optimizer: str) -> None:
    # PARA-1
    _, loss = classifier()
    {
        "sgd": lambda: fluid.optimizer.SGD(0.3),
        "adam": lambda: fluid.optimizer.Adam(0.05),
        "momentum with a global norm": lambda: fluid.optimizer.Momentum(
            0.1, 0.9, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.1), regularization=fluid.regularizer.L2Decay(0.01)
        ),
    }[optimizer]().minimize(loss)
    right = trained(world, loss, strategy())
    others = [
        (strategy(reduce_strategy=Reduce.Reduce), 0),
        (strategy(fuse_all_reduce_ops=False), 1),
        (strategy(fuse_all_optimizer_ops=True), 3),
        (strategy(fuse_elewise_add_act_ops=True), 2),
        (strategy(enable_sequential_execution=True), 4),
        (strategy(memory_optimize=False, enable_inplace=False), 0),
        (strategy(reduce_strategy=Reduce.Reduce, bucket_bytes=64), 2),
    ]
    for build, threads in others:
        assert trained(world, loss, build, threads) == right, build
    # A gradient that is clipped to a norm forgets its scale, and what decays never had it.
    assert (trained(world, loss, strategy(gradient_scale_strategy=Scale.One)) == right) == ("norm" in optimizer)


def test_strategies_have_paddles_defaults_and_are_never_changed(world: World) -> None:
    build, execution = fluid.BuildStrategy(), fluid.ExecutionStrategy()
    assert (build.reduce_strategy, build.gradient_scale_strategy) == (Reduce.AllReduce, Scale.CoeffNumDevice)
    assert (build.memory_optimize, build.fuse_all_reduce_ops, build.enable_inplace) == (None, None, True)
    assert (execution.num_threads, execution.num_iteration_per_drop_scope) == (0, 100)
    scores, _ = classifier()
    exe = fluid.ParallelExecutor(main_program=world.main, build_strategy=build, exec_strategy=execution, devices=3)
    begin(world)
    exe.run([scores], feed=batch(4))
    assert (build, execution) == (fluid.BuildStrategy(), fluid.ExecutionStrategy())
    held = exe.effective
    assert held["devices"] == 3
    assert (held["memory_optimize"], held["fuse_all_reduce_ops"]) == (True, True)
    assert held["num_threads"] == min(3, len(os.sched_getaffinity(0)))
    assert (held["num_trainers"], held["trainer_id"]) == (1, 0)
    assert held["gradient_scale_strategy"] == "CoeffNumDevice"


def test_fields_want_their_types() -> None:
    build, execution = fluid.BuildStrategy(), fluid.ExecutionStrategy()
    for target, name, value in [
        (build, "reduce_strategy", "Reduce"),
        (build, "memory_optimize", 1),
        (build, "sync_batch_norm", None),
        (build, "bucket_bytes", True),
        (execution, "num_threads", 1.5),
        (execution, "num_iteration_per_run", "1"),
    ]:
        with pytest.raises(TypeError, match=name):
            setattr(target, name, value)
    with pytest.raises(fluid.StrategyError, match="num_trainers cannot be negative"):
        build.num_trainers = -1
    with pytest.raises(AttributeError, match="no_such"):
        build.no_such = 1
    with pytest.raises(fluid.StrategyError, match="CUDA"):
        build.fuse_bn_act_ops = True
    build.fuse_bn_act_ops = False
    with pytest.raises(TypeError, match="async_mode"):
        build.async_mode = 1


def test_conflicts_are_told_all_at_once(world: World) -> None:
    classifier()
    build = strategy(
        bucket_bytes=0, sync_batch_norm=True, reduce_strategy=Reduce.NoReduce, num_trainers=3, trainer_id=1
    )
    execution = fluid.ExecutionStrategy()
    execution.num_iteration_per_run = 0
    with pytest.raises(fluid.StrategyError) as caught:
        fluid.ParallelExecutor(main_program=world.main, build_strategy=build, exec_strategy=execution, devices=2)
    for part in ("bucket_bytes is 0", "NoReduce", "num_trainers is 3", "trainer_id is 1", "num_iteration_per_run is 0"):
        assert part in str(caught.value)
    with pytest.raises(fluid.StrategyError, match="num_trainers is 2"):
        fluid.ParallelExecutor(main_program=world.main, num_trainers=2, trainer_id=1, devices=2)


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1e9"])
def test_cpu_num_that_is_no_number(world: World, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    classifier()
    monkeypatch.setenv("CPU_NUM", text)
    with pytest.raises(fluid.StrategyError, match="CPU_NUM is"):
        fluid.ParallelExecutor(main_program=world.main)
    with pytest.raises(fluid.StrategyError, match="CPU_NUM is"):
        fluid.cpu_places()
    assert os.environ["CPU_NUM"] == text
    assert fluid.ParallelExecutor(main_program=world.main, devices=2).device_count == 2


def test_the_number_of_devices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier()
    assert fluid.ParallelExecutor(main_program=world.main).device_count == len(os.sched_getaffinity(0))
    monkeypatch.setenv("CPU_NUM", "3")
    assert fluid.ParallelExecutor(main_program=world.main).device_count == len(fluid.cpu_places()) == 3
    for wrong in (0, -1, True, 1.5, "2"):
        with pytest.raises(fluid.StrategyError, match="devices="):
            fluid.ParallelExecutor(main_program=world.main, devices=wrong)  # type: ignore[arg-type]


def test_the_loss_must_be_the_one_that_was_minimized(world: World) -> None:
    scores, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    for name, says in [
        (None, "no loss is named"),
        ("", "no loss is named"),
        ("no_such", "no variable of that name"),
        (scores.name, "not one number|gradients of"),
        ("fc_0.w_0", "not one number|gradients of"),
    ]:
        with pytest.raises(fluid.LossError, match=says):
            fluid.ParallelExecutor(use_cuda=False, loss_name=name, main_program=world.main, devices=2)
    with pytest.raises(fluid.ProgramError, match="already has a gradient of"):
        fluid.optimizer.SGD(0.1).minimize(loss)
    with pytest.raises(fluid.ProgramError, match="no operations"):
        fluid.ParallelExecutor(main_program=fluid.Program(), devices=2)


def test_sharing_parameters(world: World) -> None:
    scores, loss = classifier()
    test_program = world.main.clone(for_test=True)
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    train = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2)
    # As in Paddle's guide: both are made before either has run.
    early = fluid.ParallelExecutor(main_program=test_program, share_vars_from=train, devices=2)
    assert np.isfinite(early.run([loss], feed=batch(4))[0]).all()
    with pytest.raises(TypeError, match="share_vars_from"):
        fluid.ParallelExecutor(main_program=test_program, share_vars_from=fluid.Executor())  # type: ignore[arg-type]
    train.run([loss], feed=batch(4))
    with pytest.raises(fluid.StrategyError, match="another scope"):
        fluid.ParallelExecutor(main_program=test_program, share_vars_from=train, scope=fluid.Scope())
    # Other numbers of devices than Paddle's are fine, and so is the plain executor.
    fed = batch(6)
    tests = [fluid.ParallelExecutor(main_program=test_program, share_vars_from=train, devices=n) for n in (1, 2, 3)]
    for _ in range(3):
        train.run([loss], feed=fed)
        seen = [test.run([scores], feed=fed)[0] for test in tests]
        seen.append(fluid.Executor().run(test_program, feed=fed, fetch_list=[scores])[0])
        w, b = world.scope["fc_0.w_0"], world.scope["fc_0.b_0"]
        right = np.maximum(fed["x"] @ w + b, 0) @ world.scope["fc_1.w_0"] + world.scope["fc_1.b_0"]
        for value in seen:
            np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)


def test_sharing_parameters_of_another_shape(world: World) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    train = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2)
    train.run([loss], feed=batch(4))
    other, unseen = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(other, fluid.Program()):
        classifier(width=17)
    with pytest.raises(fluid.StateError, match="fc_0") as caught:
        fluid.ParallelExecutor(main_program=other, share_vars_from=train, devices=2)
    assert "17" in str(caught.value.got)
    with fluid.unique_name.guard(), fluid.program_guard(unseen, fluid.Program()):
        fluid.layers.fc(fluid.data("x", [None, 8]), 2, name="new")
    with pytest.raises(fluid.UninitialisedError, match=r"new\.w_0.*startup"):
        fluid.ParallelExecutor(main_program=unseen, share_vars_from=train, devices=2)


def test_a_rate_that_is_a_number_can_be_set_and_fed(world: World) -> None:
    x = fluid.data("x", [None, 1])
    y = fluid.layers.fc(x, 1, bias_attr=False, param_attr=fluid.initializer.Constant(0.0))
    loss = fluid.layers.mean(y)
    fluid.optimizer.SGD(learning_rate=1.0).minimize(loss)
    begin(world)
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2)
    fed = {"x": np.ones([4, 1], "float32")}
    weight = lambda: world.scope["fc_0.w_0"].item()  # noqa: E731
    exe.run([], feed=fed)
    assert weight() == -1.0
    exe.run([], feed={**fed, "learning_rate": 0.25})
    assert weight() == -1.25
    # It stays.
    assert np.array_equal(exe.run(["learning_rate"], feed=fed)[0], np.array([0.25], "float32"))
    assert weight() == -1.5
    world.scope["learning_rate"] = 2.0
    fluid.Executor().run(world.main, feed=fed)
    assert weight() == -3.5
    fluid.Executor().run(world.main, feed={**fed, "learning_rate": np.array([0.5], "float32")})
    assert weight() == -4.0
    with pytest.raises(fluid.FeedError, match="not fed"):
        fluid.Executor().run(world.main, feed={"learning_rate": 100.0})
    assert world.scope["learning_rate"] == 0.5


def test_customized_scales_are_fed(world: World) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    build = strategy(gradient_scale_strategy=Scale.Customized)
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, build_strategy=build, devices=2)
    with pytest.raises(fluid.FeedError, match="@GRAD"):
        exe.run([loss], feed=batch(4))
    before = parameters(world)
    exe.run([loss], feed={**batch(4), f"{loss.name}@GRAD": np.zeros(2, "float32")})
    assert parameters(world) == before
    exe.run([loss], feed={**batch(4), f"{loss.name}@GRAD": np.ones(2, "float32")})
    assert parameters(world) != before


def test_an_operation_that_fails_is_named_with_its_line(world: World) -> None:
    words = fluid.data("words", [None, 2], "int64")
    line = 1 + sys._getframe().f_lineno
    table = fluid.layers.embedding(words, size=[10, 4], is_sparse=True)
    loss = fluid.layers.mean(fluid.layers.fc(table, 1, num_flatten_dims=2))
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2)
    good = np.arange(8).reshape(4, 2)
    bad = good.copy()
    bad[3, 1] = 10
    exe.run([loss], feed={"words": good})
    before = parameters(world)
    for run in (lambda: exe.run([loss], feed={"words": bad}), lambda: fluid.Executor().run(feed={"words": bad})):
        with pytest.raises(fluid.OpError, match=r"10 is not in 0\.\.10") as caught:
            run()
        assert caught.value.op == "embedding"
        assert caught.value.site == f"{__file__}:{line}"
        assert parameters(world) == before
    exe.run([loss], feed={"words": good})
    assert parameters(world) != before


def test_numbers_that_are_not_finite_are_found(world: World) -> None:
    x = fluid.data("x", [None, 2])
    line = 1 + sys._getframe().f_lineno
    y = fluid.layers.log(x)
    feed = {"x": np.array([[1, 2], [3, -1]], "float32")}
    build = strategy(check_nan_inf=True)
    exe = fluid.ParallelExecutor(main_program=world.main, build_strategy=build, devices=2)
    for run in (
        lambda: exe.run([y], feed=feed),
        lambda: fluid.Executor(check_nan_inf=True).run(world.main, feed=feed, fetch_list=[y]),
    ):
        with pytest.raises(fluid.NotFiniteError, match="NaN") as caught:
            run()
        assert (caught.value.op, caught.value.site) == ("log", f"{__file__}:{line}")
    assert np.isnan(fluid.Executor().run(world.main, feed=feed, fetch_list=[y])[0][1, 1])


def test_statistics_of_devices_are_apart_unless_they_are_synchronised(world: World) -> None:
    x = fluid.data("x", [None, 2])
    y = fluid.layers.batch_norm(x, momentum=0.5)
    loss = fluid.layers.mean(fluid.layers.fc(y, 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    fed = {"x": np.array([[0, 0], [2, 2], [10, 10], [12, 12]], "float32")}
    for sync, first in ((False, 0.5), (True, 3.0)):
        begin(world)
        build = strategy(sync_batch_norm=sync)
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, build_strategy=build, devices=2)
        exe.run([loss], feed=fed)
        assert np.allclose(world.scope["batch_norm_0.mean"], 3.0)
        assert np.allclose(world.scope.of_device("batch_norm_0.mean", 0), first)


def test_passes_can_be_removed_and_the_graph_be_seen(world: World, tmp_path: Path) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    build = strategy(debug_graphviz_path=str(tmp_path / "graph"))
    assert "collectives" in build.all_passes()
    build.remove_pass("fuse_all_reduce")
    with pytest.raises(fluid.StrategyError, match="no pass"):
        build.remove_pass("fuse_all_reduce")
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, build_strategy=build, devices=2)
    assert len(list(tmp_path.iterdir())) == len(build.all_passes())
    assert exe.graph_dot().startswith("digraph")
    assert json.loads(exe.graph_json())
    exe.record()
    exe.run([loss], feed=batch(4))
    assert exe.trace()
    events = json.loads(exe.trace() or "")
    assert "matmul" in json.dumps(events)
    assert exe.arena_bytes() > 0
    exe.drop_local_exe_scopes()
    assert exe.arena_bytes() == 0
    n_tasks, n_visited, _ = exe.dry_run(3)
    assert n_visited == 3 * n_tasks > 0


def test_threads_take_turns(world: World) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for i in range(20):
                exe.run([loss], feed=batch(6, seed=i))
                assert np.isfinite(world.scope["fc_0.w_0"]).all()
        except BaseException as why:
            failed.append(why)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert not failed
    assert not any(thread.is_alive() for thread in threads)
    assert world.scope["@STEP@"] == 80


INTERRUPTED = """
import os, signal, sys, threading
import numpy as np
import phalanx.graph as fluid

x = fluid.data("x", [None, 1024])
y = x
for _ in range(40):
    y = fluid.layers.fc(y, 1024, bias_attr=False)
fluid.Executor().run(fluid.default_startup_program())
exe = fluid.ParallelExecutor(main_program=fluid.default_main_program(), devices=2)
small, large = np.ones([2, 1024], "float32"), np.ones([2048, 1024], "float32")
exe.run([], feed={"x": small})
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        exe.run([], feed={"x": large})
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert exe.run([y], feed={"x": small})[0].shape == (2, 1024)
print("usable", flush=True)
if os.fork() == 0:
    try:
        exe.run([], feed={"x": small})
    except Exception as why:
        print(type(why).__name__, flush=True)
    os._exit(0)
os.wait()
"""


def test_ctrl_c_and_fork() -> None:
    # PYGRAPH-3
    run = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=100)
    assert run.stdout.split() == ["interrupted", "usable", "ForkedError"], run.stderr
    assert signal.SIGINT != run.returncode == 0
