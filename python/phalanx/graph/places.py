"""Devices. All are CPUs: each device is a replica of the program, run by a few threads.

>>> cpu_places(2)
[CPUPlace(0), CPUPlace(1)]
"""

from __future__ import annotations

import os

from phalanx.graph.errors import StrategyError

_CUDA = "CUDA is not supported; use CPUPlace() and use_cuda=False"


class CPUPlace:
    """A CPU device."""

    def __init__(self, id: int = 0) -> None:
        self.id = id

    def __repr__(self) -> str:
        return f"CPUPlace({self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CPUPlace) and other.id == self.id

    def __hash__(self) -> int:
        return hash((CPUPlace, self.id))


class CUDAPlace:
    """A GPU. GPUs are not supported, so making one is an error."""

    def __init__(self, id: int = 0) -> None:
        raise StrategyError(f"CUDAPlace({id}): {_CUDA}")


class CUDAPinnedPlace(CUDAPlace):
    """Memory of a GPU's host. GPUs are not supported, so making one is an error."""


def cuda_places(device_ids: object = None) -> list[CUDAPlace]:
    """Refused: there is no GPU."""
    raise StrategyError(f"cuda_places: {_CUDA}")


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """Refused: there is no GPU."""
    raise StrategyError(f"cuda_pinned_places: {_CUDA}")


def is_compiled_with_cuda() -> bool:
    """False."""
    return False


def no_cuda(use_cuda: bool) -> None:
    """Refuses CUDA."""
    if use_cuda:
        raise StrategyError(f"use_cuda=True: {_CUDA}")


def only_cpu(place: object) -> None:
    """Refuses values that are not a place."""
    if place is not None and not isinstance(place, CPUPlace):
        raise StrategyError(f"place must be CPUPlace() or left out, not {place!r}", var="place", got=repr(place))


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """A list of this many devices; by default ``CPU_NUM``, or one for each core."""
    if device_count is None:
        text = os.environ.get("CPU_NUM")
        try:
            device_count = len(os.sched_getaffinity(0)) if text is None else int(text)
        except ValueError:
            device_count = 0
        if device_count < 1:
            raise StrategyError(f"CPU_NUM is `{text}`; it must be a whole number from 1", var="CPU_NUM", got=text)
    return [CPUPlace(i) for i in range(device_count)]


__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "cpu_places",
    "cuda_pinned_places",
    "cuda_places",
    "is_compiled_with_cuda",
]
