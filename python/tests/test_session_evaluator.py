"""Evaluators beside a training."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from test_session_graph import Model, share

import phalanx.graph as fluid
from phalanx.distributed import CheckpointSaverHook, StopAtStepHook, evaluate_continuously

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


def test_time_and_interrupts_end_it(tmp_path: Path) -> None:
    began = time.monotonic()
    assert evaluate_continuously(tmp_path / "nowhere", print, max_time_secs=0.2) == []
    assert 0.2 <= time.monotonic() - began < 5
    timer = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        evaluate_continuously(tmp_path / "nowhere", print)
    timer.join()
