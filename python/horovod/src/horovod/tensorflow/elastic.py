"""Recovery from failures, under Horovod's module name."""

from __future__ import annotations

from phalanx.tensorflow.elastic import ObjectState, State, TensorFlowKerasState, TensorFlowState, run

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]
