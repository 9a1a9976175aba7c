"""Measures a model on made-up data, as benchmarks of Horovod do, and uses process sets and join on the way."""

import argparse
import timeit

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from horovod.common.process_sets import global_process_set

parser = argparse.ArgumentParser(description="a benchmark with Horovod")
parser.add_argument("--fp16-allreduce", action="store_true", default=True)
parser.add_argument("--use-adasum", action="store_true", default=True)
parser.add_argument("--num-warmup-batches", type=int, default=1)
parser.add_argument("--num-batches-per-iter", type=int, default=2)
parser.add_argument("--num-iters", type=int, default=2)


def log(*words):
    if hvd.rank() == 0:
        print(*words)


def main(args):
    hvd.init()
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 16), hvd.SyncBatchNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 10)
    )
    lr_scaler = hvd.size()
    if args.use_adasum and hvd.nccl_built():
        lr_scaler = hvd.local_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * lr_scaler)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    data, target = torch.randn(8, 16), torch.randint(0, 10, (8,))

    def benchmark_step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()

    timeit.timeit(benchmark_step, number=args.num_warmup_batches)
    rates = []
    for i in range(args.num_iters):
        seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
        rates.append(8 * args.num_batches_per_iter / seconds)
        log(f"iteration {i}: {rates[-1]:.1f} samples/s for each of {hvd.size()}")
    total = hvd.allreduce(torch.tensor(rates), op=hvd.Sum, name="rates")
    assert total.shape == (args.num_iters,) and (total > 0).all()
    assert global_process_set.size() == hvd.size()
    if hvd.size() > 1:
        first = hvd.add_process_set([0])
        if first.included():
            assert hvd.allreduce(torch.ones(1), process_set=first, name="alone").item() == 1.0
        hvd.remove_process_set(first)
    handle = hvd.broadcast_async_(torch.full((2,), float(hvd.rank())), root_rank=hvd.size() - 1, name="last")
    assert hvd.synchronize(handle).tolist() == [hvd.size() - 1] * 2
    for _ in range(1 + hvd.rank()):
        hvd.allreduce(torch.ones(1), op=hvd.Sum, name="uneven")
    assert hvd.join() == hvd.size() - 1 or hvd.size() > 1
    print(f"synthetic: rank {hvd.rank()} of {hvd.size()} is done")


if __name__ == "__main__":
    main(parser.parse_args())
