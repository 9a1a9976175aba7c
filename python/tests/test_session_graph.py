"""Sessions that train static programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import batch
from ranks import launch, run_ranks

import phalanx
import phalanx.graph as fluid
from phalanx.data import OutOfRangeError
from phalanx.distributed import (
    CheckpointSaverHook,
    DistributedSession,
    EarlyStoppingHook,
    LoadCheckpoint,
    LoggingTensorHook,
    NanTensorHook,
    ProfilerHook,
    Saver,
    Scaffold,
    SessionRunArgs,
    SessionRunHook,
    StopAtStepHook,
    StopAtTimeHook,
    SummarySaverHook,
)
from phalanx.exceptions import CheckpointError, SessionError

SAMPLES = 12


class Model:
    """A small classifier with dropout, in programs and a scope of its own."""

    def __init__(self, width: int = 16, seed: int = 3, frozen: bool = False) -> None:
        self.main, self.startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=seed)
        # Ranks begin apart.
        self.startup.random_seed = seed + (phalanx.rank() if phalanx.is_initialized() else 0)
        with fluid.unique_name.guard(), fluid.program_guard(self.main, self.startup):
            if frozen:
                x = fluid.data("x", [None, 8])
                label = fluid.data("label", [None, 1], "int64")
                hidden = fluid.layers.fc(x, width, act="relu", param_attr=fluid.ParamAttr(trainable=False))
                scores = fluid.layers.fc(hidden, 4)
                self.loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))
            else:
                x = fluid.layers.data("x", [8])
                label = fluid.layers.data("label", [1], dtype="int64")
                hidden = fluid.layers.dropout(fluid.layers.fc(x, width, act="relu"), 0.25)
                scores = fluid.layers.fc(hidden, 4)
                self.loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))
            fluid.optimizer.Momentum(0.1, 0.9).minimize(self.loss)
        self.scaffold = Scaffold(self.main, self.startup, self.loss, devices=1)

    def session(self, **options: Any) -> DistributedSession:
        with fluid.scope_guard(self.scope):
            return DistributedSession(scaffold=self.scaffold, log_step_count_steps=None, **options)

    def bits(self) -> dict[str, bytes]:
        return {p.name: self.scope[p.name].tobytes() for p in self.main.all_parameters()}


def share(step: int) -> dict[str, Any]:
    """This rank's part of the samples of a step."""
    rank, size = (phalanx.rank(), phalanx.size()) if phalanx.is_initialized() else (0, 1)
    return {name: np.array_split(value, size)[rank] for name, value in batch(SAMPLES, seed=step).items()}


def steps(folder: Path) -> list[int]:
    return sorted(int(p.name.removeprefix("checkpoint-")) for p in folder.glob("checkpoint-*"))


