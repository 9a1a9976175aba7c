"""Horovod's ranks as actors of a Ray cluster, on :mod:`phalanx.ray`."""

from __future__ import annotations

from horovod.ray.elastic import ElasticRayExecutor
from horovod.ray.runner import RayExecutor

__all__ = ["ElasticRayExecutor", "RayExecutor"]
