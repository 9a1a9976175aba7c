"""Horovod's questions about how it was built, without torch. The C interface gives the same answers.

>>> gloo_built(), mpi_built(), nccl_built()
(True, False, 0)
"""

from __future__ import annotations

from phalanx import _phalanx


def gloo_built() -> bool:
    """Yes: to programs that ask, Phalanx stands where Gloo would, a transport for CPUs that needs no MPI."""
    return True


def gloo_enabled() -> bool:
    """Whether it runs: between ``init()`` and ``shutdown()``."""
    return _phalanx.is_initialized()


def mpi_built() -> bool:
    """No."""
    return False


def mpi_enabled() -> bool:
    """No."""
    return False


def mpi_threads_supported() -> bool:
    """Raises, as Horovod does without MPI."""
    raise ValueError(
        "there is no MPI here whose threads could be asked about; a program may use mpi4py beside it without asking"
    )


def nccl_built() -> int:
    """No: 0 instead of a version."""
    return 0


def ddl_built() -> bool:
    """No."""
    return False


def ccl_built() -> bool:
    """No."""
    return False


def cuda_built() -> bool:
    """No."""
    return False


def rocm_built() -> bool:
    """No."""
    return False


__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]
