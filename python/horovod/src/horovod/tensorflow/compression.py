"""Compression, under Horovod's module name."""

from __future__ import annotations

from phalanx.tensorflow.compression import Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
