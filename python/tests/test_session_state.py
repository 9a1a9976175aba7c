"""What a session of a static program takes from a directory, and what it leaves there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ranks import run_ranks
from test_session_graph import Model, share, steps, train

import phalanx.graph as fluid
from phalanx.data import Sampler
from phalanx.distributed import CheckpointSaverHook, LoadCheckpoint, Saver, StopAtStepHook
from phalanx.exceptions import CheckpointError


def anew(folder: str) -> str:
    with pytest.raises(CheckpointError) as refused:
        Model().session(hooks=[CheckpointSaverHook(folder, save_steps=1), StopAtStepHook(last_step=3)])
    return str(refused.value)


def test_a_session_that_does_not_go_on_does_not_save_among_the_steps_of_another(tmp_path: Path) -> None:
    train(str(tmp_path), 8)
    before = sorted(os.listdir(tmp_path))
    for told in run_ranks(2, anew, str(tmp_path)):
        assert told.startswith(f"{tmp_path} has checkpoints") and f"checkpoint_dir={str(tmp_path)!r}" in told, told
    assert sorted(os.listdir(tmp_path)) == before and "done" in before
    # In an empty directory it begins, and saves.
    model, folder = Model(), tmp_path / "other"
    with model.session(hooks=[CheckpointSaverHook(folder, save_steps=1), StopAtStepHook(last_step=2)]) as session:
        while not session.should_stop():
            session.run([], share(session.global_step))
    assert steps(folder) == [1, 2]


def test_a_checkpoint_without_the_state_of_a_session(tmp_path: Path) -> None:
    model = Model()
    model.session(hooks=[StopAtStepHook(num_steps=0)]).close()
    with fluid.scope_guard(model.scope):
        Saver(model.main).save(None, tmp_path, global_step=4)
    bits = model.bits()
    again = Model(seed=9)
    again.scaffold.state = [Sampler(10)]
    with pytest.raises(
        CheckpointError, match=r"checkpoint-4 has no state of a session, and Scaffold.state has 1 objects"
    ):
        again.session(checkpoint_dir=tmp_path)
    again.scaffold.state = ()
    with again.session(checkpoint_dir=tmp_path) as session:
        assert session.global_step == 4 and again.bits() == bits
    # The way that the error names.
    third = Model(seed=10)
    third.scaffold.state = [Sampler(10)]
    with third.session(checkpoint_dir=tmp_path / "new", hooks=[LoadCheckpoint(None, tmp_path)]) as session:
        assert session.global_step == 0 and third.bits() == bits


def test_a_saver_does_not_write_where_a_session_saves(tmp_path: Path) -> None:
    model = Model()
    with model.session(checkpoint_dir=tmp_path) as session:
        session.run([], share(0))
        with pytest.raises(ValueError, match=r"a session saves to .*: call session.save\(\), or save elsewhere"):
            Saver(model.main).save(session, f"{tmp_path}/.")
        assert Saver(model.main).save(session, tmp_path / "elsewhere").name == "checkpoint-1"
    with fluid.scope_guard(model.scope):
        assert Saver(model.main).save(None, tmp_path, global_step=9).name == "checkpoint-9"
