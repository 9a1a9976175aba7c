"""Embedding tables on servers end where torch alone ends, and say what cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from ranks import DEADLINE_S, launch, run_ranks

import phalanx.torch as hvd
from phalanx import _world
from phalanx.exceptions import ForkedError, MismatchError

WORDS, WIDTH, STEPS = 50, 4, 6


class Net(torch.nn.Module):
    def __init__(self, bag: bool = False) -> None:
        super().__init__()
        torch.manual_seed(5)
        kind: Any = torch.nn.EmbeddingBag if bag else torch.nn.Embedding
        options = {"mode": "sum"} if bag else {"padding_idx": 3}
        self.words = kind(WORDS, WIDTH, sparse=True, dtype=torch.float64, **options)
        self.out = torch.nn.Linear(WIDTH, 1, dtype=torch.float64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.words(ids)
        return self.out(rows if rows.dim() == 2 else rows.sum(1))


def batch(step: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (8, 3), generator=torch.Generator().manual_seed(step))


def made(net: Net, kind: str) -> list[torch.optim.Optimizer]:
    """Tables and the rest may have optimizers of their own, as torch's sparse ones demand."""
    words, rest = net.words.parameters(), net.out.parameters()
    if kind == "sgd":
        return [torch.optim.SGD(net.parameters(), lr=0.1)]
    if kind == "adagrad":
        return [torch.optim.Adagrad(net.parameters(), lr=0.1, lr_decay=0.1, initial_accumulator_value=0.1)]
    return [torch.optim.SparseAdam(words, lr=0.1), torch.optim.SGD(rest, lr=0.1)]


def trained(net: Net, optimizers: list[Any], ranks: tuple[int, int], passes: int = 1) -> dict[str, torch.Tensor]:
    rank, size = ranks
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in optimizers]
    for step in range(STEPS):
        for o in optimizers:
            o.zero_grad()
        for i in range(passes):
            net(batch(step * passes + i)[rank::size]).square().mean().backward()
        for o in optimizers:
            o.step()
        for s in schedulers:
            s.step()
    return {name: value.clone() for name, value in net.state_dict().items()}


def served(kind: str, bag: bool, passes: int) -> tuple[dict[str, torch.Tensor], dict[str, int], int]:
    net = Net(bag)
    if hvd.rank() != 0:
        torch.nn.init.zeros_(net.words.weight)  # Rank 0's rows count.
    optimizers = made(net, kind)
    tables = hvd.serve_tables(net, optimizers[0], partitions=3)
    assert "words.weight" not in dict(net.named_parameters())
    own: list[Any] = list(optimizers)
    own[-1] = hvd.DistributedOptimizer(own[-1], net.out.named_parameters(), backward_passes_per_step=passes)
    hvd.broadcast_parameters(dict(net.out.named_parameters()), root_rank=0)
    state = trained(net, own, (hvd.rank(), hvd.size()), passes)
    counters = tables.counters()
    return state, counters, sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize(("kind", "bag"), [("sgd", False), ("adagrad", True), ("sparse_adam", False)])
def test_served_tables_end_where_torch_alone_ends(kind: str, bag: bool, n: int) -> None:
    net = Net(bag)
    wanted = trained(net, made(net, kind), (0, 1))
    for state, _, kept in run_ranks(n, served, kind, bag, 1):
        assert kept == WIDTH + 1, "no rank keeps the table"
        for name, value in wanted.items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-12)


def test_all_passes_of_a_step_are_pushed_together() -> None:
    net = Net()
    wanted = trained(net, made(net, "sgd"), (0, 1), passes=2)
    for state, _, _ in run_ranks(2, served, "sgd", False, 2):
        for name, value in wanted.items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-12)


def counted() -> tuple[dict[str, int], set[int]]:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    tables = hvd.serve_tables(net, optimizer)
    ids = batch(0)[hvd.rank() :: hvd.size()]
    net(ids).sum().backward()
    optimizer.step()
    net.words(torch.tensor([0]))  # After this, the step has been counted.
    return tables.counters(), {int(i) for i in ids.flatten()}


