"""``horovod.tensorflow`` on Phalanx."""

from __future__ import annotations

from phalanx.tensorflow import *  # noqa: F403
from phalanx.tensorflow import __all__ as _names
from phalanx.tensorflow import is_homogeneous

# After the star: Horovod's exceptions, and what also takes ``verbose``.
from horovod.common import util as _util  # isort: skip
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt  # isort: skip
from horovod.tensorflow import compression, elastic, functions, mpi_ops  # isort: skip

ccl_built = _util.ccl_built
cuda_built = _util.cuda_built
ddl_built = _util.ddl_built
gloo_built = _util.gloo_built
mpi_built = _util.mpi_built
nccl_built = _util.nccl_built
rocm_built = _util.rocm_built


def __getattr__(name: str) -> object:
    """Imports what needs Keras when it is first used."""
    import importlib

    if name == "SyncBatchNormalization":
        return importlib.import_module("horovod.tensorflow.sync_batch_norm").SyncBatchNormalization
    if name == "keras":
        return importlib.import_module("horovod.tensorflow.keras")
    raise AttributeError(
        f"module 'horovod.tensorflow' has no {name!r}; docs/from-horovod.md of Phalanx lists what is missing"
    )


__all__ = [
    *_names,
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "compression",
    "elastic",
    "functions",
    "is_homogeneous",
    "mpi_ops",
]
