"""Scripts written for Horovod, on the shim."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: As people write them; nothing in it knows of Phalanx.
SCRIPT = """
import torch
import torch.nn.functional as F
import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.mpi_ops import allreduce_async_, synchronize
from horovod.torch.compression import Compression
from horovod.common.process_sets import global_process_set
from horovod.runner.util.threads import in_thread

hvd.init()
torch.manual_seed(42)
assert global_process_set.size() == hvd.size()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(20, 50)
        self.fc2 = torch.nn.Linear(50, 3)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.dropout(F.relu(self.fc1(x)), training=self.training)), dim=1)

model = Net()
data = torch.randn(256, 20)
target = (data[:, :3].argmax(dim=1)).long()
dataset = torch.utils.data.TensorDataset(data, target)
sampler = torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16, op=hvd.Average)

def metric_average(val, name):
    return hvd.allreduce(torch.tensor(val), name=name).item()

losses = []
for epoch in range(8):
    model.train()
    sampler.set_epoch(epoch)
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    losses.append(metric_average(total / len(loader), "avg_loss"))
assert losses[-1] < losses[0], losses

t = torch.ones(4)
assert synchronize(allreduce_async_(t, name="t", op=hvd.Sum)).tolist() == [hvd.size()] * 4
try:
    hvd.allreduce(torch.ones(2 + hvd.rank()), name="bad")
    raise AssertionError("ranks disagreed and nobody said so")
except HorovodInternalError:
    pass
assert hvd.join() >= 0
print(f"rank {hvd.rank()} done")
"""


#: An elastic one, with what such scripts reach for, public or not. A rank fails once, and hosts seem to change once.
ELASTIC = """
import os
import torch
import horovod.torch as hvd
from horovod.common.elastic import ObjectState, State
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.torch.elastic import run
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState, get_handler_registry

hvd.init()
start_rank = int(os.environ["HOROVOD_RANK"])
assert (start_rank, hvd.size()) == (hvd.rank(), int(os.environ["HOROVOD_SIZE"]))
assert hvd.elastic.TorchState is TorchState and issubclass(TorchState, ObjectState) and issubclass(ObjectState, State)
assert (ElasticSampler, hvd.mpi_ops._basics._get_process_set_ids_and_ranks()) != (None, {})

model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
sampler = ElasticSampler(list(range(24)), shuffle=False)
has_failed = False

@run
def train(state):
    global has_failed
    state.rendezvous += 1
    while state.epoch < 2:
        for i, index in enumerate(state.sampler):
            optimizer.zero_grad()
            model(torch.full((1, 4), float(index))).sum().backward()
            if (state.epoch, state.batch) == (0, 3) and start_rank == 1 and not has_failed:
                has_failed = True
                raise HorovodInternalError("once")
            optimizer.step()
            state.sampler.record_batch(i, 1)
            state.batch += 1
            if (state.epoch, state.batch) == (1, 4) and hvd.rank() == 0 and state._last_updated_timestamp == 0:
                assert state._host_messages.empty()
                state._host_messages.put((1, HostUpdateResult.added))
            state.commit()
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)
        state.commit()

resets = []
state = TorchState(model, optimizer, sampler=sampler, batch=0, epoch=0, rendezvous=0)
state.register_reset_callbacks([lambda: resets.append(hvd.rank())])
train(state)
print(f"rank {hvd.rank()} rendezvous {state.rendezvous} resets {len(resets)} epoch {state.epoch}")
"""


def test_an_unmodified_elastic_script_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "elastic.py"
    script.write_text(ELASTIC)
    words = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        # What was counted after the last commit before the failure is forgotten with it.
        assert f"rank {rank} rendezvous 3 resets 2 epoch 2" in done.stdout, done.stdout


def test_an_unmodified_training_script_runs_under_horovodrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo", "--fusion-threshold-mb", "4"]
    done = subprocess.run(
        [*words, sys.executable, str(script)], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 done" in done.stdout and "rank 1 done" in done.stdout
    assert "note: --gloo has no effect: Phalanx has one controller" in done.stderr
