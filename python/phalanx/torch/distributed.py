"""A model whose gradients are everybody's, as torch users know it.

>>> import torch
>>> import phalanx.torch as hvd
>>> hvd.init()
>>> model = hvd.DistributedDataParallel(torch.nn.Linear(2, 1))
>>> model(torch.ones(1, 2)).sum().backward()
>>> model.module.weight.grad
tensor([[1., 1.]])
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from phalanx._accord import Accord
from phalanx.process_sets import ProcessSet, global_process_set
from phalanx.reductions import Average
from phalanx.torch._gradients import Manner, Travel, send, wait_for_all
from phalanx.torch._hooks import on_gradient
from phalanx.torch.compression import Compression, Compressor
from phalanx.torch.functions import broadcast_parameters, broadcast_tensors, described


class DistributedDataParallel(torch.nn.Module):
    """Wraps a model: all ranks begin with rank 0's parameters, and every backward pass ends with averaged gradients.

    Gradients travel in buckets, beginning with the last layers, while those of the first are still computed.
    Parameters that a pass does not use count as zero.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        bucket_cap_mb: float = 25.0,
        broadcast_buffers: bool = True,
        compression: type[Compressor] = Compression.none,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        self.process_set = process_set
        self._manner = Manner(compression, Average, 1.0, 1.0, sparse_as_dense=True, process_set=process_set)
        self._is_syncing = True
        #: The backward pass that gradients belong to.
        self._task = -1
        self._hooks: list[Any] = []
        self._buckets: list[list[torch.Tensor]] = []
        self._bucket_of: dict[torch.Tensor, int] = {}
        self._root = process_set.ranks[0]
        self._is_alone = len(process_set.ranks) == 1 or not process_set.included()
        if self._is_alone:
            return
        # Buckets are filled in the order of parameters, which therefore must be the same, too.
        Accord("DistributedDataParallel", self._order, process_set).wait()
        broadcast_parameters(module.state_dict(), self._root, process_set)
        self._fill_buckets(int(bucket_cap_mb * (1 << 20)))
        self._reset()
        for p in self._bucket_of:
            self._hooks.append(on_gradient(p, self._on_gradient))

    def _order(self) -> list[str]:
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        return [described(f"parameter {i}, {name}", p) for i, (name, p) in enumerate(named)]

    def _fill_buckets(self, cap: int) -> None:
        n_bytes = 0
        for p in reversed([p for p in self.module.parameters() if p.requires_grad]):
            size = p.numel() * p.element_size()
            if not self._buckets or n_bytes + size > cap or self._buckets[-1][0].dtype != p.dtype:
                self._buckets.append([])
                n_bytes = 0
            self._buckets[-1].append(p)
            self._bucket_of[p] = len(self._buckets) - 1
            n_bytes += size

    def _reset(self) -> None:
        self._missing = [set(bucket) for bucket in self._buckets]
        self._travels: dict[int, Travel] = {}
        self._is_queued = False

    def _on_gradient(self, p: torch.Tensor) -> None:
        if not self._is_syncing:
            return
        task = torch._C._current_graph_task_id()
        if task != self._task:
            # The pass before this one may have ended by an exception, and then nothing was finished.
            unfinished = list(self._travels.values())
            self._reset()
            self._task = task
            wait_for_all(unfinished)
        if not self._is_queued:
            self._is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        index = self._bucket_of[p]
        self._missing[index].discard(p)
        if not self._missing[index]:
            self._send(index)

    def _send(self, index: int) -> None:
        if index not in self._travels:
            self._travels[index] = send(self._buckets[index], f"ddp.{index}", self._manner, grouped=True)

    def _finish(self) -> None:
        try:
            for index in range(len(self._buckets)):
                self._send(index)
            for travel in self._travels.values():
                travel.wait()
        finally:
            self._reset()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """In it, gradients are only accumulated; the first backward pass after it averages their sum."""
        before, self._is_syncing = self._is_syncing, False
        try:
            yield
        finally:
            self._is_syncing = before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result. In training, ranks begin with rank 0's buffers."""
        if self.broadcast_buffers and self.training and self._is_syncing and not self._is_alone:
            buffers = dict(self.module.named_buffers())
            if buffers:
                broadcast_tensors([(f"ddp.{k}", b) for k, b in buffers.items()], self._root, self.process_set)
        return self.module(*args, **kwargs)


__all__ = ["DistributedDataParallel"]
