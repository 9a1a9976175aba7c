"""Classifies small pictures, as people train with Horovod: arguments, a sampler, workers that load, averaged metrics.

The pictures are made up, so that nothing is downloaded.
"""

import argparse

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data.distributed

parser = argparse.ArgumentParser(description="digits with Horovod")
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, kernel_size=3)
        self.drop = nn.Dropout2d(0.1)
        self.fc1 = nn.Linear(4 * 9, 16)
        self.fc2 = nn.Linear(16, 4)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.drop(self.conv(x)), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


def pictures(n, seed):
    """Noise with one bright corner, whose number is the label."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=generator)
    data = torch.rand(n, 1, 8, 8, generator=generator)
    for i, label in enumerate(labels.tolist()):
        data[i, 0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 2.0
    return torch.utils.data.TensorDataset(data, labels)


def loader_of(dataset, batch_size, **kwargs):
    sampler = torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    return sampler, torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=sampler, **kwargs)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def main(args):
    hvd.init()
    torch.manual_seed(42)
    train_sampler, train_loader = loader_of(pictures(128, 1), args.batch_size, num_workers=1)
    _, test_loader = loader_of(pictures(64, 2), 32)
    model = Net()
    # Adasum does not need a larger rate for more ranks.
    scaler = hvd.size() if not args.use_adasum else 1
    optimizer = optim.SGD(model.parameters(), lr=args.lr * scaler, momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )
    accuracy = 0.0
    for epoch in range(1, args.epochs + 1):
        model.train()
        train_sampler.set_epoch(epoch)
        for data, target in train_loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(data).argmax(1) == target).float().mean().item() for data, target in test_loader)
        accuracy = metric_average(right / len(test_loader), "avg_accuracy")
        if hvd.rank() == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.2f}")
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    everybodys = hvd.allgather(weights.unsqueeze(0), name="weights")
    assert (everybodys == everybodys[0]).all(), "ranks have drifted apart"
    print(f"mnist: rank {hvd.rank()} of {hvd.size()} is done")


if __name__ == "__main__":
    main(parser.parse_args())
