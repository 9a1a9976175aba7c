"""Compression: gradients are sent in fewer bits.

The engine itself converts for ``fp16`` and ``bf16``; compressors of a program are called before and after.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """Makes a tensor smaller before it is sent, and restores its type afterwards. Programs may define their own."""

    #: The type in which floating-point elements travel, where the engine itself converts them.
    wire: Any = None

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, and what :meth:`decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the received values in the tensor's original type."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """No compression."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class _Narrow(Compressor):
    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        if tensor.dtype not in (tf.float32, tf.float64):
            return tensor, None
        return tf.cast(tensor, cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_Narrow):
    """Floating-point elements are sent as float16."""

    wire = tf.float16


class BF16Compressor(_Narrow):
    """Floating-point elements are sent as bfloat16: less precise than float16, but without overflow."""

    wire = tf.bfloat16


class Compression:
    """The values for ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def is_native(compression: Any) -> bool:
    """Whether the engine compresses, so that tensors are passed unchanged."""
    if not hasattr(compression, "compress") or not hasattr(compression, "decompress"):
        raise ValueError(f"compression must be one of Compression.none, .fp16, .bf16, or a Compressor, not {compression!r}")
    return compression in (NoneCompressor, FP16Compressor, BF16Compressor)


__all__ = ["Compression", "Compressor"]
