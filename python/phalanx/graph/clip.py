"""Gradient clipping: the ``grad_clip`` of an optimizer.

>>> GradientClipByGlobalNorm(1.0)
GradientClipByGlobalNorm(clip_norm=1.0)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from phalanx.graph._refused import number
from phalanx.graph.errors import ProgramError
from phalanx.graph.program import Program, default_main_program


class GradientClip:
    """The base class."""

    def _form(self) -> tuple[str, dict[str, float]]:
        raise NotImplementedError


def _all(clip: Any) -> None:
    if clip.need_clip is not None:
        raise ProgramError(
            f"{type(clip).__name__}: need_clip is not supported; give parameters that are not clipped an optimizer of their "
            "own, with a parameter_list"
        )


@dataclass(frozen=True)
class GradientClipByValue(GradientClip):
    """Every element between ``min`` and ``max``; ``min`` is ``-max`` if it is not given."""

    max: float
    min: float | None = None
    need_clip: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _all(self)
        # Without `min` it is `-max`, which must not be above it.
        least = 0.0 if self.min is None else number("GradientClipByValue", "min", self.min)
        number("GradientClipByValue", "max", self.max, least=least)

    def _form(self) -> tuple[str, dict[str, float]]:
        return "value", {"max": float(self.max), "min": float(-self.max if self.min is None else self.min)}


@dataclass(frozen=True)
class GradientClipByNorm(GradientClip):
    """The norm of each gradient."""

    clip_norm: float
    need_clip: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _all(self)
        number("GradientClipByNorm", "clip_norm", self.clip_norm, above=0.0)

    def _form(self) -> tuple[str, dict[str, float]]:
        return "norm", {"clip_norm": float(self.clip_norm)}


@dataclass(frozen=True)
class GradientClipByGlobalNorm(GradientClip):
    """The norm of all gradients together."""

    clip_norm: float
    group_name: str = field(default="default_group", repr=False)
    need_clip: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _all(self)
        number("GradientClipByGlobalNorm", "clip_norm", self.clip_norm, above=0.0)
        if self.group_name != "default_group":
            raise ProgramError(
                f"GradientClipByGlobalNorm: group_name={self.group_name!r} is not supported; give each group of parameters "
                "an optimizer of its own, with grad_clip and a parameter_list"
            )

    def _form(self) -> tuple[str, dict[str, float]]:
        return "global_norm", {"clip_norm": float(self.clip_norm)}


def set_gradient_clip(clip: GradientClip, param_list: Any = None, program: Program | None = None) -> None:
    """Clips the gradients of optimizers that say nothing about it; call it before ``minimize``."""
    if not isinstance(clip, GradientClip):
        raise TypeError(f"clip must be a GradientClip, not {type(clip).__name__}")
    if param_list is not None:
        raise ProgramError(
            "set_gradient_clip: param_list is not supported; give parameters an optimizer of their own, with grad_clip"
        )
    program = program or default_main_program()
    if any(op.role == "Optimize" for op in program.global_block().ops):
        warnings.warn(
            "set_gradient_clip: minimize was called before, and its updates stay as they are; call set_gradient_clip first, "
            "or pass grad_clip to the optimizer",
            stacklevel=2,
        )
    program._clip = clip


__all__ = [
    "GradientClip",
    "GradientClipByGlobalNorm",
    "GradientClipByNorm",
    "GradientClipByValue",
    "set_gradient_clip",
]
