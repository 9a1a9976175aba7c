"""Sessions that one rank leaves, data that end, and hooks whose names nobody knows."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heard import heard
from ranks import run_ranks
from regression import samples
from test_session_graph import Model, share
from test_session_torch import Training

import phalanx
import phalanx.torch as hvd
from phalanx import graph
from phalanx.distributed import (
    CheckpointSaverHook,
    EarlyStoppingHook,
    LoadCheckpoint,
    LoggingTensorHook,
    NanTensorHook,
    SessionRunHook,
    StopAtStepHook,
    SummarySaverHook,
)
from phalanx.exceptions import PhalanxError, SessionError

#: Much more than ranks wait for each other, much less than a stall report.
PROMPT_S = 30.0


def left(where: str) -> tuple[str, int | None, bool]:
    """Rank 1 raises, catches it outside of the session, and lives on until rank 0 has told the test what it got."""
    made, began = Training(), time.monotonic()
    hvd.Session._heard_secs = 1.0

    def step() -> torch.Tensor:
        if where == "in the step" and hvd.rank() == 1 and session.global_step == 2:
            raise KeyError("a batch")
        return made.step([0, 1])

    try:
        with made.session() as session:
            while session.global_step < 5:
                if where == "between steps" and hvd.rank() == 1 and session.global_step == 2:
                    raise KeyError("a batch")
                session.run(step)
        raise AssertionError("it ended")
    except (KeyError, PhalanxError) as why:
        rank = getattr(why, "rank", None)
        return f"{type(why).__name__}: {why}", rank, time.monotonic() - began < PROMPT_S


@pytest.mark.parametrize("where", ["in the step", "between steps"])
def test_ranks_that_wait_for_gradients_are_told_of_a_rank_that_left(where: str) -> None:
    # LOOP-5
    other, own = run_ranks(2, left, where, fresh=True, deadline_s=60)
    assert own == ("KeyError: 'a batch'", None, True)
    text, rank, is_prompt = other
    assert rank == 1 and is_prompt, other
    assert "rank 1 gave up: its program left the session after step 2: KeyError: 'a batch'" in text, text


def all_raise(folder: str) -> tuple[str, float]:
    """Rank 1 raises once rank 0 has begun to leave; then both use their world."""
    made, left_first = Training(), Path(folder) / "left"
    with pytest.raises(KeyError) as raised, made.session() as session:
        session.run(made.step, [0, 1])
        if hvd.rank() == 1:
            while not left_first.exists():
                pass
        else:
            leave = session._leave_step
            session._leave_step = lambda *args: (leave(*args), left_first.touch())[0]  # type: ignore[method-assign]
        raise KeyError("all ranks")
    return str(raised.value), float(hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum))


def test_ranks_that_all_raise_keep_their_world(tmp_path: Path) -> None:
    # LOOP-5
    assert hvd.Session._heard_secs >= 20.0
    assert run_ranks(2, all_raise, str(tmp_path), fresh=True, deadline_s=60) == [("'all ranks'", 1.0)] * 2


class Core:
    """That of a session, of which some answers are others."""

    def __init__(self, core: Any, **others: Any) -> None:
        self._core = core
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def test_a_session_of_one_rank_does_not_end_its_world(monkeypatch: pytest.MonkeyPatch) -> None:
    doomed: list[str] = []
    monkeypatch.setattr("phalanx._phalanx.give_up", doomed.append)
    with pytest.raises(ZeroDivisionError), Model().session() as session:
        session._core = Core(session._core, leave=lambda *_: False)  # type: ignore[assignment]
        raise ZeroDivisionError
    assert doomed == [] and session.should_stop()


def test_an_interrupt_between_steps_frees_the_directory(tmp_path: Path) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    session = Model().session(checkpoint_dir=tmp_path)
    session._core = Core(session._core, cross=interrupted)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        session.run([], share(0))
    assert session.should_stop()
    Model().session(checkpoint_dir=tmp_path).close()


def fails_to_save() -> tuple[bool, bool]:
    """Rank 1 cannot save after a boundary: the other comes to a step, and not to a boundary."""
    made, told = Training(), []
    hvd.Session._heard_secs = 1.0
    try:
        with made.session() as session:
            leave = session._leave_step
            session._leave_step = lambda *args: (leave(*args), told.append(args))[0]  # type: ignore[method-assign]
            if hvd.rank() == 1:
                core = session._core

                def saves(*args: Any) -> Any:
                    core.cross(*args)
                    return True, None

                def broken(*_: Any) -> None:
                    raise KeyError("a save")

                session._core, session._save = Core(core, cross=saves, newest=lambda: None), broken  # type: ignore[assignment,method-assign]
                session._about = lambda is_even: {}  # type: ignore[method-assign]
            for _ in range(3):
                session.run(made.step, [0, 1])
    except (KeyError, PhalanxError):
        pass
    return bool(told), session._is_at_boundary


def test_a_rank_that_fails_while_it_saves_leaves_a_step() -> None:
    assert run_ranks(2, fails_to_save, fresh=True, deadline_s=60)[1] == (True, False)


def build() -> tuple[Any, Any]:
    x, y = graph.data("x", [None, 3]), graph.data("y", [None, 1])
    network = graph.layers.fc(x, 1)
    return network, graph.layers.mse_loss(network, y)


def left_a_trainer() -> tuple[str, int | None]:
    """Rank 0 waits for the number of samples of rank 1, and not in a step."""
    trainer = graph.Trainer(samples(40), build, graph.optimizer.SGD, {"learning_rate": 0.1}, 2, log_step_size=None)
    try:
        with trainer:
            while trainer.train_on_batch():
                if phalanx.rank() == 1 and trainer.global_step == 2:
                    raise KeyError("a thought")
        raise AssertionError("it ended")
    except (KeyError, PhalanxError) as why:
        return f"{type(why).__name__}: {why}", getattr(why, "rank", None)


def test_ranks_that_wait_for_samples_are_told_of_a_rank_that_left() -> None:
    # LOOP-5
    other, own = run_ranks(2, left_a_trainer, fresh=True, deadline_s=60)
    assert own == ("KeyError: 'a thought'", None)
    assert other[1] == 1 and "rank 1 gave up: its program left the session after step 2: KeyError: 'a thought'" in other[0], other


def iterated(n: int) -> tuple[int, Any]:
    made = Training()
    batches = iter([[0, 1]] * n)
    with made.session() as session:
        while not session.should_stop():
            session.run(made.step, next(batches))
    stopped = session.stopped
    assert stopped is not None and session.should_stop()
    return session.global_step, (stopped.step, stopped.rank, stopped.by, stopped.why, stopped.is_asked)


def test_stop_iteration_ends_the_session_with_the_reason() -> None:
    wanted = (3, (3, 0, "the data", "they ended on rank 0: StopIteration", False))
    assert run_ranks(2, iterated, 3) == [wanted, wanted]
    hvd.init()
    with heard() as lines:
        assert iterated(0) == (0, (0, 0, "the data", "they ended on rank 0: StopIteration", False))
    assert "training has ended after step 0: the data: they ended on rank 0: StopIteration" in lines


def test_a_session_that_is_closed_says_so() -> None:
    model = Model()
    with model.session() as session:
        session.run([], share(0))
    assert session.stopped is not None and (session.stopped.by, session.stopped.why) == ("the program", "the session was closed")
    with model.session(hooks=[StopAtStepHook(num_steps=1)]) as session:
        session.run([], share(0))
    assert session.stopped is not None and session.stopped.by == "StopAtStepHook"


def with_hook(make: str, name: str) -> tuple[int, list[str], Any]:
    """Steps 2 to 5: all have a loss, the fourth has val_loss, too. The first has no numbers."""
    made = Training()
    hooks: dict[str, SessionRunHook] = {
        "early": EarlyStoppingHook(name, every_n_steps=100),
        "summary": SummarySaverHook(save_steps=100, output_dir="nowhere", tensors=["loss", name]),
        "logging": LoggingTensorHook({"shown": name}, every_n_iter=100),
        "nan": NanTensorHook(name),
    }
    steps = 0

    def step() -> Any:
        nonlocal steps
        steps += 1
        loss = made.step([0, 1])
        numbers = {"loss": loss, "val_loss": float("nan")} if steps == 4 else {"loss": loss, "worst": 3.0}
        return numbers if steps > 1 else None

    why = None
    with heard(logging.WARNING) as lines:
        try:
            with made.session(hooks=[hooks[make]]) as session:
                for _ in range(5):
                    session.run(step)
        except SessionError as error:
            why = str(error)
    return session.global_step, lines, why


@pytest.mark.parametrize("make", ["early", "summary", "logging", "nan"])
def test_a_misspelt_number_is_told_with_the_known_ones_and_again_at_the_end(make: str) -> None:
    (n, lines, why), other = run_ranks(2, with_hook, make, "los")
    assert (n, why) == (5, None) and other == (5, [], None), (lines, other)
    first, last = lines
    text = "Hook looks at 'los', and the step has no number of that name: its numbers are loss, worst; the hook waits for a step"
    assert first.endswith(f"{text} that has it"), first
    assert last.endswith("Hook looked at 'los', and no step had a number of that name: the numbers of a step were loss, worst"), last


@pytest.mark.parametrize("make", ["early", "logging", "nan"])
def test_a_number_that_some_steps_have_is_waited_for(make: str) -> None:
    hvd.init()
    n, lines, why = with_hook(make, "val_loss")
    assert len(lines) == 1 and "looks at 'val_loss'" in lines[0], lines
    wanted = (4, "training stopped at step 4: NanTensorHook of rank 0: val_loss is NaN at step 4") if make == "nan" else (5, None)
    assert (n, why) == wanted


def test_a_name_that_is_not_in_the_program_is_told_before_the_first_step() -> None:
    for hook in (NanTensorHook(), EarlyStoppingHook(), LoggingTensorHook(["loss"], every_n_iter=1)):
        model = Model()
        name = type(hook).__name__
        text = f"{name} looks at 'loss', which is not a variable of the program: give it a variable, such as the loss, which is called "
        with pytest.raises(ValueError, match=f"{text}'{model.loss.name}'"):
            model.session(hooks=[hook])


def test_negative_steps_are_refused_by_name() -> None:
    for options, says in (
        ({"num_steps": -1}, "num_steps must be a whole number from 0, not -1"),
        ({"last_step": -2}, "last_step must be a whole number from 0, not -2"),
        ({"num_steps": 1.5}, "num_steps must be a whole number from 0, not 1.5"),
    ):
        with pytest.raises(ValueError, match=says):
            StopAtStepHook(**options)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers_of_steps() -> None:
    model = Model()
    with model.session(hooks=[StopAtStepHook(last_step=np.int64(2))]) as session:  # type: ignore[arg-type]
        while not session.should_stop():
            session.run([], share(0))
    assert session.global_step == 2
    with pytest.raises(ValueError, match="num_steps must be a whole number from 0, not"):
        StopAtStepHook(np.float64(2.0))  # type: ignore[arg-type]


def one_sided(folder: str, kind: str) -> str:
    hooks: list[SessionRunHook] = []
    if hvd.rank() == (0 if kind == "load on 0" else 1):
        hooks.append(
            {
                "saver": CheckpointSaverHook(folder, save_steps=1),
                "logging": LoggingTensorHook(every_n_iter=1),
                "load on 1": LoadCheckpoint(None, folder),
                "load on 0": LoadCheckpoint(None, folder),
            }[kind]
        )
    elif kind == "saver":
        hooks.append(CheckpointSaverHook(folder, save_steps=2))
    try:
        Training().session(folder, hooks=hooks)
    except SessionError as why:
        return f"{why.rank} {why}"
    raise AssertionError("it began")


def test_hooks_that_would_not_act_are_refused_on_all_ranks(tmp_path: Path) -> None:
    for kind, says in (
        ("saver", "1 hooks of rank 1 has a CheckpointSaverHook(save_steps=1), and rank 0, which alone acts on it, has not"),
        ("logging", "1 hooks of rank 1 has a LoggingTensorHook, and rank 0, which alone acts on it, has not"),
        ("load on 1", "1 hooks has LoadCheckpoint 1 times on rank 1, 0 times on rank 0: all ranks take part in it"),
        ("load on 0", "1 hooks has LoadCheckpoint 0 times on rank 1, 1 times on rank 0: all ranks take part in it"),
    ):
        first, second = run_ranks(2, one_sided, str(tmp_path / "saved"), kind)
        assert first == second and first.startswith(says), (first, second)
