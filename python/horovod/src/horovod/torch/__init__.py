"""``horovod.torch`` on Phalanx.

>>> import torch
>>> import horovod.torch as hvd
>>> hvd.init()
>>> hvd.allreduce(torch.ones(2), name="x")
tensor([1., 1.])
"""

from __future__ import annotations

from horovod.torch.mpi_ops import *  # noqa: F403
from horovod.torch.mpi_ops import __all__ as _names

# After the star: what has Horovod's own names and words.
from horovod.torch import elastic, mpi_ops  # isort: skip
from horovod.torch.optimizer import DistributedOptimizer, _DistributedOptimizer  # noqa: F401  # isort: skip


def _check_has_gpu() -> bool:
    """Whether torch sees a GPU."""
    import torch

    return bool(torch.cuda.is_available())


__all__ = [*_names, "elastic", "mpi_ops"]
