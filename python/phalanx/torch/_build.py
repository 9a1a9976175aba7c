"""Horovod's questions about how it was built. Phalanx needs none of these."""

from __future__ import annotations


def mpi_threads_supported() -> bool:
    """There is no MPI."""
    raise ValueError("Phalanx does not use MPI, so it cannot say what MPI supports.")


def mpi_enabled() -> bool:
    """No."""
    return False


def nccl_built() -> int:
    """No."""
    return 0


mpi_built = gloo_enabled = gloo_built = ddl_built = ccl_built = cuda_built = rocm_built = mpi_enabled

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
