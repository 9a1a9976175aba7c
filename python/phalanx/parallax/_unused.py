"""What a configuration asks of tables on servers where there are none."""

from __future__ import annotations

from phalanx import _world
from phalanx.parallax import partitions
from phalanx.parallax._log import log
from phalanx.parallax.config import ParallaxConfig


def unused(config: ParallaxConfig) -> list[str]:
    """The settings of tables that are not as they would be by themselves.

    >>> from phalanx import parallax
    >>> config = parallax.Config(search_partitions=True)
    >>> config.communication_config.ps_config.wire_dtype = "float16"
    >>> unused(config)
    ['PSConfig.wire_dtype', 'search_partitions']
    """
    ps = config._ps
    asked = {
        "PSConfig.wire_dtype": ps.wire_dtype is not None,
        "PSConfig.local_aggregation": not ps.local_aggregation,
        "PSConfig.boundary_between_workers_and_servers": not ps.boundary_between_workers_and_servers,
        "get_partitioner()": partitions.wanted() is not None,
        "search_partitions": config.search_partitions,
    }
    return [name for name, is_asked in asked.items() if is_asked]


def say_unused(config: ParallaxConfig, strategy: str) -> None:
    """No table is served: worker 0 says which settings have no effect."""
    names = unused(config)
    if names and _world.rank() == 0:
        log.warning("no table is on servers with %s here: %s has no effect", strategy, " and ".join(names))


__all__ = ["say_unused"]
