"""Evaluators beside a training."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from test_session_graph import Model, share

import phalanx.graph as fluid
from phalanx.distributed import CheckpointSaverHook, StopAtStepHook, TaskSpecDef, evaluate_continuously
from phalanx.exceptions import CheckpointError

BESIDE = """
import sys
from phalanx.distributed import evaluate_continuously
print("began", flush=True)
for step, value in evaluate_continuously(sys.argv[1], lambda c: c.step * 2, newest_only=False):
    print("result", step, value, flush=True)
print("ended", flush=True)
"""


def trained(folder: Path, last: int) -> dict[int, float]:
    model, wanted = Model(), {}
    hooks = [StopAtStepHook(last_step=last), CheckpointSaverHook(folder, save_steps=1, keep=last)]
    with model.session(checkpoint_dir=folder, hooks=hooks) as session:
        while not session.should_stop():
            session.run([], share(session.global_step))
            wanted[session.global_step] = float(model.scope["fc_1.b_0"].sum())
    return wanted


def test_five_checkpoints_give_five_results(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BESIDE, str(tmp_path / "saved")]
    beside = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert beside.stdout is not None and beside.stdout.readline() == "began\n"
    wanted = trained(tmp_path / "saved", 5)
    output, _ = beside.communicate(timeout=60)
    assert output.splitlines() == [*(f"result {i} {2 * i}" for i in range(1, 6)), "ended"]
    assert beside.returncode == 0
    model = Model(seed=40)
    for_test = model.main.clone(for_test=True)

    def measure(checkpoint: Any) -> float:
        assert checkpoint.about["world"] == 1 and checkpoint.path.name == f"checkpoint-{checkpoint.step}"
        checkpoint.load(for_test, scope=model.scope)
        return float(model.scope["fc_1.b_0"].sum())

    assert evaluate_continuously(tmp_path / "saved", measure, newest_only=False) == list(wanted.items())
    with fluid.scope_guard(model.scope):
        assert evaluate_continuously(tmp_path / "saved", lambda c: c.load(for_test)) == [(5, [])]


def test_one_that_is_deleted_is_skipped_and_other_errors_are_not(tmp_path: Path) -> None:
    trained(tmp_path, 3)
    main = Model().main

    def measure(checkpoint: Any) -> int:
        if checkpoint.step == 2:
            shutil.rmtree(checkpoint.path)
        checkpoint.load(main, scope=fluid.Scope())
        return int(checkpoint.step)

    assert evaluate_continuously(tmp_path, measure, newest_only=False) == [(1, 1), (3, 3)]
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        evaluate_continuously(tmp_path, lambda c: Path("elsewhere").read_text())


def test_one_that_is_damaged_is_told_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path / "saved", 4)
    for step in (2, 4):
        (shard,) = (tmp_path / "saved" / f"checkpoint-{step}").glob("shard-*")
        content = bytearray(shard.read_bytes())
        content[-5] ^= 1
        shard.write_bytes(content)
    main, other = Model().main, Model(width=9).main

    def measure(checkpoint: Any) -> int:
        checkpoint.load(main, scope=fluid.Scope())
        return int(checkpoint.step)

    with caplog.at_level(logging.INFO, "phalanx.session"):
        results = evaluate_continuously(tmp_path / "saved", measure, newest_only=False, output_path=tmp_path / "logs")
    assert results == [(1, 1), (3, 3)] and len(list((tmp_path / "logs").iterdir())) == 1
    said = [line for line in caplog.messages if line.startswith("a checkpoint is not whole and was skipped: step ")]
    assert [line.split("step ")[1].split(":")[0] for line in said] == ["2", "4"] and "is damaged" in said[0], said
    with pytest.raises(CheckpointError, match="does not fit"):
        evaluate_continuously(tmp_path / "saved", lambda c: c.load(other, scope=fluid.Scope()), newest_only=False)


def test_time_and_interrupts_end_it(tmp_path: Path) -> None:
    began = time.monotonic()
    assert evaluate_continuously(tmp_path / "nowhere", print, max_time_secs=0.2) == []
    assert 0.2 <= time.monotonic() - began < 5
    timer = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        evaluate_continuously(tmp_path / "nowhere", print)
    timer.join()


AGAIN = """
import sys
from pathlib import Path

folder = Path(sys.argv[1])
sys.path.insert(0, sys.argv[2])
from phalanx.distributed import TaskSpec, evaluate_continuously
from test_session_evaluator import trained

spec = TaskSpec()
if "last" in sys.argv:
    spec = spec.use_last_worker_as_evaluator()

def measure(checkpoint):
    if checkpoint.step == 2:
        # All that the earlier training has saved is evaluated, and its mark is still there.
        assert (folder / "saved" / "done").exists()
        (folder / "go").open("w").close()
    return checkpoint.step

if spec.is_evaluator():
    given = spec if "last" in sys.argv else None
    found = evaluate_continuously(folder / "saved", measure, newest_only=False, task_spec=given)
    (folder / "results").write_text(repr(found))
else:
    spec.create_server()
    (folder / "go").open().close()
    trained(folder / "saved", 4)
"""
JOBS = {
    "phalanx run": [sys.executable, "-m", "phalanx", "run", "-np", "1", "--evaluator"],
    "phalanx run, last": [sys.executable, "-m", "phalanx", "run", "-np", "2"],
    "torchrun, last": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "mpirun, last": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable],
}


@pytest.mark.parametrize("kind", JOBS)
def test_the_evaluator_of_a_job_waits_for_the_training_of_that_job(tmp_path: Path, kind: str) -> None:
    # FOLLOW-3
    if kind.startswith("mpirun") and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    if kind.startswith("torchrun") and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    trained(tmp_path / "saved", 2)
    assert (tmp_path / "saved" / "done").exists()
    os.mkfifo(tmp_path / "go")
    script = tmp_path / "again.py"
    script.write_text(AGAIN)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "OMPI_", "PMIX_"))}
    env |= {"OMP_NUM_THREADS": "1", "PHALANX_SECRET": secrets.token_hex(32)}
    words = [*JOBS[kind], str(script), str(tmp_path), str(Path(__file__).parent), *kind.split(", ")[1:]]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "results").read_text() == "[(1, 1), (2, 2), (3, 3), (4, 4)]", done.stderr
    assert "an earlier training has ended; the evaluator waits for the one of this job" in done.stderr


def test_only_an_evaluator_waits_for_its_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path, 1)
    with caplog.at_level(logging.INFO):
        assert evaluate_continuously(tmp_path, lambda c: c.step) == [(1, 1)]
    assert "the training has ended (`done`); the evaluator does not wait for another one" in caplog.text
    with pytest.raises(ValueError, match=r"worker 1 \(2 workers, 0 ps\)>, which is not an evaluator"):
        evaluate_continuously(tmp_path, print, task_spec=TaskSpecDef("worker", 1, worker_hosts="a:1,b:1"))
