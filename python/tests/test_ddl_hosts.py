"""DDL's example on 12 ranks of three hosts, under every launcher; and ranks that end or never call."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts_here import Hosts, hosts

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddl_digits.py"
SEED = ["--ranks-per-host", "4", "--mode", "-mode n:4x3 -dump_iter 100", "--check", "0.17", "--steps", "120"]
LIMIT_S = 300
N = 12

PACKAGES = {"mpirun.openmpi": "openmpi-bin", "mpiexec.hydra": "mpich"}


def _words(found: Hosts, launcher: str) -> list[str]:
    """What starts a program as 4 ranks on each host, through ssh."""
    listed = found.listed(4)
    if launcher == "phalanx":
        return [sys.executable, "-m", "phalanx", "run", "-np", str(N), "-H", listed, "--rsh", found.rsh, "--"]
    if shutil.which(launcher) is None:
        pytest.skip(f"there is no {launcher} here; the Debian package {PACKAGES[launcher]} has it")
    if launcher == "mpirun.openmpi":
        words = [launcher, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "plm_rsh_agent"]
        words += [found.rsh, "--mca", "oob_tcp_if_include", "eth0", "--mca", "btl_tcp_if_include", "eth0"]
        return [*words, "-H", listed, "-np", str(N)]
    words = [launcher, "-launcher", "ssh", "-launcher-exec", found.rsh, "-iface", "eth0", "-hosts", listed]
    return [*words, "-n", str(N)]


def _run(found: Hosts, launcher: str, program: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "DDL_"))}
    env.update(HOME=str(home), TMPDIR=str(home), OMP_NUM_THREADS="1")
    words = [*found.on(0), *_words(found, launcher), *program]
    quiet = subprocess.DEVNULL
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S, stdin=quiet, cwd=home)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with hosts(tmp_path_factory.mktemp("hosts"), 3) as found:
        yield found


DIGESTS: dict[str, str] = {}
"""What each launcher gave, so that the next can be compared with it."""


@pytest.mark.parametrize("launcher", ["phalanx", "mpirun.openmpi", "mpiexec.hydra"])
def test_the_example_has_the_same_bits_on_all_ranks_under_every_launcher(
    launcher: str, three: Hosts, tmp_path: Path
) -> None:
    done = _run(three, launcher, [sys.executable, str(EXAMPLE), *SEED], tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    digests = dict(re.findall(r"rank (\d+): digest ([0-9a-f]{64})", done.stdout))
    assert sorted(map(int, digests)) == list(range(N)), said
    assert len(set(digests.values())) == 1, said
    DIGESTS[launcher] = digests["0"]
    assert len(set(DIGESTS.values())) == 1, f"launchers differ: {DIGESTS}"
    assert "12 ranks on 3 hosts: " in said
    accuracy = float(re.search(r"3 hosts: ([0-9.]+)% of 1000 unseen digits", said)[1])  # type: ignore[index]
    assert accuracy > 80, said
    assert "tier 0: 4 ranks, arena" in said
    assert "tier 1: 3 ranks, ring" in said
    # -dump_iter 100: rank 0 says once where the time went.
    assert re.search(r"tier 1.*ring", done.stderr), done.stderr


ABSENT = """
import os, signal, sys
import numpy as np
from phalanx import ddl

victim, how = int(sys.argv[1]), sys.argv[2]
learner = ddl.init(4, mode="-mode n:4x3")
x = np.ones(1_000_000, np.float32)
assert ddl.allreduce(x, name="first")[0] == learner.size
if learner.rank == victim and how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if learner.rank == victim and how == "silent":
    signal.pause()
try:
    ddl.allreduce(x, name="second")
except Exception as error:
    sys.stderr.write(f"rank {learner.rank} heard: {error}\\n")
    sys.stderr.flush()
    os._exit(3)
"""


@pytest.mark.parametrize("victim", [0, 6, 8])
def test_a_rank_that_is_killed_is_named_on_all_ranks(victim: int, three: Hosts, tmp_path: Path) -> None:
    """The first rank of all, one inside a host, and the first of another host."""
    (tmp_path / "absent.py").write_text(ABSENT)
    program = [sys.executable, str(tmp_path / "absent.py"), str(victim), "killed"]
    done = _run(three, "phalanx", program, tmp_path)
    assert done.returncode == 128 + signal.SIGKILL, done.stdout + done.stderr
    heard = re.findall(r"rank (\d+) heard: (.*)", done.stderr)
    others = [rank for rank in range(N) if rank != victim]
    assert sorted(int(rank) for rank, _ in heard) == others, done.stderr
    assert all(re.search(rf"\brank {victim}\b", error) for _, error in heard), done.stderr


def test_a_rank_that_never_calls_is_named_after_the_stall_time(three: Hosts, tmp_path: Path) -> None:
    (tmp_path / "absent.py").write_text(ABSENT)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "DDL_"))}
    words = [*three.on(0), *_words(three, "phalanx"), sys.executable, str(tmp_path / "absent.py"), "6", "silent"]
    job = subprocess.Popen(
        words,
        env={**env, "HOME": str(tmp_path), "PHALANX_STALL_WARN": "2"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with job:
        assert job.stderr is not None
        heard = []
        for line in job.stderr:
            heard.append(line)
            if "second" in line:
                break
        job.send_signal(signal.SIGTERM)
        job.stderr.read()
        job.wait(LIMIT_S)
    assert re.search(r"second: waiting [0-9.]+ s for rank 6$", heard[-1].strip()), heard
