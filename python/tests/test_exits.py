"""How a rank's end reaches the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ranks import launch

SCRIPT = """
import sys, numpy, phalanx, phalanx.numpy
phalanx.init()
phalanx.numpy.allreduce(numpy.ones(1), name="a")
if phalanx.rank() == 1:
    sys.exit("no data found")
try:
    phalanx.numpy.allreduce(numpy.ones(1), name="b")
except phalanx.RankLostError as error:
    print("lost", error.rank)
    raise
"""


def test_a_rank_that_exits_with_a_message_is_lost_and_not_shut_down(tmp_path: Path) -> None:
    script = tmp_path / "exits.py"
    script.write_text(SCRIPT)
    job = launch(2, [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text, _ = job.communicate(timeout=60)
    assert "lost 1" in text, text
    assert "no data found" in text, text
    assert job.returncode != 0
