"""Recovery from failures, under Horovod's module name.

>>> import horovod.torch as hvd
>>> hvd.init()
>>> state = hvd.elastic.TorchState(batch=0)
>>> @hvd.elastic.run
... def train(state):
...     return state.batch
>>> train(state)
0
"""

from __future__ import annotations

from horovod.common.elastic import ObjectState, State, run_fn
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from phalanx.torch.elastic import run

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run", "run_fn"]
