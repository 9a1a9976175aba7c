"""``horovod.tensorflow.keras`` on Phalanx."""

from __future__ import annotations

from phalanx.tensorflow.keras import *  # noqa: F403
from phalanx.tensorflow.keras import DistributedOptimizer, load_model
from phalanx.tensorflow.keras import __all__ as _names

from horovod.common.exceptions import HorovodInternalError  # isort: skip
from horovod.tensorflow.keras import callbacks, elastic  # isort: skip

__all__ = [*_names, "DistributedOptimizer", "HorovodInternalError", "callbacks", "elastic", "load_model"]
