"""``horovod.torch`` on Phalanx.

>>> import torch
>>> import horovod.torch as hvd
>>> hvd.init()
>>> hvd.allreduce(torch.ones(2), name="x")
tensor([1., 1.])
"""

from __future__ import annotations

from horovod.common.exceptions import HorovodInternalError
from phalanx.torch import *  # noqa: F403
from phalanx.torch import __all__ as _names

# After the star: these are the modules with Horovod's names.
from horovod.torch import elastic, mpi_ops  # isort: skip

__all__ = [*_names, "HorovodInternalError", "elastic", "mpi_ops"]
