"""Batch normalization over the batches of all ranks, on any device.

>>> import torch
>>> import phalanx.torch as hvd
>>> hvd.init()
>>> layer = hvd.SyncBatchNorm(3)
>>> layer(torch.randn(4, 3)).shape
torch.Size([4, 3])
"""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from phalanx import _phalanx
from phalanx.reductions import Sum
from phalanx.torch.collectives import allreduce


class SyncBatchNorm(_BatchNorm):
    """As :class:`torch.nn.BatchNorm2d` and its kin; in training, with mean and variance of everybody's batches."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalized input."""
        self._check_input_dim(input)
        training = self.training or not self.track_running_stats
        if not training or _phalanx.place()[1] == 1:
            return super().forward(input)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        dims = [0, *range(2, x.dim())]
        shape = [1, -1] + [1] * (x.dim() - 2)
        count = x.new_tensor([x.numel() // x.shape[1]])
        totals = allreduce(torch.cat([x.sum(dims), count]), op=Sum)
        n = totals[-1].detach()
        mean = totals[:-1] / n
        apart = x - mean.view(shape)
        variance = allreduce((apart * apart).sum(dims), op=Sum) / n
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
