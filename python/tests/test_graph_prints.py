"""Values that programs print, and sequences whose longest length is not declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import World, begin, world

import phalanx.graph as fluid

layers = fluid.layers

__all__ = ["world"]


@pytest.mark.parametrize("devices", [None, 2])
def test_prints_show_values_and_gradients(world: World, devices: int | None, capfd: pytest.CaptureFixture[str]) -> None:
    x = fluid.data("x", [None, 2], stop_gradient=False)
    shown = layers.Print(layers.scale(x, 2.0), first_n=2, message="twice", summarize=3, print_tensor_type=False)
    layers.Print(layers.reduce_sum(x), message="sum", print_phase="forward", print_tensor_name=False)
    loss = layers.mean(layers.fc(shown, 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    feed = {"x": np.arange(8, dtype="float32").reshape(4, 2)}
    exe: Any = fluid.Executor() if devices is None else fluid.ParallelExecutor(loss_name=loss.name, devices=devices)
    for _ in range(3):
        out = exe.run(feed=feed, fetch_list=[loss])
        assert len(out) == 1
    text = capfd.readouterr().out
    assert text.count("twice\nVariable: print_0.tmp_0\n  - shape: [4, 2]\n  - data: [0.0 2.0 4.0 ...]") == 2
    assert text.count("Variable: print_0.tmp_0@GRAD") == 2
    whole = "[28.0]" if devices is None else "[6.0 22.0]"
    assert text.count(f"- data: {whole}") == 3
    # A part of the program that does not compute it does not show it.
    other = layers.scale(x, 3.0)
    fluid.Executor().run(world.main, feed=feed, fetch_list=[other], use_prune=True)
    assert "twice" not in capfd.readouterr().out
    with pytest.raises(fluid.ProgramError, match="choose one of forward, backward, both"):
        layers.Print(x, print_phase="sometimes")


def test_prints_inside_of_bodies_say_where_to_print(world: World) -> None:
    x = fluid.data("x", [1])
    y = layers.cond(
        layers.less_than(x, layers.zeros([1], "float32")), lambda: layers.Print(x), lambda: layers.scale(x, 2.0)
    )
    with pytest.raises(fluid.ProgramError, match="return it from the function there, and Print the result"):
        fluid.Executor().run(world.main, feed={"x": np.ones(1, "float32")}, fetch_list=[y])


def test_prints_need_runs_that_end(world: World) -> None:
    x = fluid.data("x", [None, 2])
    loss = layers.mean(layers.fc(layers.Print(x), 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    strategy = fluid.BuildStrategy()
    strategy.async_mode = True
    with pytest.raises(fluid.StrategyError, match="Print shows values when a run ends"):
        fluid.ParallelExecutor(loss_name=loss.name, build_strategy=strategy, devices=2)


def test_sequences_without_a_longest_length(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="`any` has no max_length: sequences of up to 128"):
        x = fluid.layers.data("any", [1], dtype="int64", lod_level=1)
    assert (x.shape, fluid.layers.data("any", [1], dtype="int64", lod_level=1).name) == ((-1, 128, 1), "any")
    pooled = fluid.layers.sequence_pool(fluid.layers.cast(x, "float32"), "sum")
    exe = fluid.Executor()
    (got,) = exe.run(world.main, feed={"any": [[1, 2, 3], [4]]}, fetch_list=[pooled])
    assert got.ravel().tolist() == [6.0, 4.0]
    with pytest.raises(fluid.FeedError, match="sequence 0 has the length 129, but max_length is 128"):
        exe.run(world.main, feed={"any": [[1] * 129]}, fetch_list=[pooled])
    monkeypatch.setenv("FLAGS_max_sequence_length", "7")
    with pytest.warns(UserWarning, match="up to 7 elements"):
        assert fluid.layers.data("short", [1], lod_level=1).shape == (-1, 7, 1)
    monkeypatch.setenv("FLAGS_max_sequence_length", "none")
    with pytest.raises(fluid.StrategyError, match="a whole number from 1"):
        fluid.layers.data("odd", [1], lod_level=1)
    monkeypatch.delenv("FLAGS_max_sequence_length")
    fluid.set_flags({"FLAGS_max_sequence_length": 9})
    try:
        with pytest.warns(UserWarning, match="up to 9 elements"):
            assert fluid.layers.data("nine", [1], lod_level=1).shape == (-1, 9, 1)
    finally:
        fluid.set_flags({"FLAGS_max_sequence_length": 128})
