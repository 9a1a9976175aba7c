"""How sessions end: on parameter servers, after mistakes, and when the end itself fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from test_session_graph import Model, share, steps

import phalanx
from phalanx.distributed import CheckpointSaverHook, SessionRunHook, SummarySaverHook
from phalanx.graph.errors import ProcessError

PORTED = """
import sys
sys.path.insert(0, sys.argv[1])
from phalanx.distributed import DistributedSession, StopAtStepHook, TaskSpec
from test_session_graph import Model, share

spec = TaskSpec()
if sys.argv[2] == "first":
    spec.create_server()
model = Model()
options = {"scaffold": model.scaffold, "hooks": [StopAtStepHook(last_step=3)], "log_step_count_steps": None}
with DistributedSession(task_spec=spec, **options) as session:
    while not session.should_stop():
        session.run([], share(session.global_step))
print("ended", spec.type, session.global_step, session.is_chief, flush=True)
"""


def started(folder: Path, program: str, *flags: str, joins: str = "") -> subprocess.CompletedProcess[str]:
    """A script under the launcher."""
    script = folder / "script.py"
    script.write_text(program)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_"))}
    words = [sys.executable, "-m", "phalanx", *flags, str(script), "--", str(Path(__file__).parent), joins]
    env["OMP_NUM_THREADS"] = "1"
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)


SHORT = """
import sys
sys.path.insert(0, sys.argv[-2])
import phalanx
from phalanx.distributed import DistributedSession, StopAtStepHook
from test_session_graph import Model, share

with DistributedSession(scaffold=Model().scaffold, hooks=[StopAtStepHook(last_step=3)], log_step_count_steps=None) as session:
    while not session.should_stop():
        session.run([], share(session.global_step))
print("ended", phalanx.size(), session.global_step, flush=True)
"""


def test_a_session_joins_the_world_of_its_launcher(tmp_path: Path) -> None:
    done = started(tmp_path, SHORT, "run", "-np", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split("ended ")[1] for line in done.stdout.splitlines()] == ["2 3", "2 3"], done.stdout


@pytest.mark.parametrize("joins", ["first", "in the session"])
def test_a_script_that_does_not_ask_whether_it_is_a_parameter_server_ends_well(tmp_path: Path, joins: str) -> None:
    # LOOP-3
    done = started(tmp_path, PORTED, "train", "-s", "1", "-w", "2", joins=joins)
    assert done.returncode == 0, done.stdout + done.stderr
    said = sorted(line.split("ended ")[1] for line in done.stdout.splitlines() if "ended " in line)
    assert said[0] == "ps 0 False" and [line.split()[1] for line in said[1:]] == ["3", "3"], done.stdout
    assert sum(line.endswith("True") for line in said) == 1


def badly_fed(ended: str) -> str:
    model = Model()
    session = model.session()
    session.run([], share(0))
    if phalanx.rank() == 0:
        # It is told, and does not leave the session before rank 1 has.
        with pytest.raises(ProcessError) as told:
            session.run([], share(1))
        Path(ended).open().close()
        return str(told.value)
    feed = {**share(1), "x": np.ones([3, 5], "float32")}
    with pytest.raises(ValueError, match="x") as own, session:
        session.run([], feed)
    Path(ended).open("w").close()
    return str(own.value)


def test_a_rank_with_a_bad_feed_gives_up_once_and_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ended")
    other, own = run_ranks(2, badly_fed, str(tmp_path / "ended"), fresh=True, deadline_s=40)
    assert "rank 1" in other and "x" in own, (other, own)


class EndRaises(SessionRunHook):
    def end(self, session: Any) -> None:
        raise KeyError("at the end")


def test_an_end_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    model = Model()
    hooks = [CheckpointSaverHook(tmp_path, save_steps=2), SummarySaverHook(save_steps=1, output_dir=tmp_path / "logs")]
    session = model.session(checkpoint_dir=tmp_path, hooks=[*hooks, EndRaises()])
    with pytest.raises(KeyError, match="at the end"), session:
        for step in range(2):
            session.run(model.loss, share(step))
        assert session._writers
    assert steps(tmp_path) == [2], "what was being saved is written"
    assert not session._writers and session.should_stop() and not (tmp_path / "done").exists()


DEAF = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_session_ends import EndRaises
from test_session_graph import Model

session = Model().session(hooks=[EndRaises()])
try:
    session.close()
except KeyError:
    os.kill(os.getpid(), signal.SIGTERM)
print("deaf")
"""


def test_sigterm_ends_a_process_whose_session_could_not_end() -> None:
    words = [sys.executable, "-c", DEAF, str(Path(__file__).parent)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done


def without_a_place() -> str:
    with pytest.raises(ValueError) as refused:
        Model().session(hooks=[SummarySaverHook(save_steps=1)])
    return str(refused.value)


def test_what_one_rank_would_write_nowhere_is_refused_on_all() -> None:
    text = "SummarySaverHook needs output_dir, because the session has no checkpoint_dir"
    assert run_ranks(2, without_a_place, fresh=True, deadline_s=40) == [text, text]
