"""Recovery from failures for models, optimizers and samplers; see :mod:`phalanx.elastic`.

>>> import torch
>>> import phalanx.torch as hvd
>>> hvd.init()
>>> model = torch.nn.Linear(2, 1)
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> @hvd.elastic.run
... def train(state):
...     for state.batch in range(state.batch, 3):
...         state.commit()
...     return state.batch
>>> train(hvd.elastic.TorchState(model, optimizer, batch=0))
2
"""

from __future__ import annotations

from phalanx.elastic import HostsUpdatedInterrupt, ObjectState, State, run
from phalanx.torch.elastic.sampler import ElasticSampler
from phalanx.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]
