"""What happened to hosts, under Horovod's module name. It is not used yet: elastic jobs are not supported."""

from __future__ import annotations

from phalanx.elastic import HostUpdateResult

__all__ = ["HostUpdateResult"]
