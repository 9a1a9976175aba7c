"""The names of ``fluid.core`` that Paddle's scripts use.

>>> get_cuda_device_count(), is_compiled_with_cuda(), VarDesc.VarType.FP32
(0, False, 'float32')
>>> globals()["FLAGS_check_nan_inf"]
False
"""

from __future__ import annotations

from phalanx.graph._flags import FLAGS, Flags
from phalanx.graph.errors import EOFException, GraphError
from phalanx.graph.lod import LoDTensor
from phalanx.graph.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, is_compiled_with_cuda
from phalanx.graph.scope import Scope

# What scripts catch.
EnforceNotMet = GraphError


def get_cuda_device_count() -> int:
    """0."""
    return 0


def is_compiled_with_mkldnn() -> bool:
    """False."""
    return False


def is_compiled_with_brpc() -> bool:
    """False."""
    return False


def is_compiled_with_dist() -> bool:
    """True: programs run on several ranks."""
    return True


def globals() -> Flags:
    """Paddle's flags. Those without a meaning here can be read, and set only to what they are."""
    return FLAGS


class VarDesc:
    """The namespace of element types."""

    class VarType:
        """Element types, as numpy names them."""

        BOOL = "bool"
        UINT8 = "uint8"
        INT8 = "int8"
        INT16 = "int16"
        INT32 = "int32"
        INT64 = "int64"
        FP16 = "float16"
        FP32 = "float32"
        FP64 = "float64"


__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "EnforceNotMet",
    "LoDTensor",
    "Scope",
    "VarDesc",
    "get_cuda_device_count",
    "globals",
    "is_compiled_with_brpc",
    "is_compiled_with_cuda",
    "is_compiled_with_dist",
    "is_compiled_with_mkldnn",
]
