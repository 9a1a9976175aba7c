"""Elastic jobs, which are refused."""

from __future__ import annotations

from typing import Any, NoReturn


class ElasticRayExecutor:
    """Not supported: making one is an error."""

    def __init__(self, *_: Any, **__: Any) -> None:
        _refuse()

    @staticmethod
    def create_settings(*_: Any, **__: Any) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise ValueError("horovod.ray: elastic jobs are not supported yet; use RayExecutor with num_workers")


__all__ = ["ElasticRayExecutor"]
