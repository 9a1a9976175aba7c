"""Parallax's door: one script for one device, trained by many, with sparse tables on servers and the rest by allreduce.

>>> import torch
>>> from phalanx import parallax
>>> class Words(torch.nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.table = torch.nn.Embedding(100, 4, sparse=True)
...     def forward(self, words):
...         return self.table(words).square().mean()
>>> model = Words()
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> session, n_workers, worker, n_replicas = parallax.parallel_run((model, optimizer))
>>> (loss,) = session.run("loss", feed_dict={"words": [torch.tensor([1, 2])]})
>>> _ = session.run("train_op", feed_dict={"words": [torch.tensor([1, 2])]})
>>> session.global_step, n_workers, worker, n_replicas
(1, 1, 0, 1)
>>> session.close()
"""

from __future__ import annotations

from phalanx.parallax import shard
from phalanx.parallax._log import log
from phalanx.parallax.config import (
    CheckPointConfig,
    CommunicationConfig,
    Config,
    MPIConfig,
    ParallaxConfig,
    ProfileConfig,
    PSConfig,
)
from phalanx.parallax.partitions import Partitioner, get_partitioner
from phalanx.parallax.run import parallel_run
from phalanx.parallax.session import ParallaxSession, ReplicaNames

__all__ = [
    "CheckPointConfig",
    "CommunicationConfig",
    "Config",
    "MPIConfig",
    "PSConfig",
    "ParallaxConfig",
    "ParallaxSession",
    "Partitioner",
    "ProfileConfig",
    "ReplicaNames",
    "get_partitioner",
    "log",
    "parallel_run",
    "shard",
]
