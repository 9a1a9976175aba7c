"""Sessions that nobody closes, directories that two sessions want, and starts that fail."""

from __future__ import annotations

import gc
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from heard import heard
from ranks import run_ranks
from test_session_ends import started
from test_session_graph import Model, share, steps, train

import phalanx
from phalanx.distributed import CheckpointSaverHook, SessionRunHook, StopAtStepHook, evaluate_continuously
from phalanx.exceptions import CheckpointError

FORGOTTEN = """
import sys
sys.path.insert(0, sys.argv[1])
from test_session_graph import Model, share

session = Model().session(checkpoint_dir=sys.argv[2])
for step in range(4):
    session.run([], share(step))
    if step == (2 if sys.argv[3] == "saved" else 0):
        session.save()
if sys.argv[3] == "closed":
    session.close()
print("end", flush=True)
"""


def forgotten(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", FORGOTTEN, str(Path(__file__).parent), str(folder), how]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_a_session_that_is_not_closed_names_its_directory_and_the_steps_that_are_lost(tmp_path: Path) -> None:
    done = forgotten(tmp_path / "a", "not closed")
    said = [line for line in done.stderr.splitlines() if "was not closed" in line]
    text = f"the session that saves to {tmp_path / 'a'} was not closed, so steps 3 to 4 are not saved: use `with`, or call close()"
    assert (done.returncode, said) == (0, [text]), done
    done = forgotten(tmp_path / "b", "closed")
    assert (done.returncode, "not closed" in done.stderr) == (0, False), done
    assert steps(tmp_path / "b")[-1] == 4


def test_a_save_that_is_under_way_is_written_before_the_process_ends(tmp_path: Path) -> None:
    done = forgotten(tmp_path, "saved")
    assert (done.returncode, done.stderr, steps(tmp_path)[-1]) == (0, "", 4), done


def test_a_save_that_is_not_written_does_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    with heard() as lines:
        session: Any = Model().session(checkpoint_dir=folder)
        session.run([], share(0))
        shutil.rmtree(folder)
        folder.write_text("a file")
        session.save()
        session.run([], share(1))
        del session
        gc.collect()
    (line,) = lines
    assert "was not closed, so steps 1 to 2 are not saved (step 2 could not be saved: rank 0: " in line, line


def test_a_session_that_is_collected_says_so_once(tmp_path: Path) -> None:
    with heard() as lines:
        session: Any = Model().session(checkpoint_dir=tmp_path)
        session.run([], share(0))
        del session
        gc.collect()
    assert len(lines) == 1 and "was not closed, so step 1 is not saved" in lines[0], lines
    with heard() as lines:
        for options in ({}, {"checkpoint_dir": tmp_path}):
            session = Model().session(**options)
            if not options:
                session.run([], share(0))
            del session
            gc.collect()
    assert lines == [], "nothing was to be saved"


class Breaks(SessionRunHook):
    def after_create_session(self, session: Any, coord: Any) -> None:
        raise KeyError("a hook that breaks")


def test_a_start_that_fails_leaves_the_mark_of_the_training_that_ended(tmp_path: Path) -> None:
    # WRITE-4
    train(str(tmp_path), 4)
    assert (tmp_path / "done").exists()
    with pytest.raises(CheckpointError, match="does not fit"):
        Model(width=9).session(checkpoint_dir=tmp_path)
    with pytest.raises(KeyError, match="a hook that breaks"):
        Model().session(checkpoint_dir=tmp_path, hooks=[Breaks()])
    assert (tmp_path / "done").exists()
    assert evaluate_continuously(tmp_path, lambda found: found.step, max_time_secs=60) == [(4, 4)], "it ends"
    session = Model().session(checkpoint_dir=tmp_path)
    assert not (tmp_path / "done").exists()
    session.close()


def test_a_second_session_of_the_process_is_refused(tmp_path: Path) -> None:
    # HOLD-1
    model = Model()
    with model.session(checkpoint_dir=tmp_path) as session:
        session.run([], share(0))
        for options in ({"checkpoint_dir": tmp_path}, {"checkpoint_dir": f"{tmp_path}/."}):
            with pytest.raises(CheckpointError, match="is in use by another session, of this process: close that session"):
                Model(seed=9).session(**options)
        assert evaluate_continuously(tmp_path, print, max_time_secs=0) == []
    assert steps(tmp_path) == [1]
    with Model().session(checkpoint_dir=tmp_path) as session:
        assert session.global_step == 1
    with pytest.raises(ZeroDivisionError), Model().session(checkpoint_dir=tmp_path):
        raise ZeroDivisionError
    Model().session(checkpoint_dir=tmp_path).close()


FORKS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_session_graph import Model, share

ended, ends = os.pipe()
with Model().session(checkpoint_dir=sys.argv[2]) as session:
    session.run([], share(0))
    child = os.fork()
    if not child:
        # As a worker of a DataLoader: it has the files of its parent until that ends.
        os.close(ends)
        os.read(ended, 1)
        os._exit(0)
with Model().session(checkpoint_dir=sys.argv[2]) as session:
    print("again", session.global_step, flush=True)
os.close(ends)
os.waitpid(child, 0)
"""


def test_a_session_that_is_closed_frees_the_directory_though_a_child_lives(tmp_path: Path) -> None:
    # HOLD-3
    words = [sys.executable, "-c", FORKS, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "again 1\n"), done


HOLDS = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from phalanx._phalanx import CheckpointFollower
from test_session_graph import Model, share

with Model().session(checkpoint_dir=sys.argv[2]) as session:
    session.run([], share(0))
    session.save()
    session.run([], share(1))
    found, _ = CheckpointFollower(sys.argv[2], True).next(60.0)
    assert found.step == 2
    child = os.fork()
    if not child:
        # It has the files of its parent, and waits until the test has ended.
        sys.stdin.read()
        os._exit(0)
    print(child, flush=True)
    sys.stdin.read()
"""


def test_another_process_is_named_until_it_is_killed(tmp_path: Path) -> None:
    # HOLD-1, HOLD-2: also if a child that it forked lives on.
    words = [sys.executable, "-c", HOLDS, str(Path(__file__).parent), str(tmp_path)]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdin is not None
    try:
        assert int(holder.stdout.readline()) > 0
        with pytest.raises(CheckpointError, match=f"is in use by another session, of process {holder.pid} on host"):
            Model().session(checkpoint_dir=tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
        with Model().session(checkpoint_dir=tmp_path) as session:
            assert session.global_step == 2
    finally:
        holder.kill()
        holder.wait(60)
        holder.stdin.close()
        holder.stdout.close()


def second(folder: str) -> list[str]:
    with Model().session(checkpoint_dir=folder):
        with pytest.raises(CheckpointError) as refused:
            Model().session(checkpoint_dir=folder)
        return [str(refused.value), str(refused.value.rank)]


def test_all_ranks_are_told_who_has_the_directory(tmp_path: Path) -> None:
    for text, rank in run_ranks(2, second, str(tmp_path)):
        assert text.startswith(f"rank 0 cannot use the directory for checkpoints: {tmp_path} is in use"), text
        assert rank == "0"


def test_a_session_without_a_place_for_a_lock_goes_on(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    model = Model()
    with model.session(checkpoint_dir=tmp_path, hooks=[StopAtStepHook(num_steps=1)]) as session:
        session.run([], share(0))
    assert steps(tmp_path) == [1]


ONE_SIDED = """
import sys
sys.path.insert(0, sys.argv[-2])
import phalanx
from phalanx.distributed import CheckpointSaverHook
from phalanx.exceptions import SessionError
from test_session_graph import Model, share

phalanx.init()
hooks = [CheckpointSaverHook("saved", save_steps=1)] if phalanx.rank() == 1 else []
try:
    Model().session(checkpoint_dir="saved", hooks=hooks)
except SessionError as why:
    print(f"refused by {why.rank}: {why}", flush=True)
"""


def test_a_saver_that_only_another_rank_has_is_refused_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = started(tmp_path, ONE_SIDED, "run", "-np", "2")
    text = (
        "refused by 1: hooks of rank 1 has a CheckpointSaverHook(save_steps=1), and rank 0, which alone acts on it, has not: give all "
        "ranks the same hooks"
    )
    assert [line.endswith(text) for line in done.stdout.splitlines()] == [True, True], done.stdout + done.stderr


def saved_by_chief(folder: str) -> list[int]:
    """As scripts for Horovod write it."""
    hooks: list[SessionRunHook] = [StopAtStepHook(num_steps=3)]
    if phalanx.rank() == 0:
        hooks.append(CheckpointSaverHook(folder, save_steps=1))
    with Model().session(checkpoint_dir=folder, hooks=hooks) as session:
        while not session.should_stop():
            session.run([], share(session.global_step))
    return steps(Path(folder))


def test_a_saver_that_only_rank_0_has_acts(tmp_path: Path) -> None:
    assert run_ranks(2, saved_by_chief, str(tmp_path))[0] == [1, 2, 3]
