"""mpi4py and Phalanx in one process, under the launchers of Open MPI and MPICH, in either order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("mpi4py") is None, reason="mpi4py is not installed; `cargo xtask python` or `pip install mpi4py` does it"
)

SCRIPT = """
import sys
import numpy
import phalanx, phalanx.numpy

def mpi():
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    here = numpy.full(4, world.Get_rank() + 1.0)
    total = numpy.empty_like(here)
    world.Allreduce(here, total)
    assert total.tolist() == [3.0] * 4, total
    assert world.allreduce(world.Get_rank()) == 1
    return world.Get_rank(), world.Get_size(), MPI.Get_library_version().split()[0]

def ours():
    phalanx.init()
    total = phalanx.numpy.allreduce(numpy.full(4, phalanx.rank() + 1.0), op=phalanx.Sum)
    assert total.tolist() == [3.0] * 4, total
    return phalanx.rank(), phalanx.size()

for step in sys.argv[1]:
    place = mpi() if step == "m" else ours()
    # At once, or the lines of two ranks may mix.
    sys.stdout.write(" ".join(map(str, ("step", step, *place))) + "\\n")
    sys.stdout.flush()
"""

LAUNCHERS = {
    "Open MPI": ("mpirun.openmpi --allow-run-as-root --oversubscribe -np 2", "openmpi", "libmpi.so.40", "openmpi-bin"),
    "MPICH": ("mpiexec.hydra -n 2", "mpich", "libmpich.so.12", "mpich"),
}


@pytest.mark.parametrize("order", ["mpm", "pmp"])
@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_mpi4py_works_before_and_after(mpi: str, order: str, tmp_path: Path) -> None:
    words, abi, library, package = LAUNCHERS[mpi]
    launcher = words.split()
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"there is no {launcher[0]} here; the Debian package {package} has it")
    script = tmp_path / "both.py"
    script.write_text(SCRIPT)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_"))}
    # Which of the installed libraries mpi4py loads must fit the launcher.
    env.update(HOME=str(tmp_path), OMP_NUM_THREADS="1", MPI4PY_MPIABI=abi, MPI4PY_LIBMPI=library)
    if mpi == "MPICH":
        # mpi4py knows it by the name that all but Debian give it.
        known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=60).stdout
        found = [line.split(" => ")[1] for line in known.splitlines() if line.strip().startswith(library)]
        (tmp_path / "libmpi.so.12").symlink_to(found[0])
        env["LD_LIBRARY_PATH"] = str(tmp_path)
    done = subprocess.run(
        [*launcher, sys.executable, str(script), order],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert text.count("step p 0 2") == text.count("step p 1 2") == order.count("p"), text
    assert text.count("step m 0 2") == text.count("step m 1 2") == order.count("m"), text
    assert ("Open" in text) == (mpi == "Open MPI"), text
