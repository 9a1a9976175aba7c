"""DDL's functions beside a real MPI, Open MPI's and MPICH's: each is skipped, loudly, where its package is absent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ranks import run_ranks

import phalanx
from phalanx import ddl

SCRIPT = """
import os, sys
import numpy as np
import phalanx
from phalanx import ddl

rank, size, _ = ddl.init(None, sys.argv[1])
is_m = "-mode m" in sys.argv[1]
for kind in ["u1", "i1", "u2", "i2", "i4", "i8", "f2", "f4", "f8", "?"]:
    for length in [0, 7, 1003]:
        x = (np.arange(length) % 3 + rank % 2).astype(kind)
        for op in ["sum", "max", "min", "prod"] + ([] if kind == "?" else ["avg"]):
            ours = ddl.allreduce(x, op=op, check=0.17, name=f"{kind}.{length}.{op}")
            theirs = ddl.allreduce(x, op=op, mpi=True, check=0.17, name=f"{kind}.{length}.{op}.mpi")
            assert np.array_equal(ours, theirs), (kind, length, op, ours, theirs)
big = np.sin(np.arange(100_003) * (rank + 1)).astype("f4")
assert np.allclose(ddl.allreduce(big, check=1e-3), ddl.allreduce(big, mpi=True), atol=1e-5)
many = ddl.allreduce_n([np.full(i, float(rank)) for i in range(20)], op="avg", check=0.1)
assert all(np.allclose(x, (size - 1) / 2) for x in many)
bad = np.array([1.0, float("nan") if rank == 1 else 2.0])
try:
    ddl.allreduce(bad, check=0.1, name="bad")
    raise SystemExit("NaN is found")
except phalanx.CheckError as error:
    assert "the input of rank 1 was not a finite number" in str(error), error
baseline = ddl.report().baseline
assert is_m == baseline.startswith("all inputs gathered") and is_m == baseline.endswith("not MPI: the result is MPI's own"), baseline
assert is_m == (ddl.report()[0].way == "mpi"), ddl.report()
# Another init goes on with the same MPI: it cannot begin twice in a process.
ddl.finalize()
ddl.init(None, sys.argv[1])
assert ddl.allreduce(np.ones(3), mpi=True).tolist() == [float(size)] * 3
ddl.finalize()
sys.stdout.write(f"rank {rank} of {size}: {baseline}\\n")
"""

LAUNCHERS = {
    "Open MPI": (
        "mpirun.openmpi --allow-run-as-root --oversubscribe -np 4",
        "openmpi-bin",
        "MPI_Allreduce of Open MPI v",
    ),
    "MPICH": ("mpiexec.hydra -n 4", "mpich", "MPI_Allreduce of MPICH Version"),
}


def launched(mpi: str, script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    launcher = LAUNCHERS[mpi][0].split()
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"there is no {launcher[0]} here; `apt-get install {LAUNCHERS[mpi][1]}` brings it")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "DDL_"))}
    env.update(HOME=str(script.parent), OMP_NUM_THREADS="1")
    return subprocess.run(
        [*launcher, sys.executable, str(script), *words],
        env=env,
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("mode", ["-mode n:2x2", "-mode m:2x2"])
@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_results_are_those_of_mpi(mpi: str, mode: str, tmp_path: Path) -> None:
    script = tmp_path / "both.py"
    script.write_text(SCRIPT)
    done = launched(mpi, script, mode)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    named = "all inputs gathered" if "m:" in mode else LAUNCHERS[mpi][2]
    assert all(f"rank {r} of 4: {named}" in done.stdout for r in range(4)), text
    assert "exiting improperly" not in text, text
    assert "BAD TERMINATION" not in text, text


ALL_BY_MPI = """
import sys
import numpy as np
import torch
import phalanx
import phalanx.numpy as pn
import phalanx.torch as hvd
from phalanx import ddl

rank, size, _ = ddl.init(None, "-mode m:2x2 -dump_iter 1")
sent = lambda: sum(tier.bytes for tier in ddl.report())
before = sent()
for turn in range(3):
    x = np.arange(70_000, dtype="f4") % 7 + rank
    whole = size * (np.arange(70_000) % 7) + size * (size - 1) / 2
    assert np.array_equal(pn.allreduce(x, op=pn.Sum, prescale_factor=0.5, postscale_factor=4.0), 2 * whole)
    assert np.array_equal(pn.allreduce(x, op=pn.Average, postscale_factor=2.0), 2 * whole / size)
    t = torch.from_numpy(x)
    for compression in [hvd.Compression.fp16, hvd.Compression.bf16]:
        got = hvd.allreduce(t, op=hvd.Sum, compression=compression, prescale_factor=0.25)
        assert got.dtype == torch.float32 and np.array_equal(got.numpy(), whole / 4), (got, whole)
# All of it was MPI's: we sent nothing but what ranks agree on, which is not counted.
assert sent() == before, ddl.report()
try:
    hvd.allreduce(t, op=hvd.Adasum)
    raise SystemExit("MPI has no adasum")
