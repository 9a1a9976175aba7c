"""One line from time to time that says how fast ranks train, where it was asked for."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from ranks import launch

pytest.importorskip("torch")

SCRIPT = """
import os, time, torch
import phalanx.torch as hvd
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
deadline = time.monotonic() + 1.5
done = torch.zeros(1)
while not done.item():
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    done = hvd.allreduce(torch.tensor([float(time.monotonic() > deadline)]), name="done", op=hvd.Max)
"""


@pytest.mark.parametrize("seconds", ["1", "0"])
def test_rank_0_says_how_fast_it_trains_if_it_is_asked(tmp_path: Path, seconds: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    env = {"PHALANX_THROUGHPUT": seconds}
    job = launch(2, [sys.executable, str(script)], env=env, stdout=PIPE, stderr=STDOUT, text=True)
    printed, _ = job.communicate(timeout=60)
    said = re.findall(r"DistributedOptimizer: pass \d+, [\d.]+ passes/s, [\d.]+ ms each, \d+ % of it", printed)
    assert (job.returncode, len(said)) == (0, int(seconds)), printed
