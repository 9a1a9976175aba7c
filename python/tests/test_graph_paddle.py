"""Conventions of Paddle's scripts: modules, feeds, readers, metrics, flags, and what is refused."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, world

import phalanx.graph as fluid

__all__ = ["world"]
layers = fluid.layers


def test_a_feed_is_declared_again_and_programs_have_blocks(world: World) -> None:
    x = layers.data("x", [4])
    assert layers.data("x", [4]).name == x.name
    with pytest.raises(fluid.ProgramError, match="declared twice"):
        layers.data("x", [5])
    main = world.main
    assert [b.program for b in main.blocks] == [main] and main.num_blocks == 1
    assert main.block(0).has_var("x") and main.current_block().var("x").shape == (-1, 4)
    with pytest.raises(fluid.ProgramError, match="no block 1"):
        main.block(1)


def test_persistable_can_be_set_and_says_so_once(world: World) -> None:
    _, loss = classifier()
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        loss.persistable = True
    assert loss.persistable is False
    with pytest.raises(fluid.ProgramError, match="stays there"):
        world.main.all_parameters()[0].persistable = False


@pytest.mark.parametrize("devices", [2, 4])
def test_a_fixed_batch_is_fed_whole(world: World, devices: int) -> None:
    x = layers.data("x", [10, 3], append_batch_size=False)
    y = layers.reduce_sum(x, 1)
    exe = fluid.ParallelExecutor(use_cuda=False, main_program=world.main, devices=devices)
    given = np.arange(devices * 30, dtype="float32").reshape(-1, 3)
    np.testing.assert_array_equal(exe.run([y], feed={"x": given})[0], given.sum(1))


def test_two_dicts_on_four_devices(world: World) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    exe = fluid.ParallelExecutor(use_cuda=False, loss_name=loss.name, main_program=world.main, devices=4)
    assert exe.run([loss], feed=[batch(3), batch(3, 1)])[0].shape == (2,)


def test_a_tensor_without_lengths_is_an_array(world: World) -> None:
    y = layers.data("x", [2]) * 2.0
    tensor = fluid.core.LoDTensor()
    tensor.set(np.ones([3, 2], "float32"), fluid.CPUPlace())
    (got,) = fluid.Executor().run(feed={"x": tensor}, fetch_list=[y])
    np.testing.assert_array_equal(got, np.full([3, 2], 2.0))


def test_places_compare() -> None:
    assert fluid.CPUPlace() == fluid.CPUPlace(0) != fluid.CPUPlace(1)
    assert len({fluid.CPUPlace(), fluid.core.CPUPlace()}) == 1
    assert layers.device.get_places(2) == fluid.cpu_places(2)
    for wrong in (fluid.cuda_places, fluid.CUDAPinnedPlace, lambda: layers.device.get_places(1, "CUDA")):
        with pytest.raises(fluid.StrategyError):
            wrong()


def test_readers_are_put_together() -> None:
    reader = fluid.reader
    ten = lambda: iter(range(10))  # noqa: E731
    assert list(reader.buffered(ten, 3)()) == list(range(10))
    assert list(reader.firstn(reader.chain(ten, ten), 12)()) == [*range(10), 0, 1]
    assert list(reader.map_readers(lambda a, b: a * b, ten, ten)()) == [n * n for n in range(10)]
    assert list(reader.compose(ten, reader.map_readers(lambda a: (a, -a), ten))())[3] == (3, 3, -3)
    with pytest.raises(reader.ComposeNotAligned):
        list(reader.compose(ten, reader.firstn(ten, 2))())
    assert len(list(reader.compose(ten, reader.firstn(ten, 2), check_alignment=False)())) == 2
    assert list(reader.xmap_readers(lambda a: a + 1, ten, 2, 4, order=True)()) == list(range(1, 11))
    assert sorted(reader.xmap_readers(lambda a: a + 1, ten, 2, 4)()) == list(range(1, 11))
    counted: list[int] = []

    def three() -> Any:
        for n in range(3):
            counted.append(n)
            yield n

    kept = reader.cache(three)
    assert list(kept()) == list(kept()) == [0, 1, 2] == counted
    with pytest.raises(ZeroDivisionError):
        list(reader.xmap_readers(lambda a: 1 // a, ten, 2, 4)())


def test_a_loader_without_a_list_feeds_all(world: World) -> None:
    x, y = fluid.data("x", [None, 1]), fluid.data("y", [None, 1])
    loader = fluid.io.DataLoader.from_generator(capacity=2)
    loader.set_batch_generator(lambda: ([np.full([2, 1], i, "float32")] * 2 for i in range(3)))
    got = [fluid.Executor().run(feed=each, fetch_list=[x + y])[0][0, 0] for each in loader()]
    assert got == [0, 2, 4]
    assert loader.queue.capacity() == 2


def test_metrics_over_batches() -> None:
    metrics = fluid.metrics
    both = metrics.CompositeMetric()
    both.add_metric(metrics.Precision())
    both.add_metric(metrics.Recall())
    both.update(np.array([0.9, 0.8, 0.2, 0.6]), np.array([1, 0, 1, 1]))
    assert both.eval() == [2 / 3, 2 / 3]
    auc = metrics.Auc()
    auc.update(np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8]]), np.array([[0], [1], [0], [1]]))
    assert auc.eval() == 1.0
    auc.update(np.array([0.5, 0.5]), np.array([0, 1]))
    assert abs(auc.eval() - 8.5 / 9) < 1e-9
    chunks = metrics.ChunkEvaluator()
    chunks.update(4, 5, 3)
    assert chunks.eval() == (0.75, 0.6, 2 * 0.75 * 0.6 / 1.35)
    with pytest.raises(ValueError, match="no batch"):
        metrics.Accuracy().eval()
    with pytest.raises(ValueError, match="from 0 to 1"):
        auc.update(np.array([2.0]), np.array([1]))


def test_a_profile_has_a_table_and_a_file(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    exe = fluid.ParallelExecutor(use_cuda=False, loss_name=loss.name, main_program=world.main, devices=2)
    with fluid.profiler.profiler("CPU", "total", str(tmp_path / "profile")):
        exe.run([loss], feed=batch(4))
        exe.run([loss], feed=batch(4))
    names = {event["name"] for event in json.loads((tmp_path / "profile").read_text())["traceEvents"]}
    assert "ParallelExecutor.run" in names and len(names) > 3
    assert "total ms" in capsys.readouterr().out
    with pytest.raises(fluid.StrategyError):
        fluid.profiler.stop_profiler()
    with pytest.raises(fluid.StrategyError):
        fluid.profiler.start_profiler("GPU")


def test_flags_act_or_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fluid.set_flags({"FLAGS_eager_delete_tensor_gb": 1.0})
    assert fluid.get_flags("FLAGS_eager_delete_tensor_gb") == {"FLAGS_eager_delete_tensor_gb": 1.0}
    with pytest.raises(fluid.StrategyError, match="cannot be True"):
        fluid.core.globals()["FLAGS_use_mkldnn"] = True
    with pytest.raises(fluid.StrategyError, match="no flag"):
        fluid.get_flags(["FLAGS_none"])
    y = layers.log(fluid.data("x", [None]))
    fluid.set_flags({"FLAGS_check_nan_inf": 1})
    try:
        with pytest.raises(fluid.NotFiniteError):
            fluid.Executor().run(feed={"x": np.array([-1.0], "float32")}, fetch_list=[y])
    finally:
        fluid.set_flags({"FLAGS_check_nan_inf": 0})


def test_fields_of_strategies_act_or_are_refused() -> None:
    build = fluid.BuildStrategy()
    for name, value in [
        ("nccl_comm_num", 2),
        ("use_mkldnn", True),
        ("trainers_endpoints", ["a:1"]),
        ("is_distribution", True),
    ]:
        with pytest.raises(fluid.StrategyError, match=name):
            setattr(build, name, value)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        build.fix_op_run_order = True
    assert build.fix_op_run_order is False
    assert len(said) <= 1
    with pytest.raises(TypeError, match="wants bool"):
        build.enable_addto = 1
    assert build._finalize_strategy_and_create_passes().all_passes() == build.all_passes()


def test_gradients_of_any_variable(world: World) -> None:
    x, w = fluid.data("x", [None, 2]), fluid.data("w", [None, 2])
    y = layers.square(x) * w
    first, other = fluid.gradients([y], [x, w])
    given = {"x": np.array([[1.0, 2.0]], "float32"), "w": np.array([[3.0, 4.0]], "float32")}
    assert first is not None and other is not None
    a, b = fluid.Executor().run(feed=given, fetch_list=[first, other])
    np.testing.assert_allclose(a, [[6.0, 16.0]])
    np.testing.assert_allclose(b, [[1.0, 4.0]])


def test_counters_cases_and_scopes(world: World) -> None:
    step = layers.autoincreased_step_counter(begin=5, step=2)
    x = fluid.data("x", [1], "int64")
    with fluid.name_scope("part"), fluid.device_guard("cpu"):
        chosen: Any = layers.switch_case(
            x,
            {
                1: lambda: layers.fill_constant([1], "float32", 10.0),
                3: lambda: layers.fill_constant([1], "float32", 30.0),
            },
            default=lambda: layers.fill_constant([1], "float32", -1.0),
        )
    begin(world)
    exe = fluid.Executor()
    got = [exe.run(feed={"x": np.array([i])}, fetch_list=[step, chosen]) for i in (1, 2, 3)]
    assert [(int(s[0]), float(c[0])) for s, c in got] == [(5, 10.0), (7, -1.0), (9, 30.0)]
    with pytest.raises(AttributeError, match="phalanx run"):
        fluid.DistributeTranspiler  # noqa: B018
