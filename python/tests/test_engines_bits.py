"""One training under every launcher that this machine has: the same bits as under ``phalanx run``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines_here import slurm, sshd
from ray_cluster import NEEDS_RAY, cluster

SCRIPT = Path(__file__).with_name("scripts") / "digest.py"
LIMIT_S = 120
N = 2


def _digests(text: str) -> list[str]:
    return re.findall(rf"digest of {N} ranks: [0-9a-f]{{64}}", text)


def _under(words: list[str], home: Path, more: dict[str, str] | None = None) -> list[str]:
    """The digests of all ranks of a job that a launcher starts."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_"))}
    env.update(HOME=str(home), OMP_NUM_THREADS="1", **(more or {}))
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    found = _digests(done.stdout)
    assert len(found) == N, done.stdout + done.stderr
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What ``phalanx run`` gives."""
    words = [sys.executable, "-m", "phalanx", "run", "-np", str(N), "--", sys.executable, str(SCRIPT)]
    found = _under(words, tmp_path_factory.mktemp("home"))
    assert len(set(found)) == 1, found
    yield found[0]


LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(N)],
    "mpirun": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", str(N), sys.executable],
    "mpiexec": ["mpiexec.hydra", "-n", str(N), sys.executable],
}
PACKAGES = {"mpirun": "openmpi-bin", "mpiexec": "mpich"}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_training_has_the_same_bits_under_every_launcher(launcher: str, expected: str, tmp_path: Path) -> None:
    words = LAUNCHERS[launcher]
    if shutil.which(words[0]) is None:
        pytest.skip(f"there is no {words[0]} here; the Debian package {PACKAGES[launcher]} has it")
    assert _under([*words, str(SCRIPT)], tmp_path) == [expected] * N


def test_a_training_has_the_same_bits_under_srun(expected: str, tmp_path: Path) -> None:
    with slurm(tmp_path, N) as env:
        words = ["srun", "-Q", "-N1", f"-n{N}", sys.executable, str(SCRIPT)]
        assert _under(words, tmp_path, env) == [expected] * N


def test_a_training_has_the_same_bits_through_ssh(expected: str, tmp_path: Path) -> None:
    with sshd(tmp_path) as rsh:
        words = [sys.executable, "-m", "phalanx", "run", "-H", f"there:{N}", "--rsh", rsh, "--"]
        assert _under([*words, sys.executable, str(SCRIPT)], tmp_path) == [expected] * N


@NEEDS_RAY
def test_a_training_has_the_same_bits_in_a_ray_cluster(expected: str) -> None:
    import phalanx.ray

    def work(path: str) -> str:
        import runpy

        return str(runpy.run_path(path)["train"]())

    with cluster(cpus=N):
        found = phalanx.ray.run(work, (str(SCRIPT),), workers=N)
    assert found == [expected] * N
