"""Loaders that read ahead, under Horovod's module name."""

from __future__ import annotations

from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
