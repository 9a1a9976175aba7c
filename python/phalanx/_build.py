"""Horovod's questions about what it was built with. Scripts ask them to choose a way to communicate; here there is one.
The C interface gives the same answers.

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
    """No: there is no MPI, so none that threads could call."""
    return False


def mpi_enabled() -> bool:
    """No: ranks do not communicate through MPI, also where mpirun has started them."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """No. ``verbose`` also prints why."""
    return _answer(False, "mpirun may start ranks, but they do not communicate through MPI", verbose)


def gloo_enabled() -> bool:
    """Whether tensors of the CPU can travel now: between ``init()`` and ``shutdown()``."""
    return _phalanx.is_initialized()


def gloo_built(verbose: bool = False) -> bool:
    """Yes, in the sense in which scripts ask: tensors of the CPU can travel. ``verbose`` also prints why."""
    return _answer(True, "tensors of the CPU travel through shared memory and TCP, without Gloo", verbose)


def nccl_built(verbose: bool = False) -> int:
    """0: no. Tensors of a GPU travel through the host's memory. ``verbose`` also prints that."""
    return int(_answer(False, "tensors of a GPU travel through the host's memory", verbose))


def ddl_built(verbose: bool = False) -> bool:
    """No. ``verbose`` also prints why."""
    return _answer(False, "IBM's DDL is not needed", verbose)


def ccl_built(verbose: bool = False) -> bool:
    """No. ``verbose`` also prints why."""
    return _answer(False, "Intel's oneCCL is not needed", verbose)


def cuda_built(verbose: bool = False) -> bool:
    """No. ``verbose`` also prints why."""
    return _answer(False, "tensors of a GPU travel through the host's memory", verbose)


def rocm_built(verbose: bool = False) -> bool:
    """No. ``verbose`` also prints why."""
    return _answer(False, "tensors of a GPU travel through the host's memory", verbose)


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
