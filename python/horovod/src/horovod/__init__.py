"""Horovod's module names on Phalanx: scripts written for ``horovod.torch`` run unchanged.

>>> import horovod.torch as hvd
>>> hvd.init()
>>> hvd.size()
1
"""

from __future__ import annotations

from horovod.runner import run

#: The interface is that of this version.
__version__ = "0.28.1"

__all__ = ["__version__", "run"]
