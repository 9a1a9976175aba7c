"""Compression: gradients are sent in fewer bits.

>>> import torch
>>> import phalanx.torch as hvd
>>> hvd.init()
>>> hvd.allreduce(torch.tensor([0.5, 1.0]), compression=hvd.Compression.bf16)
tensor([0.5000, 1.0000])
"""

from __future__ import annotations

from typing import Any

import torch

from phalanx.torch._memory import CODES


class Compressor:
    """Makes a tensor smaller before it is sent, and restores its type afterwards. Programs may define their own."""

    #: The type in which floating-point elements travel, where the engine itself converts them.
    wire: torch.dtype | None = None

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor to send, and what :meth:`decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the received values in the tensor's original type."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """No compression."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        assert ctx is None, "compress() gave none"
        return tensor


class _Narrow(Compressor):
    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if not narrows(tensor, cls):
            return tensor, None
        return tensor.to(cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_Narrow):
    """Floating-point elements are sent as float16."""

    wire = torch.float16


class BF16Compressor(_Narrow):
    """Floating-point elements are sent as bfloat16: less precise than float16, but without overflow."""

    wire = torch.bfloat16


class Compression:
    """The values for ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def is_native(compression: type[Compressor]) -> bool:
    """Whether the engine compresses, so that tensors are passed unchanged."""
    return compression in (NoneCompressor, FP16Compressor, BF16Compressor)


def narrows(tensor: torch.Tensor, compression: type[Compressor]) -> bool:
    """Whether elements of this tensor are sent as another type."""
    return compression.wire is not None and tensor.dtype in (torch.float32, torch.float64)


def wire_of(compression: type[Compressor]) -> int | None:
    """The type in which elements are sent, as the engine numbers it."""
    return None if compression.wire is None else CODES[compression.wire]


__all__ = ["Compression", "Compressor"]
