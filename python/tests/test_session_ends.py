"""How sessions end: on parameter servers, after mistakes, and when the end itself fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("joins", ["first", "in the session"])
def test_a_script_that_does_not_ask_whether_it_is_a_parameter_server_ends_well(tmp_path: Path, joins: str) -> None:
    script = tmp_path / "ported.py"
    script.write_text(PORTED)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_"))}
    words = ["-m", "phalanx", "train", "-s", "1", "-w", "2", str(script), "--", str(Path(__file__).parent), joins]
    done = subprocess.run(
        [sys.executable, *words], env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = sorted(line.split("ended ")[1] for line in done.stdout.splitlines() if "ended " in line)
    assert said[0] == "ps 0 False" and [line.split()[1] for line in said[1:]] == ["3", "3"], done.stdout
    assert sum(line.endswith("True") for line in said) == 1
