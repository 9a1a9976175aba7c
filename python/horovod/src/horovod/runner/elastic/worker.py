"""What happened to hosts, under Horovod's module name. Nobody tells it yet: elastic jobs are not there."""

from __future__ import annotations

from phalanx.elastic import HostUpdateResult

__all__ = ["HostUpdateResult"]
