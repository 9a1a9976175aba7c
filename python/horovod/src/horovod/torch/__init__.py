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

__all__ = [*_names, "HorovodInternalError"]
