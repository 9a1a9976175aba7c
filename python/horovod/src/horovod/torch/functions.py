"""Objects, parameters and optimizer states, under Horovod's module name."""

from __future__ import annotations

from phalanx.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
