"""Decay of parameters: ``regularization`` of an optimizer for all, ``regularizer`` of a ``ParamAttr`` for one.

>>> L2Decay(1e-4)
L2Decay(regularization_coeff=0.0001)
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.graph._refused import number


@dataclass(frozen=True)
class L2Decay:
    """Adds ``regularization_coeff * parameter`` to its gradient."""

    regularization_coeff: float = 0.0

    def __post_init__(self) -> None:
        number("L2Decay", "regularization_coeff", self.regularization_coeff, least=0.0)


@dataclass(frozen=True)
class L1Decay:
    """Adds ``regularization_coeff * sign(parameter)`` to gradients; ``regularization`` of an optimizer."""

    regularization_coeff: float = 0.0

    def __post_init__(self) -> None:
        number("L1Decay", "regularization_coeff", self.regularization_coeff, least=0.0)


L2DecayRegularizer = L2Decay
L1DecayRegularizer = L1Decay

__all__ = ["L1Decay", "L1DecayRegularizer", "L2Decay", "L2DecayRegularizer"]
