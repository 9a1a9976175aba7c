"""A longer training, as people write it with Horovod: resumed from a checkpoint, several batches a step, a rate that
warms up, clipped gradients."""

import argparse
import math
import os
import tempfile

import horovod.torch as hvd
import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser(description="a longer training with Horovod")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--batches-per-allreduce", type=int, default=2)
parser.add_argument("--base-lr", type=float, default=0.0125)
parser.add_argument("--warmup-epochs", type=float, default=1)
parser.add_argument("--epochs", type=int, default=3)


class Metric:
    """The average of a value over ranks and batches."""

    def __init__(self, name):
        self.name, self.sum, self.n = name, torch.tensor(0.0), torch.tensor(0.0)

    def update(self, value):
        self.sum += hvd.allreduce(value.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self):
        return (self.sum / self.n).item()


def adjust_learning_rate(optimizer, epoch, batch, n_batches, args):
    if epoch < args.warmup_epochs:
        at = epoch + float(batch + 1) / n_batches
        factor = 1.0 / hvd.size() * (at * (hvd.size() - 1) / args.warmup_epochs + 1)
    else:
        factor = 1.0 if epoch < 30 else 1e-1
    for group in optimizer.param_groups:
        group["lr"] = args.base_lr * hvd.size() * args.batches_per_allreduce * factor


def main(args):
    hvd.init()
    torch.manual_seed(7 + hvd.rank())
    allreduce_batch_size = args.batch_size * args.batches_per_allreduce
    # Only the first rank looks for checkpoints; the others hear of it.
    folder = tempfile.TemporaryDirectory() if hvd.rank() == 0 else None
    checkpoint = os.path.join(folder.name, "checkpoint-{epoch}.pth.tar") if folder else None
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 24), torch.nn.BatchNorm1d(24), torch.nn.ReLU(), torch.nn.Linear(24, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.base_lr, momentum=0.9, weight_decay=0.00005)
    if checkpoint:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint.format(epoch=1))
    resume_from_epoch = 0
    for try_epoch in range(args.epochs, 0, -1):
        if checkpoint and os.path.exists(checkpoint.format(epoch=try_epoch)):
            resume_from_epoch = try_epoch
            break
    resume_from_epoch = hvd.broadcast(torch.tensor(resume_from_epoch), root_rank=0, name="resume_from_epoch").item()
    assert resume_from_epoch == 1, resume_from_epoch
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=args.batches_per_allreduce,
        op=hvd.Average,
        groups=2,
    )
    if hvd.rank() == 0:
        saved = torch.load(checkpoint.format(epoch=resume_from_epoch))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    data = torch.randn(allreduce_batch_size * 4, 12)
    target = data[:, :3].argmax(1)
    losses = []
    for epoch in range(resume_from_epoch, args.epochs):
        model.train()
        train_loss, train_accuracy = Metric("train_loss"), Metric("train_accuracy")
        n_batches = len(data) // allreduce_batch_size
        for batch in range(n_batches):
            adjust_learning_rate(optimizer, epoch, batch, n_batches, args)
            optimizer.zero_grad()
            for i in range(args.batches_per_allreduce):
                start = batch * allreduce_batch_size + i * args.batch_size
                x, y = data[start : start + args.batch_size], target[start : start + args.batch_size]
                output = model(x)
                train_accuracy.update((output.argmax(1) == y).float().mean())
                loss = F.cross_entropy(output, y)
                train_loss.update(loss)
                loss.div_(math.ceil(float(allreduce_batch_size) / args.batch_size))
                loss.backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        losses.append(train_loss.avg)
    assert losses[-1] < losses[0], losses
    assert len(hvd.allgather_object((hvd.rank(), losses))) == hvd.size()
    print(f"imagenet: rank {hvd.rank()} of {hvd.size()} is done")


if __name__ == "__main__":
    main(parser.parse_args())
