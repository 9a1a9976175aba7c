"""Which samples a rank processes, under Horovod's module name."""

from __future__ import annotations

from phalanx.torch.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
