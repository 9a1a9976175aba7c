"""Not there; says so."""

from __future__ import annotations

raise ImportError("horovod.spark is not there; docs/from-horovod.md of Phalanx lists what is missing")