def test_a_host_sends_each_row_once() -> None:
    (first, a), (_, b) = run_ranks(2, counted)
    assert first["pushed_rows"] == len(a | b)
    assert first["given_rows"] == len(a) + len(b)


def resumed(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    def fresh(seed: int) -> tuple[Net, Any, Any]:
        net = Net()
        torch.manual_seed(seed)
        torch.nn.init.normal_(net.words.weight)
        optimizer: torch.optim.Optimizer = torch.optim.SparseAdam(net.words.parameters(), lr=0.1)
        if kind == "adagrad":
            optimizer = torch.optim.Adagrad(net.words.parameters(), lr=0.1, lr_decay=0.5)
        return net, optimizer, hvd.serve_tables(net, optimizer, partitions=4 if seed == 0 else 7)

    def steps(net: Net, optimizer: Any, numbers: range) -> None:
        for step in numbers:
            optimizer.zero_grad()
            net(batch(step)[hvd.rank() :: hvd.size()]).square().mean().backward()
            optimizer.step()

    net, optimizer, tables = fresh(0)
    steps(net, optimizer, range(2))
    model, states = net.state_dict(), tables.state_dict()
    steps(net, optimizer, range(2, 5))
    straight = net.state_dict()["words.weight"]
    tables.close()
    again, optimizer, tables = fresh(1)
    again.load_state_dict(model)
    tables.load_state_dict(states)
    hvd.barrier()
    steps(again, optimizer, range(2, 5))
    return straight, again.state_dict()["words.weight"]


@pytest.mark.parametrize("kind", ["adagrad", "sparse_adam"])
def test_saved_with_4_partitions_and_restored_with_7_gives_the_same_bits(kind: str) -> None:
    for straight, again in run_ranks(2, resumed, kind):
        assert torch.equal(straight, again)


def joined_with_a_scheduler() -> tuple[torch.Tensor, list[float]]:
    net = Net()
    optimizer = torch.optim.SGD(net.words.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    hvd.serve_tables(net, optimizer, op=hvd.Sum)
    rates = []
    # One rank has a step, the other four, each with a rate of its own.
    for _ in range(1 if hvd.rank() == 1 else 4):
        optimizer.zero_grad()
        net.words(torch.tensor([7])).sum().backward()
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    hvd.join()
    return net.state_dict()["words.weight"][7], rates


def test_who_has_joined_does_not_hinder_a_scheduler_of_the_others() -> None:
    (first, rates), (second, own) = run_ranks(2, joined_with_a_scheduler)
    assert torch.equal(first, second)
    wanted = Net().words.weight[7].detach() - sum(rates) - sum(own)
    torch.testing.assert_close(first, wanted)


def cut_anew() -> tuple[torch.Tensor, torch.Tensor, str]:
    ends, told = [], ""
    for cuts in ({}, {1: 5, 3: 2}):
        net = Net()
        optimizer = torch.optim.SparseAdam(net.words.parameters(), lr=0.1)
        tables = hvd.serve_tables(net, optimizer)
        for step in range(5):
            optimizer.zero_grad()
            net(batch(step)[hvd.rank() :: hvd.size()]).square().mean().backward()
            optimizer.step()
            if step in cuts:
                tables.reshard(cuts[step])
        ends.append(net.state_dict()["words.weight"])
        told = tables.explain()
        tables.close()
    return ends[0], ends[1], told


def test_tables_that_are_cut_anew_have_the_same_bits() -> None:
    for plain, cut, told in run_ranks(2, cut_anew):
        assert torch.equal(plain, cut)
        assert "2 partitions" in told


def says(call: Any) -> str:
    with pytest.raises((ValueError, TypeError, IndexError, MismatchError)) as caught:
        call()
    return str(caught.value)


def refused() -> list[str]:
    def net(**options: Any) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Embedding(5, 2, sparse=True, **options))

    def serve(model: torch.nn.Module, optimizer: Any = None, **options: Any) -> Any:
        return hvd.serve_tables(model, optimizer or torch.optim.SGD(model.parameters(), lr=0.1), **options)

    dense = torch.nn.Sequential(torch.nn.Embedding(5, 2))
    said = [
        says(lambda: serve(dense)),
        says(lambda: serve(net(max_norm=1.0))),
        says(lambda: serve(net(), torch.optim.Adam(net().parameters()))),
    ]
    model = net()
    said.append(says(lambda: serve(model, torch.optim.Adam(model.parameters()))))
    said.append(says(lambda: serve(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1))))
    said.append(says(lambda: serve(model, op=hvd.Max)))
    said.append(says(lambda: serve(model, staleness=1)))
    said.append(says(lambda: serve(torch.nn.Embedding(5, 2, sparse=True))))
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    said.append(says(lambda: serve(model, wrapped)))
    model = net()
    serve(model)
    said.append(says(lambda: model(torch.tensor([5]))))
    said.append(says(lambda: model(torch.tensor([-1]))))
    return said


