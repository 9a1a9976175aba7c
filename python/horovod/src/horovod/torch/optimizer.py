"""The optimizer, under Horovod's module name."""

from __future__ import annotations

import functools
from typing import Any

from phalanx.torch import optimizer as _ours
from phalanx.torch.optimizer import _DistributedOptimizer


@functools.wraps(_ours.DistributedOptimizer, assigned=("__doc__", "__name__", "__qualname__"))
def DistributedOptimizer(*args: Any, **kwargs: Any) -> Any:
    wrapped = _ours.DistributedOptimizer(*args, **kwargs)
    # Trainers look for "horovod" in the name of the class to find out whether an optimizer is wrapped already. The
    # class was made for this one optimizer, so nobody else sees its name.
    type(wrapped).__module__ = __name__
    return wrapped


__all__ = ["DistributedOptimizer", "_DistributedOptimizer"]
