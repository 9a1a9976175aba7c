"""The collectives, under Horovod's module name."""

from __future__ import annotations

from phalanx.torch import *  # noqa: F403
from phalanx.torch import __all__ as _names
from phalanx.torch import is_homogeneous

# After the star: Horovod's exceptions.
from horovod.common import util as _util  # isort: skip
from horovod.common.basics import HorovodBasics as _HorovodBasics  # isort: skip
from horovod.common.exceptions import (  # isort: skip
    HorovodInternalError,
    HorovodVersionMismatchError,
    HostsUpdatedInterrupt,
)

#: Scripts reach through it to what has public names, too.
_basics = _HorovodBasics(__file__, "mpi_lib_v2")
mpi_threads_supported = _basics.mpi_threads_supported
gloo_enabled = _basics.gloo_enabled
mpi_enabled = _basics.mpi_enabled
# These also take ``verbose``.
ccl_built = _util.ccl_built
cuda_built = _util.cuda_built
ddl_built = _util.ddl_built
gloo_built = _util.gloo_built
mpi_built = _util.mpi_built
nccl_built = _util.nccl_built
rocm_built = _util.rocm_built
num_rank_is_power_2 = _util.num_rank_is_power_2

#: Which reduction ``op`` and the old ``average`` mean.
handle_average_backwards_compatibility = _util.get_average_backwards_compatibility_fun(_basics)

__all__ = [
    *_names,
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "handle_average_backwards_compatibility",
    "is_homogeneous",
    "num_rank_is_power_2",
]