def test_what_cannot_be_served_is_refused_with_what_to_do() -> None:
    (said,) = run_ranks(1, refused)
    parts = [
        "no Embedding or EmbeddingBag with sparse=True",
        "max_norm",
        "no Embedding or EmbeddingBag with sparse=True whose weight this optimizer trains",
        "SGD, Adagrad and SparseAdam, not Adam",
        "weight_decay=0.1",
        "op must be",
        "only a sum has a meaning",
        "torch.nn.Sequential(embedding)",
        "before the optimizer is wrapped",
        "row 5 is not in 0..5",
        "row -1 is not in 0..5",
    ]
    for text, part in zip(said, parts, strict=True):
        assert part in text, text


def tied() -> tuple[list[str], bool]:
    net = torch.nn.ModuleDict({"a": torch.nn.Embedding(5, 2, sparse=True), "b": torch.nn.Embedding(5, 2, sparse=True)})
    net["out"] = torch.nn.Linear(2, 5, bias=False)
    net["out"].weight = net["a"].weight
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.serve_tables(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return [str(w.message) for w in caught], isinstance(net["a"], torch.nn.Embedding)


def test_a_table_that_is_used_densely_too_is_not_served() -> None:
    ((said, kept),) = run_ranks(1, tied)
    assert kept and any("its gradient is dense" in text for text in said)


def discarded() -> bool:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    hvd.serve_tables(net, optimizer)
    before = net.state_dict()["words.weight"]
    for owner in (net, optimizer):
        net(batch(0)).sum().backward()
        owner.zero_grad()
    optimizer.step()
    return torch.equal(before, net.state_dict()["words.weight"])


def test_gradients_that_are_zeroed_are_not_pushed() -> None:
    assert run_ranks(1, discarded) == [True]


def opened_differently() -> str:
    net = torch.nn.Sequential(torch.nn.Embedding(5 + hvd.rank(), 2, sparse=True))
    return says(lambda: hvd.serve_tables(net, torch.optim.SGD(net.parameters(), lr=0.1)))


def test_ranks_with_other_tables_are_told_of_both() -> None:
    for text in run_ranks(2, opened_differently):
        assert "5 x 2 f32" in text and "6 x 2 f32" in text


#: Rank 1 ends with an exception; rank 0 waits for its push.
ENDS = """
import torch, phalanx.torch as hvd
hvd.init()
net = torch.nn.Sequential(torch.nn.Embedding(5, 2, sparse=True))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
tables = hvd.serve_tables(net, optimizer)
if hvd.rank() == 1:
    raise RuntimeError("a test")
optimizer.step()
try:
    net(torch.tensor([1]))
except Exception as error:
    print("told:", type(error).__name__, error, flush=True)
"""


def test_a_rank_that_ends_with_an_exception_is_named_and_nobody_waits_for_the_timeout() -> None:
    env = {"PHALANX_TIMEOUT": str(int(3 * DEADLINE_S))}
    job = launch(2, [sys.executable, "-c", ENDS], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = job.communicate(timeout=DEADLINE_S)
    finally:
        job.kill()
    told = [line for line in said.splitlines() if "told:" in line]
    assert told and "rank 1" in told[0], said


def loaded() -> bool:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    hvd.serve_tables(net, optimizer)
    with torch.no_grad():
        net(batch(0))
    # Not net.state_dict(), which another rank may have replaced by now: all load the same.
    state = Net().state_dict()
    state["words.weight"] = state["words.weight"] + 1.0
    net.load_state_dict(state)
    ids = torch.arange(WORDS)
    return torch.equal(net.words(ids), state["words.weight"])


def test_rows_that_were_loaded_after_a_validation_are_seen() -> None:
    assert run_ranks(2, loaded) == [True, True]


def by_hand(use: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights after two steps: with served tables, and with torch alone."""
    ends = []
    for is_served in (True, False):
        net = Net()
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1)
        if is_served:
            hvd.serve_tables(net, optimizer)
            if use == "wrapped closure":
                optimizer = hvd.DistributedOptimizer(optimizer, net.out.named_parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(2):
            optimizer.zero_grad()
            if use.endswith("closure"):

                def closure(net: Net = net, optimizer: Any = optimizer, step: int = step) -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = net(batch(step)).square().mean()
                    loss.backward()
                    return loss

                optimizer.step(closure)
            elif use == "two backward calls":
                loss = net(batch(step)).square().mean()
                loss.backward(retain_graph=True)
                loss.backward()
                optimizer.step()
            elif use == "loaded optimizer":
                optimizer.load_state_dict(optimizer.state_dict())
                net(batch(step)).square().mean().backward()
                optimizer.step()
            scheduler.step()
        ends.append(net.state_dict()["words.weight"].clone())
    return ends[0], ends[1]


@pytest.mark.parametrize("use", ["two backward calls", "closure", "wrapped closure", "loaded optimizer"])
def test_each_use_of_an_optimizer_ends_where_torch_ends(use: str) -> None:
    for mine, wanted in run_ranks(2 if use.startswith("wrapped") else 1, by_hand, use):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-12)


def skipped() -> bool:
    net = Net()
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1)
    hvd.serve_tables(net, optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer, net.out.named_parameters())
    before = net.state_dict()["words.weight"]
    net(batch(0)).sum().backward()
    optimizer.zero_grad()  # This step is skipped.
    is_dropped = not net.words._table.given
    net(batch(1)).sum().backward()
    optimizer.step()
    touched = torch.zeros(WORDS, dtype=torch.bool)
    touched[batch(1).flatten()] = True
    touched[3] = False  # padding_idx
    moved = (net.state_dict()["words.weight"] != before).any(1)
    return is_dropped and torch.equal(moved, touched)


def test_a_skipped_step_is_discarded_by_both_zero_grads() -> None:
    assert run_ranks(2, skipped) == [True, True]


def lazy() -> tuple[torch.Tensor, torch.Tensor]:
    net = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True, dtype=torch.float64))
    rows = net[0].weight.detach().clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    hvd.serve_tables(net, optimizer)
    velocity = torch.zeros_like(rows)
    for ids in ([0, 1], [1, 2], [0]):
        net(torch.tensor(ids)).sum().backward()
        optimizer.step()
        for i in ids:
            velocity[i] = 0.5 * velocity[i] + 1.0
            rows[i] -= 0.1 * velocity[i]
    return net.state_dict()["0.weight"], rows


def test_momentum_moves_the_rows_of_the_step_and_no_others() -> None:
    ((mine, wanted),) = run_ranks(1, lazy)
    torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12)


def clipped() -> tuple[float, float, float]:
    net = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    tables = hvd.serve_tables(net, optimizer)
    before = net.state_dict()["0.weight"]
    net(torch.tensor([1, 1])).sum().backward()
    net(torch.tensor([2])).sum().backward()
    norm = tables.norm()
    tables.scale_(0.5)
    optimizer.step()
    moved = net.state_dict()["0.weight"] - before
    return norm, float(moved.norm()), tables.norm()


def test_gradients_that_wait_are_measured_and_scaled() -> None:
    ((norm, moved, after),) = run_ranks(1, clipped)
    assert norm == pytest.approx((2 * (4 + 1)) ** 0.5) and moved == pytest.approx(norm / 2, rel=1e-5) and after == 0.0


def cycled() -> str:
    net = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    hvd.serve_tables(net, optimizer)
    optimizer.param_groups[0]["momentum"] = 0.75
    return says(optimizer.step)


def test_numbers_of_the_rule_that_change_are_refused() -> None:
    (text,) = run_ranks(1, cycled)
    assert "0.5" in text and "0.75" in text and "only lr may change" in text


def forked() -> tuple[int, bool]:
    net = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    tables = hvd.serve_tables(net, optimizer)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (tables.close, tables.explain):
                with pytest.raises(ForkedError):
                    call()
            tables._end()
            # What the child inherited goes, and the parent's tables stay.
            for table in tables._tables:
                del table.core
            del tables._core
            code = 0
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    net(torch.tensor([1])).sum().backward()
    optimizer.step()
    return ended, bool(net(torch.tensor([1])).isfinite().all())


def test_a_forked_child_is_refused_and_its_parent_goes_on() -> None:
    assert run_ranks(2, forked, fresh=True) == [(0, True), (0, True)]


def raising() -> tuple[str, bool]:
    def bad() -> None:
        _world._at_shutdown.remove(bad)
        raise RuntimeError("a test")

    _world._at_shutdown.append(bad)
    with pytest.raises(RuntimeError) as caught:
        hvd.shutdown()
    return str(caught.value), hvd.is_initialized()


def test_shutdown_goes_on_whatever_one_of_its_steps_raises() -> None:
    assert run_ranks(1, raising) == [("a test", False)]


SERVERS = """
import torch, phalanx.torch as hvd
from phalanx.distributed import TaskSpec
spec = TaskSpec()
spec.create_server()
if spec.is_ps():
    raise SystemExit
hvd.init()
torch.manual_seed(1)
nets = [torch.nn.Sequential(torch.nn.Embedding(5, 2, sparse=True)) for _ in range(2)]
optimizers = [torch.optim.SGD(net.parameters(), lr=0.5) for net in nets]
try:
    hvd.serve_tables(nets[0], optimizers[0], staleness=1)
except ValueError as error:
    print("told:", error, flush=True)
tables = [hvd.serve_tables(net, optimizer, op=hvd.Sum) for net, optimizer in zip(nets, optimizers)]
before = [net.state_dict()["0.weight"].clone() for net in nets]
hvd.barrier()
for net, optimizer in zip(nets, optimizers):
    net(torch.tensor([hvd.rank(), 3])).sum().backward()
    optimizer.step()
moved = [(net.state_dict()["0.weight"] - old)[:, 0].tolist() for net, old in zip(nets, before)]
print("moved:", [[round(x, 3) for x in one] for one in moved], flush=True)
print("placed:", tables[0].explain().splitlines()[0], flush=True)
"""


def test_ranks_that_only_serve_have_the_tables_of_several_models() -> None:
    command = [sys.executable, "-m", "phalanx", "run", "-np", "2", "--servers", "2", "--", sys.executable, "-c", SERVERS]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_"))}
    env["PHALANX_TIMEOUT"] = str(int(3 * DEADLINE_S))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("only a sum has a meaning") == 2, done.stdout
    assert done.stdout.count("moved: [[-0.5, -0.5, 0.0, -1.0, 0.0], [-0.5, -0.5, 0.0, -1.0, 0.0]]") == 2, done.stdout
    assert "on servers 0 1" in done.stdout, done.stdout
