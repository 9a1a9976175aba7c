"""``horovod.keras`` on Phalanx: Keras 3, on any backend."""

from __future__ import annotations

from phalanx.keras import *  # noqa: F403
from phalanx.keras import __all__ as _names

from horovod.common.exceptions import HorovodInternalError  # isort: skip
from horovod.keras import callbacks, elastic  # isort: skip

__all__ = [*_names, "HorovodInternalError", "callbacks", "elastic"]
