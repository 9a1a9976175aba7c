"""What a session of a static program takes from a directory, and what it leaves there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from test_session_graph import Model, share, steps, train

import phalanx
import phalanx.graph as fluid
from phalanx.data import Sampler, from_list
from phalanx.distributed import CheckpointSaverHook, LoadCheckpoint, Saver, StopAtStepHook
from phalanx.exceptions import CheckpointError, SessionError


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


class Bag:
    """Whatever it was given."""

    def __init__(self, **held: Any) -> None:
        self.held = held

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state


def saved_once(folder: Path, *state: Any) -> None:
    model = Model()
    model.scaffold.state = state
    with model.session(checkpoint_dir=folder) as session:
        session.run([], share(session.global_step))


def test_states_survive_as_they_are(tmp_path: Path) -> None:
    numbers = np.random.default_rng(3).bit_generator.state
    held = {"random": numbers, "by number": {1: "a", -2: ("b", [0.1])}, "worst": float("-inf"), "$odd": 7}
    saved_once(tmp_path, Bag(**held))
    found = Bag()
    saved_once(tmp_path, found)
    assert found.held == held and found.held["random"]["state"]["state"] > 1 << 64
    with pytest.raises(TypeError, match=r"Scaffold.state\[1\].inner.0 cannot be saved: it is a ndarray; only numbers"):
        saved_once(tmp_path / "array", Bag(), Bag(inner=[np.ones(2)]))


def shuffled(folder: str, last: int) -> tuple[list[int], int]:
    """With an order that differs from process to process."""
    iterator = from_list(list(range(40))).shuffle(40).make_one_shot_iterator()
    model, seen = Model(), []
    model.scaffold.state = [iterator]
    with model.session(checkpoint_dir=folder, hooks=[StopAtStepHook(last_step=last)]) as session:
        while not session.should_stop():
            seen.append(iterator.get_next())
            session.run([], share(session.global_step))
    return seen, iterator.state_dict()["salt"]


def test_ranks_begin_with_the_states_of_rank_0_and_go_on_with_them(tmp_path: Path) -> None:
    first = run_ranks(2, shuffled, str(tmp_path), 20)
    second = run_ranks(2, shuffled, str(tmp_path), 40)
    assert len({salt for _, salt in first + second}) == 1
    for (seen, _), (later, _) in zip(first, second, strict=True):
        assert sorted(seen + later) == list(range(40)), "each sample once"


def diverging(folder: str, kind: str) -> str:
    model, bag = Model(), Bag(n=0)
    model.scaffold.state = [bag] if kind != "count" or phalanx.rank() == 0 else []
    try:
        with model.session(checkpoint_dir=folder) as session:
            for step in range(3):
                bag.held = {"n": (phalanx.rank() if kind == "differ" else 0) + step}
                if kind == "odd" and phalanx.rank() == 1 and step == 2:
                    bag.held = {"n": object()}
                if step == 2:
                    session.save()
                session.run([], share(step))
    except (SessionError, TypeError) as why:
        return f"{type(why).__name__}: {why}"
    return "ended"


def test_states_that_differ_among_ranks_are_not_saved(tmp_path: Path) -> None:
    # LOOP-4
    for kind, own, other in (
        ("differ", "SessionError: Scaffold.state[0], a Bag, has not the same state on rank 1 as on rank 0", None),
        (
            "odd",
            "TypeError: Scaffold.state[0].n cannot be saved",
            "SessionError: saving failed on rank 1: TypeError: Sc",
        ),
        ("count", "SessionError: Scaffold.state has nothing on rank 1, Scaffold.state[0], a Bag on rank 0", None),
    ):
        first, second = run_ranks(2, diverging, str(tmp_path / kind), kind)
        assert second.startswith(own) and first.startswith(other or own), (first, second)
        assert steps(tmp_path / kind) == []
    assert run_ranks(2, diverging, str(tmp_path / "same"), "same") == ["ended", "ended"]


def uneven(folder: str) -> int:
    iterator = from_list(list(range(3 + phalanx.rank()))).make_one_shot_iterator()
    model = Model()
    model.scaffold.state = [iterator]
    with model.session(checkpoint_dir=folder) as session:
        while not session.should_stop():
            iterator.get_next()
            session.run([], share(session.global_step))
    return session.global_step


def test_the_end_of_the_data_of_one_rank_is_saved(tmp_path: Path) -> None:
    assert run_ranks(2, uneven, str(tmp_path)) == [3, 3] and steps(tmp_path) == [3]


def test_the_manifest_says_the_epoch(tmp_path: Path) -> None:
    saved_once(tmp_path, Bag(epoch=-1), Bag(epoch="third"), Bag(epoch=4))
    assert json.loads((tmp_path / "checkpoint-1" / "manifest.json").read_text())["epoch"] == 4
