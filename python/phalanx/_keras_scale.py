"""Loss scales of mixed precision: an optimizer with one must be inside of the distributed one, not around it.

Around, ranks would decide by their own gradients whether to skip a step, and some would wait for the others.
"""

from __future__ import annotations

import sys
from typing import Any


def with_loss_scale(optimizer: Any) -> Any:
    """Under the policy mixed_float16, the optimizer with the loss scale that ``compile()`` would put around it."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "mixed_precision") or not isinstance(optimizer, keras.optimizers.Optimizer):
        return optimizer
    is_half = keras.mixed_precision.dtype_policy().name == "mixed_float16"
    return keras.optimizers.LossScaleOptimizer(optimizer) if is_half and not has_loss_scale(optimizer) else optimizer


def has_loss_scale(optimizer: Any) -> bool:
    """Whether it is an optimizer with a loss scale, of any Keras."""
    return any(c.__name__.startswith("LossScaleOptimizer") for c in type(optimizer).__mro__)


def refuse_loss_scale_around(optimizer: Any) -> None:
    """Refuses to reduce gradients for an optimizer with a loss scale that calls this one."""
    frame = sys._getframe(2)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if caller is not None and caller is not optimizer and has_loss_scale(caller):
            raise ValueError(
                "a LossScaleOptimizer is around this DistributedOptimizer, so ranks would skip different steps: "
                "write DistributedOptimizer(LossScaleOptimizer(optimizer))"
            )
        frame = frame.f_back  # type: ignore[assignment]


__all__ = ["has_loss_scale", "refuse_loss_scale_around", "with_loss_scale"]
