"""Scripts as people write them for Horovod, unchanged, under every launcher that Horovod's users have."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).with_name("scripts")
LAUNCHERS = {
    "horovodrun": [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "-H", "localhost:2", sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable],
    "python": [sys.executable],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_scripts_for_horovod_run_unchanged(launcher: str) -> None:
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "OMPI_", "PMIX_"))}
    # A secret for launchers that bring none; it is not left behind in the user's home.
    env |= {"OMP_NUM_THREADS": "1", "PHALANX_SECRET": secrets.token_hex(32)}
    words = [*LAUNCHERS[launcher], str(SCRIPTS / "every.py")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    n = 1 if launcher == "python" else 2
    for script in ("mnist", "imagenet", "synthetic"):
        for rank in range(n):
            assert f"{script}: rank {rank} of {n} is done" in done.stdout, done.stdout + done.stderr
