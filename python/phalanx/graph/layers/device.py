"""``layers.device``: how many places there are.

>>> get_places(2)
[CPUPlace(0), CPUPlace(1)]
"""

from __future__ import annotations

from phalanx.graph.errors import StrategyError
from phalanx.graph.places import CPUPlace, cpu_places


def get_places(device_count: int | None = None, device_type: str | None = None) -> list[CPUPlace]:
    """A list of this many devices; by default ``CPU_NUM``, or one for each core."""
    if device_type not in (None, "CPU", "cpu"):
        raise StrategyError(f"get_places: device_type={device_type!r}; only 'CPU' is supported", var="device_type")
    return cpu_places(device_count)


__all__ = ["get_places"]
