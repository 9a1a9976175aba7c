"""Collectives of torch tensors and their gradients."""

from __future__ import annotations

import pytest
import torch
from ranks import run_ranks

import phalanx.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *FLOATS]


def reductions() -> None:
    r, n = hvd.rank(), hvd.size()
    for dtype in TYPES:
        x = torch.arange(17).to(dtype).reshape(17, 1) + r
        everybody = torch.stack([torch.arange(17).reshape(17, 1) + i for i in range(n)])
        for op, want in [
            (hvd.Sum, everybody.sum(0)),
            (hvd.Min, everybody.min(0).values),
            (hvd.Max, everybody.max(0).values),
            (None, everybody.sum(0).double() / n),
        ]:
            got = hvd.allreduce(x, op=op)
            assert got.dtype == dtype
            assert torch.equal(got, want.to(dtype)), (dtype, op)
        y = x.clone()
        assert hvd.allreduce_(y, op=hvd.Sum) is y
        assert torch.equal(y, everybody.sum(0).to(dtype))
    with pytest.warns(DeprecationWarning):
        assert hvd.allreduce(torch.ones(1), average=False).item() == n
    with pytest.raises(ValueError, match="pass op alone"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    product = hvd.allreduce(torch.tensor([2.0]), op=hvd.Product, prescale_factor=1.0)
    assert product.item() == 2.0**n


def handles() -> None:
    n = hvd.size()
    handles = [hvd.allreduce_async(torch.full((4,), float(i)), name=f"t{i}", op=hvd.Sum) for i in range(50)]
    for i in reversed(range(50)):
        assert torch.equal(hvd.synchronize(handles[i]), torch.full((4,), float(i * n)))
    assert hvd.synchronize(handles[0]) is None
    with pytest.raises(ValueError, match="its result was already returned|is not a handle"):
        hvd.poll(handles[0])
    handle = hvd.allreduce_async(torch.ones(1), name="again")
    while not hvd.poll(handle):
        pass
    again = hvd.allreduce_async(torch.ones(1), name="again")
    assert hvd.synchronize(handle).item() == hvd.synchronize(again).item() == 1.0


def out_of_order() -> None:
    # Names match, not the order of calls: rank 0 submits first and waits at a barrier that the others reach first.
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="x", op=hvd.Sum)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(2), name="x", op=hvd.Sum)
    assert hvd.synchronize(handle)[0].item() == hvd.size()


def groups() -> None:
    n = hvd.size()
    tensors = [torch.ones(3), torch.arange(4.0)]
    a, b = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    assert torch.equal(a, torch.full((3,), float(n)))
    assert torch.equal(b, n * torch.arange(4.0))
    results = hvd.grouped_allreduce_(tensors, name="g")
    assert results[0] is tensors[0]
    gathered = hvd.grouped_allgather([torch.full((1,), hvd.rank()), torch.ones(2, 2)])
    assert torch.equal(gathered[0], torch.arange(n))
    assert gathered[1].shape == (2 * n, 2)
    c, d = hvd.grouped_reducescatter([torch.ones(n, 2), torch.ones(n)], op=hvd.Sum)
    assert torch.equal(c, torch.full((1, 2), float(n)))
    assert torch.equal(d, torch.full((1,), float(n)))


