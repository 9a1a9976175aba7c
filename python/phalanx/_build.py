"""Horovod's functions that say what it was built with. Scripts call them to choose a backend; Phalanx has only one.
The C interface returns the same values.

>>> gloo_built()
True
>>> mpi_built()
False
"""

from __future__ import annotations

import sys

from phalanx import _phalanx


def _answer(yes: bool, why: str, verbose: bool) -> bool:
    if verbose:
        print(f"phalanx: {'yes' if yes else 'no'}: {why}", file=sys.stderr)
    return yes


def mpi_threads_supported() -> bool:
    """False: Phalanx does not use MPI."""
    return False


def mpi_enabled() -> bool:
    """False: ranks do not communicate through MPI, even if mpirun has started them."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """False. ``verbose`` also prints why."""
    return _answer(False, "mpirun may start ranks, but they do not communicate through MPI", verbose)


def gloo_enabled() -> bool:
    """Whether CPU tensors can be communicated now: between ``init()`` and ``shutdown()``."""
    return _phalanx.is_initialized()


def gloo_built(verbose: bool = False) -> bool:
    """True: CPU tensors can be communicated, which is what scripts want to know. ``verbose`` also prints why."""
    return _answer(True, "CPU tensors are communicated through shared memory and TCP, without Gloo", verbose)


def nccl_built(verbose: bool = False) -> int:
    """0: GPU tensors are copied through host memory. ``verbose`` also prints why."""
    return int(_answer(False, "GPU tensors are copied through host memory", verbose))


def ddl_built(verbose: bool = False) -> bool:
    """False. ``verbose`` also prints why."""
    return _answer(False, "IBM's DDL is not needed", verbose)


def ccl_built(verbose: bool = False) -> bool:
    """False. ``verbose`` also prints why."""
    return _answer(False, "Intel's oneCCL is not needed", verbose)


def cuda_built(verbose: bool = False) -> bool:
    """False. ``verbose`` also prints why."""
    return _answer(False, "GPU tensors are copied through host memory", verbose)


def rocm_built(verbose: bool = False) -> bool:
    """False. ``verbose`` also prints why."""
    return _answer(False, "GPU tensors are copied through host memory", verbose)


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
