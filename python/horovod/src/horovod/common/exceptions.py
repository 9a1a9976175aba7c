"""Horovod's exceptions.

Everything that ranks cause together is a ``HorovodInternalError``, as in Horovod. Here mistakes and failures are different
subclasses of it (see :mod:`phalanx.exceptions`), so that recovery need not retry a mistake.

>>> from phalanx.exceptions import MismatchError
>>> issubclass(MismatchError, HorovodInternalError) and issubclass(HorovodInternalError, RuntimeError)
True
"""

from __future__ import annotations

from phalanx.exceptions import HostsUpdatedInterrupt
from phalanx.exceptions import PhalanxError as HorovodInternalError


class HorovodVersionMismatchError(ImportError):
    """The library does not fit the framework; it cannot happen here, because nothing is compiled against one."""


__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]
