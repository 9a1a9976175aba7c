"""Horovod's exceptions.

All errors of communication are a ``HorovodInternalError``, as in Horovod. Programming errors and failures are
separate subclasses of it (see :mod:`phalanx.exceptions`), so that recovery does not retry a programming error.

>>> from phalanx.exceptions import MismatchError
>>> issubclass(MismatchError, HorovodInternalError) and issubclass(HorovodInternalError, RuntimeError)
True
"""

from __future__ import annotations

from phalanx.exceptions import HostsUpdatedInterrupt
from phalanx.exceptions import PhalanxError as HorovodInternalError


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The message for two different versions of a framework.

    >>> get_version_mismatch_message("torch", "2.1", "2.2")
    'torch 2.1 is in use but 2.2 is installed; start Python again, or look for a second torch on sys.path'
    """
    return (
        f"{name} {version} is in use but {installed_version} is installed; "
        f"start Python again, or look for a second {name} on sys.path"
    )


class HorovodVersionMismatchError(ImportError):
    """The framework in use is not the one that is installed."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]