class Recorder(SessionRunHook):
    def __init__(self, name: str, calls: list[str], loss: str) -> None:
        self.name, self.calls, self.loss = name, calls, loss

    def begin(self) -> None:
        self.calls.append(f"{self.name} begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        assert coord.should_stop() is False
        self.calls.append(f"{self.name} created {session.global_step}")

    def before_run(self, run_context: Any) -> SessionRunArgs:
        self.calls.append(f"{self.name} before {run_context.step}")
        return SessionRunArgs({"mine": self.loss})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        (number,) = run_values.results["mine"]
        assert run_values.values[self.loss] == pytest.approx(float(number))
        self.calls.append(f"{self.name} after {run_context.step}")

    def end(self, session: Any) -> None:
        self.calls.append(f"{self.name} end {session.global_step}")


def ordered() -> tuple[list[str], Any, Any]:
    model, calls = Model(), []
    a, b, chief = (Recorder(name, calls, model.loss.name) for name in ("a", "b", "chief"))
    with model.session(hooks=[a, b, StopAtStepHook(num_steps=2)], chief_only_hooks=[chief]) as session:
        while not session.should_stop():
            one = session.run(model.loss, feed_dict=share(session.global_step))
            several = session.run([model.loss], share(session.global_step)) if not session.should_stop() else [one]
    return calls, one.shape, len(several)


def test_hooks_are_called_in_order() -> None:
    # HOOK-1, LOOP-1
    (chief, shape, n), (other, *_) = run_ranks(2, ordered)
    each = ["begin", "created 0", "before 1", "after 1", "before 2", "after 2", "end 2"]
    assert chief == [f"{name} {call}" for call in each for name in ("a", "b", "chief")]
    assert other == [f"{name} {call}" for call in each for name in ("a", "b")]
    assert (shape, n) == ((1,), 1)


def train(folder: str | None, last: int, dies_at: int = 0, width: int = 16) -> tuple[int, dict[str, bytes]]:
    model = Model(width)
    hooks: list[SessionRunHook] = [StopAtStepHook(last_step=last)]
    if folder is not None:
        hooks.append(CheckpointSaverHook(folder, save_steps=2))
    with model.session(checkpoint_dir=folder, hooks=hooks) as session:
        began = session.global_step
        while not session.should_stop():
            if dies_at and session.global_step == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            session.run([], share(session.global_step))
    return began, model.bits()


def test_killed_and_resumed_training_has_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    # SESS-2, in another world as well.
    whole = run_ranks(2, train, None, 8)
    assert whole[0] == whole[1] and whole[0][0] == 0
    folder = tmp_path / "cut"
    assert run_ranks(2, train, str(folder), 8, 5, fresh=True) == [None, None]
    assert not (folder / "done").exists()
    resumed = run_ranks(2, train, str(folder), 8)
    assert resumed[0][0] in (2, 4) and resumed[0][1] == resumed[1][1] == whole[0][1]
    assert (folder / "done").exists() and steps(folder)[-1] == 8
    # A training that is over makes no more steps.
    assert run_ranks(2, train, str(folder), 8)[1] == (8, whole[0][1])


def alone(folder: str) -> tuple[int, int]:
    model = Model()
    with model.session(checkpoint_dir=folder) as session:
        began = session.global_step
        for _ in range(3):
            session.run(model.loss, share(session.global_step))
    return began, session.global_step


def test_a_checkpoint_dir_alone_is_enough(tmp_path: Path) -> None:
    assert run_ranks(2, alone, str(tmp_path)) == [(0, 3), (0, 3)]
    assert steps(tmp_path) == [3] and (tmp_path / "done").exists()
    assert run_ranks(2, alone, str(tmp_path)) == [(3, 6), (3, 6)]


def timed() -> tuple[int, Any, bool]:
    model = Model()
    hook = StopAtTimeHook(0.2 + 10 * phalanx.rank())
    began = time.monotonic()
    with model.session(hooks=[hook]) as session:
        while not session.should_stop():
            session.run([], share(session.global_step))
        with pytest.raises(SessionError, match="has ended"):
            session.run([], share(0))
    return session.global_step, (session.stopped.rank, session.stopped.by), time.monotonic() - began < 5


def test_three_ranks_stop_at_one_step() -> None:
    ends = run_ranks(3, timed)
    assert ends[0] == ends[1] == ends[2] and ends[0][1:] == ((0, "StopAtTimeHook"), True) and ends[0][0] > 0


def requested() -> list[Any]:
    model, seen = Model(), []
    with model.session() as session:
        while not session.should_stop():
            if (phalanx.rank(), session.global_step) == (1, 2):
                session.request_stop("rank 1 has enough")
            session.run([], share(session.global_step))
            seen.append(session.should_stop())
    return [*seen, session.stopped.why, session.stopped.rank]


def test_a_stop_is_agreed() -> None:
    assert run_ranks(2, requested) == [[False, False, True, "rank 1 has enough", 1]] * 2


class Raises(SessionRunHook):
    def __init__(self, method: str) -> None:
        self.method = method

    def _maybe(self, method: str) -> None:
        if phalanx.rank() == 1 and method == self.method:
            raise KeyError(f"in {method}")

    def begin(self) -> None:
        self._maybe("begin")

    def before_run(self, run_context: Any) -> None:
        if run_context.step == 2:
            self._maybe("before_run")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_context.step == 2:
            self._maybe("after_run")

    def end(self, session: Any) -> None:
        self._maybe("end")


def raising(method: str, folder: str) -> tuple[str, str, list[str], int]:
    model, step = Model(), 0
    try:
        with model.session(hooks=[Raises(method)], checkpoint_dir=folder) as session:
            for _ in range(3):
                session.run([], share(session.global_step))
                step = session.global_step
    except (KeyError, SessionError) as why:
        return type(why).__name__, str(why), getattr(why, "__notes__", []), step
    raise AssertionError("it was told nobody")


@pytest.mark.parametrize(("method", "at"), [("begin", 0), ("before_run", 2), ("after_run", 2), ("end", 3)])
def test_a_hook_that_raises_stops_all_ranks(method: str, at: int, tmp_path: Path) -> None:
    # BOUND-2, LOOP-2
    other, own = run_ranks(2, raising, method, str(tmp_path))
    text = f"training stopped at step {at}: Raises of rank 1: KeyError: 'in {method}'"
    assert other[:3] == ("SessionError", text, []) and own[:2] == ("KeyError", f"'in {method}'")
    if sys.version_info >= (3, 11):
        assert own[2] == [f"phalanx: {text}"]
    assert other[3] == own[3] == max(0, at - 1 if method != "end" else at)
    assert not (tmp_path / "done").exists()


def with_nan(fails: bool) -> tuple[str, int]:
    model = Model()
    try:
        with model.session(hooks=[NanTensorHook(model.loss, fail_on_nan_loss=fails)]) as session:
            while not session.should_stop():
                feed = share(session.global_step)
                if (phalanx.rank(), session.global_step) == (1, 2):
                    feed["x"] = feed["x"] * np.float32("nan")
                session.run([], feed)
        return f"{session.stopped.by} {session.stopped.rank}", session.global_step
    except SessionError as why:
        return str(why).replace(model.loss.name, "loss"), session.global_step


def test_nan_on_one_rank_stops_all() -> None:
    text = "training stopped at step 3: NanTensorHook of rank 1: loss is NaN at step 3"
    assert run_ranks(2, with_nan, True) == [(text, 3)] * 2
    assert run_ranks(2, with_nan, False) == [("NanTensorHook 1", 3)] * 2


def broken(folder: str) -> str:
    model = Model()
    try:
        with model.session(checkpoint_dir=folder) as session:
            for _ in range(3):
                session.run([], share(session.global_step))
            if phalanx.rank() == 1:
                raise ArithmeticError("of rank 1")
            while not session.should_stop():
                session.run([], share(session.global_step))
        return "ended"
    except Exception as why:
        return f"{type(why).__name__}: {why}"


def test_an_exception_in_the_block_is_told_and_waits_for_nobody(tmp_path: Path) -> None:
    other, own = run_ranks(2, broken, str(tmp_path))
    assert own == "ArithmeticError: of rank 1" and "of rank 1" in other, other
    assert not (tmp_path / "done").exists()


def uneven(raises: bool) -> int:
    model = Model()
    with model.session() as session:
        for _ in range(3 + phalanx.rank()):
            session.run([], share(session.global_step))
        if raises:
            raise OutOfRangeError("no more batches")
    return session.global_step


@pytest.mark.parametrize("raises", [False, True])
def test_the_end_of_the_data_of_one_rank_ends_all(raises: bool) -> None:
    assert run_ranks(2, uneven, raises) == [3, 3]


def misfit(folder: str) -> str:
    model = Model(width=24, frozen=True)
    with pytest.raises(CheckpointError) as refused:
        model.session(checkpoint_dir=folder)
    return str(refused.value)


def test_a_checkpoint_that_does_not_fit_is_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    # RESTORE-1
    train(str(tmp_path), 2)
    for told in run_ranks(2, misfit, str(tmp_path)):
        for part in ("fc_0.w_0", "[8, 24]", "[8, 16]", "fc_1.w_0", "velocity` (f32[8, 16]) is in the checkpoint only"):
            assert part in told, told


def loaded(folder: str, strict: bool) -> tuple[int, dict[str, bytes], str]:
    model, told = Model(width=16 if strict else 24, seed=99), ""
    try:
        session = model.session(hooks=[LoadCheckpoint(Saver(model.main), folder, strict=strict)])
    except CheckpointError as why:
        return -1, model.bits(), str(why)
    bits = model.bits()
    session.run([], share(0))
    session.close()
    return session.global_step, bits, told


def test_load_checkpoint_before_the_first_step(tmp_path: Path) -> None:
    _, wanted = train(str(tmp_path), 4)
    first, second = run_ranks(2, loaded, str(tmp_path), True)
    assert first[:2] == second[:2] == (1, wanted)
    first, second = run_ranks(2, loaded, str(tmp_path), False)
    assert first[:2] == second[:2] and first[1]["fc_1.b_0"] == wanted["fc_1.b_0"]
    assert len(first[1]["fc_0.w_0"]) == 8 * 24 * 4


def test_a_saver_of_some_variables(tmp_path: Path) -> None:
    model, other = Model(), Model(seed=50)
    for each in (model, other):
        each.session(hooks=[StopAtStepHook(num_steps=1)]).close()
    with fluid.scope_guard(model.scope):
        path = Saver(model.main, ["fc_0.w_0"]).save(None, tmp_path, global_step=9)
    before = other.bits()
    with fluid.scope_guard(other.scope):
        with pytest.raises(CheckpointError, match="fc_1.w_0"):
            Saver(other.main).restore(None, path)
        assert other.bits() == before, "nothing has changed"
        assert Saver(other.main, ["fc_0.w_0"]).restore(None, tmp_path) == []
        assert len(Saver(other.main).restore(None, path, strict=False)) > 2
    assert other.bits() == {**before, "fc_0.w_0": model.bits()["fc_0.w_0"]}
    with pytest.raises(ValueError, match="var_list has 'x'"):
        Saver(model.main, ["x"]).restore(None, path)


def test_frozen_layers_and_two_sessions_one_after_the_other(tmp_path: Path) -> None:
    model = Model(frozen=True)
    hook = StopAtStepHook(num_steps=3)
    bits = []
    for began in (0, 3):
        with model.session(checkpoint_dir=tmp_path, hooks=[hook]) as session:
            assert session.global_step == began
            while not session.should_stop():
                session.run([], share(session.global_step))
        bits.append(model.bits())
    assert bits[0]["fc_0.w_0"] == bits[1]["fc_0.w_0"] and bits[0]["fc_1.w_0"] != bits[1]["fc_1.w_0"]
    with model.session(hooks=[hook]) as session:
        assert session.global_step == 0, "without a directory steps are counted anew"


def test_what_hooks_write(tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    hooks = [
        LoggingTensorHook({"cost": model.loss}, every_n_iter=2),
        SummarySaverHook(save_steps=1, output_dir=tmp_path / "logs"),
        ProfilerHook(range=(2, 4), output_dir=tmp_path / "traces"),
        StopAtStepHook(num_steps=4),
    ]
    caplog.set_level("INFO", "phalanx.session")
    with model.session(hooks=hooks) as session:
        while not session.should_stop():
            session.run(model.loss, share(session.global_step))
    lines = [record.getMessage() for record in caplog.records if record.name == "phalanx.session"]
    assert [line.split(" = ")[0] for line in lines] == ["step 1: cost", "step 3: cost"]
    assert sorted(p.name for p in (tmp_path / "traces").iterdir()) == [f"timeline-{i}.rank0.json" for i in (2, 3)]
    (events,) = (tmp_path / "logs").iterdir()
    assert events.read_bytes().count(model.loss.name.encode()) == 4


def test_early_stopping() -> None:
    model = Model()
    with model.session(hooks=[EarlyStoppingHook(model.loss, patience=3, min_delta=100.0)]) as session:
        while not session.should_stop():
            session.run([], share(session.global_step))
    assert (session.global_step, session.stopped.by) == (4, "EarlyStoppingHook")


def test_arguments_that_make_no_sense(tmp_path: Path) -> None:
    model = Model()
    for options, text in (
        ({"save_summaries_steps": 5}, "save_summaries_steps needs checkpoint_dir"),
        ({"save_checkpoint_secs": 5}, "save_checkpoint_secs needs checkpoint_dir"),
        ({"checkpoint_dir": tmp_path, "save_summaries_steps": 1, "save_summaries_secs": 1}, "not both"),
        ({"stop_grace_period_secs": -1}, "must be a number from 0"),
        ({"hooks": [SummarySaverHook(save_steps=1)]}, "needs output_dir"),
        ({"checkpoint_dir": tmp_path, "hooks": [CheckpointSaverHook("elsewhere", save_steps=1)]}, "one directory"),
        ({"hooks": [CheckpointSaverHook("here", save_steps=1, keep=0)]}, "keep must be"),
        ({"chief_only_hooks": [LoadCheckpoint(None, "x")]}, "belongs into hooks"),
    ):
        with pytest.raises(ValueError, match=text):
            model.session(**options)
    for options in ({"config": 3}, {"hooks": [3]}):
        with pytest.raises(TypeError):
            model.session(**options)
    for make in (
        StopAtStepHook,
        lambda: StopAtStepHook(1, 2),
        lambda: CheckpointSaverHook("x"),
        lambda: ProfilerHook(),
    ):
        with pytest.raises(ValueError, match="not both"):
            make()
    for make in (
        lambda: ProfilerHook(range=(3, 3)),
        lambda: EarlyStoppingHook(mode="low"),
        lambda: LoggingTensorHook(every_n_iter=0),
    ):
        with pytest.raises(ValueError):
            make()
    with pytest.raises(fluid.LossError, match="minimize"):
        DistributedSession(scaffold=Scaffold(fluid.Program(), fluid.Program()))


SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[2])
import phalanx
from test_session_graph import Model, share
phalanx.init()
model = Model()
with model.session(checkpoint_dir=sys.argv[1]) as session:
    while not session.should_stop():
        session.run([], share(session.global_step))
        if session.global_step == 2:
            print("pid", phalanx.rank(), os.getpid(), flush=True)
print("ended", session.global_step, session.stopped.by, session.stopped.rank, flush=True)
"""


def test_sigterm_to_one_rank_saves_and_ends_all(tmp_path: Path) -> None:
    # BOUND-3
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "saved"), str(Path(__file__).parent)]
    run = launch(2, command, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    pids: dict[int, int] = {}
    while len(pids) < 2:
        line = run.stdout.readline()
        assert line, "it ended"
        words = line.split()
        if "pid" in words:
            at = words.index("pid")
            pids[int(words[at + 1])] = int(words[at + 2])
    os.kill(pids[1], signal.SIGTERM)
    output, _ = run.communicate(timeout=60)
    said = [line.split("ended ")[1] for line in output.splitlines() if "ended " in line]
    assert run.returncode == 0 and len(said) == 2 and said[0] == said[1], output
    step, by, rank = said[0].split()
    assert (by, rank, steps(tmp_path / "saved")) == ("SIGTERM", "1", [int(step)])
    assert not (tmp_path / "saved" / "done").exists(), "it is not finished"