def rows() -> None:
    r, n = hvd.rank(), hvd.size()
    for dtype in [*TYPES, torch.bool]:
        got = hvd.allgather(torch.full((r + 1, 2), r).to(dtype))
        assert torch.equal(got, torch.cat([torch.full((i + 1, 2), i).to(dtype) for i in range(n)])), dtype
        got = hvd.broadcast(torch.full((2,), r).to(dtype), 1)
        assert torch.equal(got, torch.full((2,), 1).to(dtype))
    x = torch.full((2,), float(r))
    assert hvd.broadcast_(x, 1) is x
    assert torch.equal(x, torch.ones(2))
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
    sent = torch.arange(n).repeat_interleave(r + 1)
    out, received = hvd.alltoall(sent, torch.tensor([r + 1] * n, dtype=torch.int32))
    assert received.tolist() == [i + 1 for i in range(n)]
    assert torch.equal(out, torch.full((n * (n + 1) // 2,), r))
    assert torch.equal(hvd.alltoall(torch.arange(n)), torch.full((n,), r))
    share = hvd.reducescatter(torch.arange(2.0 * n + 1))
    first = 0 if r == 0 else 1 + 2 * r
    assert torch.equal(share, torch.arange(float(first), float(first + (3 if r == 0 else 2))))


def sparse() -> None:
    r, n = hvd.rank(), hvd.size()
    x = torch.sparse_coo_tensor(torch.tensor([[0, r + 1]]), torch.ones(2, 3), (n + 2, 3))
    for op, factor in [(hvd.Sum, 1.0), (hvd.Average, 1.0 / n)]:
        got = hvd.sparse_allreduce_async(x, "s", op)().to_dense()
        want = torch.ones(n + 2, 3)
        want[0], want[n + 1] = n, 0.0
        assert torch.equal(got, want * factor)


def compressed() -> None:
    n = hvd.size()
    x = torch.tensor([1.0, 1.0 + 2.0**-12])
    for compression in [hvd.Compression.fp16, hvd.Compression.bf16]:
        got = hvd.allreduce(x, op=hvd.Sum, compression=compression)
        assert got.dtype == torch.float32
        assert torch.equal(got, torch.full((2,), float(n)))
    assert torch.equal(
        hvd.allreduce(torch.tensor([3]), op=hvd.Sum, compression=hvd.Compression.fp16), torch.tensor([3 * n])
    )

    class Halves(hvd.Compression.none):
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, float]:
            return tensor / 2, 2.0

        @staticmethod
        def decompress(tensor: torch.Tensor, ctx: float) -> torch.Tensor:
            return tensor * ctx

    assert torch.equal(hvd.allreduce(torch.ones(1), op=hvd.Sum, compression=Halves), torch.tensor([float(n)]))


def gradients() -> None:
    r, n = hvd.rank(), hvd.size()
    x = torch.ones(3, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum).backward(torch.full((3,), r + 1.0))
    assert torch.equal(x.grad, torch.full((3,), n * (n + 1) / 2))

    x = torch.ones(3, requires_grad=True)
    hvd.allreduce(x, prescale_factor=2.0).backward(torch.full((3,), float(r)))
    assert torch.equal(x.grad, torch.full((3,), 2.0 * (n - 1) / 2))

    x = torch.ones(r + 1, 2, requires_grad=True)
    g = hvd.allgather(x)
    g.backward(torch.arange(float(len(g))).unsqueeze(1).expand(-1, 2) * (r + 1))
    first = r * (r + 1) // 2
    want = torch.arange(float(first), float(first + r + 1)) * (n + 1) / 2
    assert torch.allclose(x.grad, want.unsqueeze(1).expand(-1, 2))

    x = torch.ones(2, requires_grad=True)
    hvd.broadcast(x, 1).backward(torch.full((2,), float(r)))
    assert torch.equal(x.grad, torch.full((2,), (n - 1) / 2 if r == 1 else 0.0))

    x = torch.arange(float(n * (r + 1)), requires_grad=True)
    out, _ = hvd.alltoall(x, torch.tensor([r + 1] * n, dtype=torch.int32))
    out.backward(torch.full(out.shape, float(r)))
    assert torch.equal(x.grad, torch.arange(float(n)).repeat_interleave(r + 1))

    for op, factor in [(hvd.Sum, float(n)), (hvd.Average, 1.0)]:
        x = torch.ones(n, requires_grad=True)
        hvd.reducescatter(x, op=op, prescale_factor=2.0).backward(torch.tensor([r + 1.0]))
        assert torch.equal(x.grad, 2.0 * factor * torch.arange(1.0, n + 1))

    a, b = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    ra, rb = hvd.grouped_allreduce([a, b], op=hvd.Sum)
    (ra.sum() + 2 * rb.sum()).backward()
    assert torch.equal(a.grad, torch.full((2,), float(n)))
    assert torch.equal(b.grad, torch.full((3,), 2.0 * n))


def joined() -> int:
    r, n = hvd.rank(), hvd.size()
    for i in range(r + 1):
        got = hvd.allreduce(torch.ones(2), name=f"step{i}")
        assert torch.equal(got, torch.full((2,), (n - i) / n))
    last = hvd.join()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == n
    return last


def batch_norm() -> None:
    r, n = hvd.rank(), hvd.size()
    torch.manual_seed(7)
    whole = torch.randn(4 * n, 3, 5)
    ours, plain = hvd.SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
    mine = whole[4 * r : 4 * r + 4].clone().requires_grad_()
    whole.requires_grad_()
    target = torch.randn(4 * n, 3, 5)
    out, want = ours(mine), plain(whole)
    assert torch.allclose(out, want[4 * r : 4 * r + 4], atol=1e-5)
    (out * target[4 * r : 4 * r + 4]).sum().backward()
    (want * target).sum().backward()
    assert torch.allclose(mine.grad, whole.grad[4 * r : 4 * r + 4], atol=1e-4)
    assert torch.allclose(hvd.allreduce(ours.weight.grad, op=hvd.Sum), plain.weight.grad, atol=1e-3)
    assert torch.allclose(ours.running_var, plain.running_var, atol=1e-5)
    assert torch.allclose(ours.running_mean, plain.running_mean, atol=1e-5)
    ours.eval()
    plain.eval()
    assert torch.allclose(ours(mine), plain(mine), atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [reductions, handles, out_of_order, groups, rows, sparse, compressed, gradients, batch_norm],
    ids=lambda f: f.__name__,
)
def test_collectives(n: int, function: object) -> None:
    run_ranks(n, function)


def test_ranks_that_joined_bring_zeros(n: int) -> None:
    assert run_ranks(n, joined) == [n - 1] * n
