"""Decay of parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class L2Decay:
    """Adds ``regularization_coeff * parameter`` to its gradient."""

    regularization_coeff: float = 0.0


L2DecayRegularizer = L2Decay

__all__ = ["L2Decay", "L2DecayRegularizer"]
