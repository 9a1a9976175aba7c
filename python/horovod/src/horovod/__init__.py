"""Horovod's module names on Phalanx: scripts written for ``horovod.torch`` run unchanged.

>>> import horovod.torch as hvd
>>> hvd.init()
>>> hvd.size()
1
"""

from __future__ import annotations

import os

from horovod._version import __version__
from horovod.runner import run


def _tell_rank() -> None:
    """Sets the variables of ``horovodrun`` from which scripts read their rank; ``phalanx run`` alone does not set them."""
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
    for name in names:
        if f"PHALANX_{name}" in os.environ:
            os.environ.setdefault(f"HOROVOD_{name}", os.environ[f"PHALANX_{name}"])


_tell_rank()

__all__ = ["__version__", "run"]
