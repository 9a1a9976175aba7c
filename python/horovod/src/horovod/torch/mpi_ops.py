"""The collectives, under Horovod's module name."""

from __future__ import annotations

from types import SimpleNamespace

from phalanx.process_sets import process_set_ids_and_ranks
from phalanx.torch import *  # noqa: F403
from phalanx.torch import __all__ as _names
from phalanx.torch import init, is_homogeneous, is_initialized, rank, shutdown, size

#: Scripts reach through it to what has public names, too.
_basics = SimpleNamespace(
    init=init,
    shutdown=shutdown,
    is_initialized=is_initialized,
    rank=rank,
    size=size,
    _get_process_set_ids_and_ranks=process_set_ids_and_ranks,
)

__all__ = [*_names, "is_homogeneous"]
