"""Small helpers that scripts import from Horovod.

>>> split_list([1, 2, 3, 4, 5], 2)
[[1, 2, 3], [4, 5]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.torch import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Whether the native part is there: it always is, in the wheel."""


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework's part is there: that of torch is."""
    return ext_base_name == "torch"


def is_iterable(x: Any) -> bool:
    """Whether one can go through it."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def split_list(items: Sequence[Any], n: int) -> list[list[Any]]:
    """So many parts whose sizes differ by one at most, the larger ones first."""
    size, more = divmod(len(items), n)
    parts, at = [], 0
    for i in range(n):
        end = at + size + (1 if i < more else 0)
        parts.append(list(items[at:end]))
        at = end
    return parts


__all__ = [
    "ccl_built",
    "check_extension",
    "cuda_built",
    "ddl_built",
    "extension_available",
    "gloo_built",
    "is_iterable",
    "mpi_built",
    "nccl_built",
    "rocm_built",
    "split_list",
]
