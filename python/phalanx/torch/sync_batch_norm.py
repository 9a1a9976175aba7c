"""Batch normalization over the batches of all ranks, on any device.

>>> import torch
>>> import phalanx.torch as hvd
>>> hvd.init()
>>> layer = hvd.SyncBatchNorm(3)
>>> layer(torch.randn(4, 3)).shape
torch.Size([4, 3])
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from phalanx.process_sets import ProcessSet, global_process_set, set_id
from phalanx.reductions import Sum
from phalanx.torch.collectives import allreduce


class SyncBatchNorm(_BatchNorm):
    """As :class:`torch.nn.BatchNorm2d` and similar classes; in training, with mean and variance over the batches of all ranks."""

    process_set: ProcessSet = global_process_set

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_group: Any = None, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """Replaces the model's batch normalizations by layers of this class, with the same parameters.

        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        >>> type(SyncBatchNorm.convert_sync_batchnorm(model)[1]).__name__
        'SyncBatchNorm'
        """
        if process_group is not None:
            raise ValueError("process groups of torch are not supported: pass process_set, see add_process_set()")
        if not isinstance(module, torch.nn.Module):
            raise ValueError(f"convert_sync_batchnorm takes a model, not a {type(module).__name__}")
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            return cls._like(module, process_set)
        for name, child in module.named_children():
            changed = cls.convert_sync_batchnorm(child, None, process_set)
            if changed is not child:
                setattr(module, name, changed)
        return module

    @classmethod
    def _like(cls, layer: _BatchNorm, process_set: ProcessSet) -> SyncBatchNorm:
        is_lazy = isinstance(layer, torch.nn.modules.lazy.LazyModuleMixin) and layer.has_uninitialized_params()
        if is_lazy:
            raise ValueError("a lazy batch normalization has no size yet: run the model once before it is converted")
        made = cls(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        # The parameters themselves, so that an optimizer that has them already goes on with them.
        made._parameters, made._buffers = layer._parameters, layer._buffers
        made.process_set = process_set
        return made.train(layer.training)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"batches must have two dimensions or more, not {input.dim()}: add one with unsqueeze(0)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalized input."""
        self._check_input_dim(input)
        set_id(self.process_set)
        training = self.training or not self.track_running_stats
        if not training or len(self.process_set.ranks) == 1:
            return super().forward(input)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        dims = [0, *range(2, x.dim())]
        shape = [1, -1] + [1] * (x.dim() - 2)
        count = x.new_tensor([x.numel() // x.shape[1]])
        totals = allreduce(torch.cat([x.sum(dims), count]), op=Sum, process_set=self.process_set)
        n = totals[-1].detach()
        mean = totals[:-1] / n
        apart = x - mean.view(shape)
        variance = allreduce((apart * apart).sum(dims), op=Sum, process_set=self.process_set) / n
        self._follow(mean.detach(), variance.detach(), n)
        result = apart * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    @torch.no_grad()
    def _follow(self, mean: torch.Tensor, variance: torch.Tensor, n: torch.Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked or 1)
        unbiased = variance * n / (n - 1).clamp(min=1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


__all__ = ["SyncBatchNorm"]
