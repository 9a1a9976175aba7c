"""Which samples this rank processes, when a reset may happen in the middle of a pass through the data."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from phalanx import _world


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a data set among ranks, without the samples that were recorded as processed.

    Give it to a ``TorchState``, call :meth:`record_batch` after every batch, and :meth:`set_epoch` after each pass.

    >>> import phalanx.torch as hvd
    >>> hvd.init()
    >>> sampler = hvd.elastic.ElasticSampler(range(5), shuffle=False)
    >>> sampler.record_batch(batch_idx=0, batch_size=2)
    >>> sampler.reset()
    >>> list(sampler)
    [2, 3, 4]
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 0
        self.rank = 0
        self.num_samples = 0
        self.total_size = 0
        self.remaining_indices: list[int] = []
        self.indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins another pass through the data, with a new order and no processed samples."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records that all ranks have processed a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of this rank in a batch."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """How far the data was processed; the same on all ranks."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a saved state."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides the remaining samples among the current ranks."""
        self.num_replicas, self.rank = _world.size(), _world.rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        # Every rank gets equally many; the first ones are repeated, as often as it takes.
        padded = list(itertools.islice(itertools.cycle(self.remaining_indices), self.total_size))
        self.indices = padded[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.indices))

    def __len__(self) -> int:
        return self.num_samples


__all__ = ["ElasticSampler"]
