"""This process as a rank, under Horovod's class name.

>>> basics = HorovodBasics(__file__, "mpi_lib_v2")
>>> basics.init()
>>> basics.rank(), basics.size(), basics.gloo_built()
(0, 1, True)
"""

from __future__ import annotations

from typing import NoReturn

import phalanx
from phalanx import _build, reductions, timeline
from phalanx.process_sets import process_set_ids_and_ranks


class HorovodBasics:
    """The functions that Horovod's frameworks share; all of them are also public elsewhere."""

    Average = reductions.Average
    Sum = reductions.Sum
    Adasum = reductions.Adasum
    Min = reductions.Min
    Max = reductions.Max
    Product = reductions.Product

    init = staticmethod(phalanx.init)
    shutdown = staticmethod(phalanx.shutdown)
    is_initialized = staticmethod(phalanx.is_initialized)
    rank = staticmethod(phalanx.rank)
    size = staticmethod(phalanx.size)
    local_rank = staticmethod(phalanx.local_rank)
    local_size = staticmethod(phalanx.local_size)
    cross_rank = staticmethod(phalanx.cross_rank)
    cross_size = staticmethod(phalanx.cross_size)
    is_homogeneous = staticmethod(phalanx.is_homogeneous)
    start_timeline = staticmethod(timeline.start_timeline)
    stop_timeline = staticmethod(timeline.stop_timeline)
    mpi_threads_supported = staticmethod(_build.mpi_threads_supported)
    mpi_enabled = staticmethod(_build.mpi_enabled)
    mpi_built = staticmethod(_build.mpi_built)
    gloo_enabled = staticmethod(_build.gloo_enabled)
    gloo_built = staticmethod(_build.gloo_built)
    nccl_built = staticmethod(_build.nccl_built)
    ddl_built = staticmethod(_build.ddl_built)
    ccl_built = staticmethod(_build.ccl_built)
    cuda_built = staticmethod(_build.cuda_built)
    rocm_built = staticmethod(_build.rocm_built)
    _get_process_set_ids_and_ranks = staticmethod(process_set_ids_and_ranks)

    def __init__(self, pkg_path: str, *args: str) -> None:
        self._wanted = (pkg_path, *args)

    def __getattr__(self, name: str) -> NoReturn:
        if name == "MPI_LIB_CTYPES":
            raise AttributeError(
                f"HorovodBasics{self._wanted} does not load a Horovod library; "
                "for ctypes open libphalanx, which has Horovod's C functions (docs/c.md of Phalanx)"
            )
        raise AttributeError(f"HorovodBasics has no {name!r}; docs/from-horovod.md of Phalanx lists what is missing")


__all__ = ["HorovodBasics"]
