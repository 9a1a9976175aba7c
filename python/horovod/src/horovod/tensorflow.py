"""Not supported: importing it is an error."""

from __future__ import annotations

raise ImportError(
    "horovod.tensorflow: only PyTorch is supported (horovod.torch); docs/from-horovod.md of Phalanx lists what is missing"
)
