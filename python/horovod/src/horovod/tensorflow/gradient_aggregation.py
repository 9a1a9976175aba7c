"""Not a module of its own here: several passes for a step are part of the optimizers."""

from __future__ import annotations

raise ImportError(
    "horovod.tensorflow.gradient_aggregation: pass backward_passes_per_step and average_aggregated_gradients to "
    "DistributedOptimizer; docs/from-horovod.md of Phalanx lists what is missing"
)
