"""Not there; says so."""

from __future__ import annotations

raise ImportError("horovod.torch.elastic: elastic jobs are not there yet; docs/from-horovod.md of Phalanx lists what is missing")
