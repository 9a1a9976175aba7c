"""Horovod's exceptions.

Everything that ranks cause together is a ``HorovodInternalError``, as in Horovod. Here mistakes and failures are
different subclasses of it (see :mod:`phalanx.exceptions`), so that recovery need not retry a mistake.

>>> from phalanx.exceptions import MismatchError
>>> issubclass(MismatchError, HorovodInternalError) and issubclass(HorovodInternalError, RuntimeError)
True
"""

from __future__ import annotations

from phalanx.exceptions import HostsUpdatedInterrupt
from phalanx.exceptions import PhalanxError as HorovodInternalError


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Says that two versions of a framework are in play.

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