except phalanx.NoMpiError as error:
    assert "it has no adasum: reduce with sum or average" in str(error), error
for turn in range(3):
    assert ddl.allreduce(np.ones(9), name="w").tolist() == [4.0] * 9
ddl.finalize()
sys.stdout.write(f"rank {rank} is done\\n")
"""


@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_scaled_and_compressed_sums_are_mpis_in_mode_m_and_adasum_is_refused(mpi: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "all.py"
    script.write_text(ALL_BY_MPI)
    done = launched(mpi, script)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert all(f"rank {r} is done" in done.stdout for r in range(4)), text
    lines = [line.strip() for line in done.stderr.splitlines() if "ranks, mpi, " in line]
    assert len(lines) == 4, text  # Two dumps of two tiers.
    assert all("s; besides MPI's " in line for line in lines), lines


ONE_THREAD = """
import ctypes, sys
import numpy as np
import phalanx
from phalanx import ddl

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
# The program of rank 1 asks for less than Phalanx needs: only its own MPI refuses.
provided, me = ctypes.c_int(), int(__import__("os").environ["OMPI_COMM_WORLD_RANK"])
assert mpi.MPI_Init_thread(None, None, 0 if me == 1 else 3, ctypes.byref(provided)) == 0
rank, size, _ = ddl.init()
for _ in range(2):
    try:
        ddl.allreduce(np.ones(3), mpi=True, name="w")
        raise SystemExit("rank 1 cannot enter MPI")
    except phalanx.NoMpiError as error:
        assert "initialised for one thread at a time" in str(error) and "(rank 1)" in str(error), error
assert ddl.allreduce(np.ones(3), check=0.1).tolist() == [4.0] * 3
ddl.finalize()
mpi.MPI_Finalize()
sys.stdout.write(f"rank {rank} goes on\\n")
"""


def test_a_rank_that_mpi_refuses_leaves_no_other_rank_in_mpi(tmp_path: Path) -> None:
    """ENTER-1."""
    script = tmp_path / "one.py"
    script.write_text(ONE_THREAD)
    done = launched("Open MPI", script)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert all(f"rank {r} goes on" in done.stdout for r in range(4)), text


KILLED = """
import os, signal, sys
import numpy as np
import phalanx
from phalanx import ddl

rank, size, _ = ddl.init()
# Launchers end the others, too; they are to say first whom they miss.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ddl.allreduce(np.ones(3), mpi=True, name="first")
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for step in range(1000):
        ddl.allreduce(np.ones(300_000), mpi=True, name=f"t{step}")
except phalanx.RankLostError as error:
    open(f"said.{rank}", "w").write(str(error.rank))
    os._exit(3)
"""


def test_a_rank_that_is_lost_is_named_also_while_others_are_in_mpi(tmp_path: Path) -> None:
    """ENTER-2."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    done = launched("Open MPI", script)
    assert done.returncode != 0
    said = [path.read_text() for path in tmp_path.glob("said.*")]
    assert said == ["2"] * len(said), done.stderr
    assert said, done.stdout + done.stderr


def refused(library: str | None) -> tuple[str, str]:
    phalanx.shutdown()
    with pytest.raises(phalanx.InitializationError) as mode:
        ddl.init(None, "-mode m:2")
    ddl.init()
    with pytest.raises(phalanx.NoMpiError) as call:
        ddl.allreduce(np.ones(2), mpi=True)
    assert ddl.allreduce(np.ones(2), check=0.1).tolist() == [2.0, 2.0]
    ddl.finalize()
    return str(mode.value), str(call.value)


def test_mpi_that_is_not_there_is_refused_on_all_ranks() -> None:
    for mode, call in run_ranks(2, refused, None, fresh=True):
        assert mode.startswith(
            "-mode m needs MPI: MPI cannot be used: no MPI started this process: start it with mpirun"
        )
        assert call.startswith("MPI cannot be used: no MPI started this process")


def test_a_library_that_is_not_mpi_is_refused() -> None:
    for _, call in run_ranks(2, refused, None, fresh=True, env={"PHALANX_MPI_LIB": "libm.so.6"}):
        assert call.startswith(
            "MPI cannot be used: libm.so.6 is not an MPI library: it has no MPI_Get_library_version."
        )


def test_an_mpi_of_another_size_is_refused() -> None:
    if shutil.which("mpiexec.hydra") is None:
        pytest.skip("there is no mpiexec.hydra here; `apt-get install mpich` brings it")
    for _, call in run_ranks(2, refused, None, fresh=True, env={"PHALANX_MPI_LIB": "libmpich.so.12"}):
        assert call == (
            "MPI cannot be used: MPI has other ranks: this process is rank 0 of 1 there, but rank 0 of 2 here; "
            "start all ranks with one mpirun of libmpich.so.12 (rank 0)"
        )
