"""Programs and parameters as files: what is loaded gives the bits of what was saved, and bad files change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, parameters, world

import phalanx.graph as fluid

__all__ = ["world"]

PREDICTS = """
import sys
import numpy as np
import phalanx.graph as fluid
exe = fluid.Executor(fluid.CPUPlace())
program, feeds, targets = fluid.io.load_inference_model(sys.argv[1], exe)
x = np.load(sys.argv[2])
np.save(sys.argv[3], exe.run(program, {feeds[0]: x}, targets)[0])
"""


def network() -> tuple[fluid.Variable, fluid.Variable]:
    """With everything that a test leaves out: statistics, random numbers, a loss."""
    x = fluid.layers.data("x", [8])
    label = fluid.layers.data("label", [1], dtype="int64")
    hidden = fluid.layers.batch_norm(fluid.layers.fc(x, 16), act="relu")
    scores = fluid.layers.fc(fluid.layers.dropout(hidden, 0.3), 4)
    return scores, fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))


def train(world: World, loss: fluid.Variable, runs: range) -> None:
    exe = fluid.Executor()
    for i in runs:
        exe.run(world.main, batch(16, i), [loss])


def everything(world: World, scope: fluid.Scope) -> dict[str, bytes]:
    names = [v.name for v in world.main.list_vars() if v.persistable]
    return {name: scope[name].tobytes() for name in names}


def test_predictions_are_the_same_bits_in_a_new_scope_on_devices_and_in_a_process(world: World, tmp_path: Path) -> None:
    scores, loss = network()
    test = world.main.clone(for_test=True)
    fluid.optimizer.Adam(0.01).minimize(loss)
    begin(world)
    train(world, loss, range(5))
    exe, fed = fluid.Executor(), batch(12, 99)
    wanted = exe.run(test, fed, [scores])[0]
    place = tmp_path / "deep" / "model"
    assert fluid.io.save_inference_model(place, ["x"], [scores], exe, world.main) == [scores.name]
    assert sorted(os.listdir(place)) == ["__model__"]
    with fluid.scope_guard(fluid.Scope(seed=3)):
        program, feeds, targets = fluid.io.load_inference_model(place, exe)
        assert feeds == ["x"]
        assert [t.name for t in targets] == [scores.name]
        assert all(op.role == "Forward" for op in program.global_block().ops)
        assert not program.global_block().has_var("label")
        assert exe.run(program, {"x": fed["x"]}, targets)[0].tobytes() == wanted.tobytes()
        parallel = fluid.ParallelExecutor(main_program=program, devices=4)
        assert parallel.run(targets, {"x": fed["x"]})[0].tobytes() == wanted.tobytes()
    np.save(tmp_path / "x.npy", fed["x"])
    files = [str(place), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    subprocess.run([sys.executable, "-c", PREDICTS, *files], check=True, timeout=60)
    assert np.load(tmp_path / "y.npy").tobytes() == wanted.tobytes()


@pytest.mark.parametrize("devices", [1, 2])
def test_training_goes_on_with_the_bits_of_training_that_was_not_interrupted(
    world: World, tmp_path: Path, devices: int
) -> None:
    # Dropout too: the run that random numbers come from is saved.
    x, label = fluid.layers.data("x", [8]), fluid.layers.data("label", [1], dtype="int64")
    scores = fluid.layers.fc(fluid.layers.dropout(fluid.layers.fc(x, 16, act="relu"), 0.3), 4)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))
    rate = fluid.layers.exponential_decay(0.01, 3, 0.5)
    fluid.optimizer.Adam(rate).minimize(loss)
    begin(world)

    def run(scope: fluid.Scope, numbers: range) -> list[bytes]:
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, scope=scope, devices=devices)
        return [exe.run([loss], batch(16, i))[0].tobytes() for i in numbers]

    run(world.scope, range(4))
    fluid.save(world.main, tmp_path / "state")
    wanted = run(world.scope, range(4, 9))
    learned = everything(world, world.scope)
    other = fluid.Scope(seed=12345)
    with fluid.scope_guard(other):
        # No startup program: the file has everything.
        fluid.load(world.main, tmp_path / "state")
    assert run(other, range(4, 9)) == wanted
    assert everything(world, other) == learned


def test_parameters_alone_leave_what_the_optimizer_keeps(world: World, tmp_path: Path) -> None:
    _, loss = classifier()
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    begin(world)
    exe = fluid.Executor()
    fresh = everything(world, world.scope)
    train(world, loss, range(3))
    learned = everything(world, world.scope)
    kept = [p.name for p in world.main.all_parameters()]
    fluid.io.save_params(exe, tmp_path / "a", world.main)
    fluid.io.save_persistables(exe, tmp_path / "b", world.main, filename="all")
    begin(world)
    assert everything(world, world.scope) == fresh
    fluid.io.load_params(exe, tmp_path / "a", world.main)
    now = everything(world, world.scope)
    assert {n: v for n, v in now.items() if n in kept} == {n: v for n, v in learned.items() if n in kept}
    assert {n: v for n, v in now.items() if n not in kept} == {n: v for n, v in fresh.items() if n not in kept}
    with pytest.raises(fluid.SavedError, match="velocity|@STEP@|learning_rate"):
        fluid.io.load_persistables(exe, tmp_path / "a", world.main)
    assert everything(world, world.scope) == now
    fluid.io.load_persistables(exe, tmp_path / "b", fluid.CompiledProgram(world.main), "all")
    assert everything(world, world.scope) == learned
    begin(world)
    fluid.io.load_params(exe, tmp_path / "b", world.main, "all")
    assert everything(world, world.scope) == now


def test_whatever_does_not_fit_is_named_at_once_and_nothing_changes(world: World, tmp_path: Path) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    fluid.save(world.main, tmp_path / "small")
    other, startup = fluid.Program(), fluid.Program()
    scope = fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(other, startup), fluid.scope_guard(scope):
        _, wide = classifier(width=32)
        extra = fluid.layers.fc(other.var("x"), 3)
        fluid.optimizer.SGD(0.1).minimize(wide)
        fluid.Executor().run(startup)
        before = {name: scope[name].tobytes() for name in scope.names()}
        with pytest.raises(fluid.SavedError) as refused:
            fluid.load(other, tmp_path / "small")
        assert {name: scope[name].tobytes() for name in scope.names()} == before
    text = str(refused.value)
    for part in ("small", "`fc_0.w_0`", "[8, 32]", "[8, 16]", "`fc_1.w_0`", "`fc_2.w_0`", "`fc_2.b_0`", "nothing"):
        assert part in text
    assert extra.name not in text
    why = refused.value
    assert (why.var, why.wanted, why.got) == ("fc_0.w_0", "f32[8, 32]", "f32[8, 16]")
    with fluid.scope_guard(scope), pytest.raises(fluid.StateError, match="fc_0.w_0"):
        # The program fits the file, but the scope has another network.
        fluid.load(world.main, tmp_path / "small")


@pytest.fixture
def files(world: World, tmp_path: Path) -> tuple[Path, Path]:
    scores, loss = classifier()
    fluid.optimizer.Adam(0.01).minimize(loss)
    begin(world)
    exe = fluid.Executor()
    fluid.io.save_inference_model(tmp_path, ["x"], [scores], exe, world.main)
    fluid.io.save_persistables(exe, tmp_path, world.main)
    return tmp_path / "__model__", tmp_path / "__values__"


def refused(world: World, which: int, directory: Path) -> None:
    exe = fluid.Executor()
    with pytest.raises(fluid.SavedError, match=str(directory)):
        if which == 0:
            fluid.io.load_inference_model(directory, exe)
        else:
            fluid.io.load_persistables(exe, directory, world.main)


@pytest.mark.parametrize("which", [0, 1])
def test_cut_damaged_and_foreign_files_are_refused(world: World, files: tuple[Path, Path], which: int) -> None:
    file = files[which]
    good = file.read_bytes()
    before = everything(world, world.scope)
    step = max(1, len(good) // 60)
    for end in [0, 7, 8, 27, 28, *range(29, len(good), step), len(good) - 1]:
        file.write_bytes(good[:end])
        refused(world, which, file.parent)
    for at in [*range(28), *range(28, len(good), step), len(good) - 1]:
        file.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        refused(world, which, file.parent)
    for foreign in (good + b"x", b"\x80\x04 a pickle of something that is long enough", files[1 - which].read_bytes()):
        file.write_bytes(foreign)
        refused(world, which, file.parent)
    assert everything(world, world.scope) == before
    file.write_bytes(good)
    fluid.io.load_inference_model(file.parent, fluid.Executor())


def test_what_is_not_there_and_what_makes_no_sense_is_said(world: World, tmp_path: Path) -> None:
    scores, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe, io = fluid.Executor(), fluid.io
    with pytest.raises(fluid.UninitialisedError, match="startup"):
        io.save_persistables(exe, tmp_path, world.main)
    with pytest.raises(fluid.UninitialisedError, match="startup"):
        io.save_inference_model(tmp_path, ["x"], [scores], exe, world.main)
    begin(world)
    with pytest.raises(FileNotFoundError, match="save_inference_model") as missing:
        io.load_inference_model(tmp_path / "no", exe)
    assert missing.value.filename == str(tmp_path / "no" / "__model__")
    with pytest.raises(FileNotFoundError, match="save_persistables"):
        io.load_persistables(exe, tmp_path, world.main)
    cases: list[tuple[type[Exception], str, Any, Any]] = [
        (fluid.FeedError, "`x` is needed", [], [scores]),
        (fluid.FeedError, "`label` is a feed, but no result needs it", ["x", "label"], [scores]),
        (fluid.FeedError, "no feed of that name", ["y"], [scores]),
        (fluid.FetchError, "empty", ["x"], []),
        (fluid.FetchError, "for testing", ["x"], [world.main.var("fc_0.w_0@GRAD")]),
        (TypeError, "variables", ["x"], ["scores"]),
    ]
    for kind, text, feeds, targets in cases:
        with pytest.raises(kind, match=text):
            io.save_inference_model(tmp_path / "none", feeds, targets, exe, world.main)
    assert not (tmp_path / "none").exists()
    with pytest.raises(TypeError, match="Executor"):
        io.save_params(None, tmp_path, world.main)  # type: ignore[arg-type]
    with pytest.raises(fluid.SavedError, match="no variables to save"):
        fluid.save(fluid.Program(), tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        fluid.save(world.main, tmp_path)


def test_feeds_come_in_the_order_that_was_asked_for_and_sequences_with_their_lengths(
    world: World, tmp_path: Path
) -> None:
    a, b = fluid.data("a", [None, 2]), fluid.data("b", [None, 2])
    words = fluid.layers.data("words", [3], lod_level=1, max_length=5)
    twice = words * 2.0
    y = fluid.layers.fc(a - b, 3) + fluid.layers.sequence_pool(twice, "sum")
    begin(world)
    exe = fluid.Executor()
    fed = {
        "a": np.ones([2, 2], "float32"),
        "b": np.zeros([2, 2], "float32"),
        "words": fluid.create_lod_tensor(np.arange(12, dtype="float32").reshape(4, 3), [[1, 3]]),
    }
    wanted = exe.run(world.main, fed, [y])[0]
    targets = [y, twice]
    fluid.io.save_inference_model(tmp_path, ["words", "b", "a"], targets, exe, world.main, model_filename="m")
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, targets = fluid.io.load_inference_model(tmp_path, exe, model_filename="m")
        assert feeds == ["words", "b", "a"]
        assert exe.run(program, fed, targets)[0].tobytes() == wanted.tobytes()
        assert targets[1].lod_level == 1
        assert targets[1].lengths is not None


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    fluid.save(world.main, tmp_path / "state")
    old, saved = (tmp_path / "state").read_bytes(), parameters(world)
    train(world, loss, range(2))

    def full(descriptor: int) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            fluid.save(world.main, tmp_path / "state")
    assert os.listdir(tmp_path) == ["state"]
    assert (tmp_path / "state").read_bytes() == old
    fluid.load(world.main, tmp_path / "state")
    assert parameters(world) == saved
