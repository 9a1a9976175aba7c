"""Models of torch in Parallax's door: all strategies end where one process ends."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from parallax_models import STEPS, Net, alone, batch, optimizer_of, says
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx import parallax
from phalanx.parallax import partitions
from phalanx.torch.optimizer import _DistributedOptimizer


def strategies(kinds: list[str]) -> list[tuple[str, str, bool, dict[str, torch.Tensor], str]]:
    made = []
    for kind in kinds:
        for option in ("PS", "MPI", "HYBRID", None):
            for average in (True, False):
                net = Net()
                if hvd.is_initialized() and hvd.rank() != 0:
                    for p in net.parameters():
                        torch.nn.init.zeros_(p)  # Worker 0's values count.
                config = parallax.Config(run_option=option, average_sparse=average)
                found = parallax.parallel_run((net, optimizer_of(net, kind)), parallax_config=config)
                session, n, worker, replicas = found
                for step in range(STEPS):
                    session.run("train_op", feed_dict={"ids": [batch(step)[worker::n]] * replicas})
                state = {name: value.clone() for name, value in net.state_dict().items()}
                made.append((kind, str(option), average, state, session.explain()))
                session.close()
    return made


@pytest.mark.parametrize(("n", "hosts"), [(1, None), (2, None), (4, None), (4, "a:3,b:1")])
def test_all_strategies_end_where_one_process_ends(n: int, hosts: str | None) -> None:
    for results in run_ranks(n, strategies, ["sgd", "adagrad"], hosts=hosts):
        for kind, option, average, state, explained in results:
            wanted = alone(kind, n, average)
            for name, value in wanted.items():
                torch.testing.assert_close(
                    state[name], value, rtol=1e-6, atol=1e-9, msg=f"{kind} {option} {average} {name}"
                )
            # What None chooses between hosts, the network decides: test_parallax_auto.py has both.
            chosen = ("MPI",) if hosts is None else ("MPI", "HYBRID")
            assert explained.startswith(chosen if option == "None" else option), explained


class Exact(torch.nn.Module):
    """All its gradients are multiples of 1/16 of few bits, so sums have the same bits in every order."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(6, 2, sparse=True)
        self.shift = torch.nn.Linear(2, 2)
        for p in self.parameters():
            torch.nn.init.constant_(p, 0.5)

    def forward(self, ids: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        return ((self.words(ids) + self.shift.bias) * slope).mean()


def exact_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.arange(8)
    return (at * 5 + step) % 6, torch.stack([(at + step) % 9 - 4.0, (3 * at + step) % 9 - 4.0], 1)


def exact() -> list[dict[str, torch.Tensor]]:
    made = []
    for option in ("PS", "MPI", "HYBRID"):
        net = Exact()
        net.shift.weight.requires_grad_(False)
        config = parallax.Config(run_option=option, average_sparse=True)
        given = [p for p in net.parameters() if p.requires_grad]
        session, n, worker, _ = parallax.parallel_run((net, torch.optim.SGD(given, lr=0.5)), parallax_config=config)
        for step in range(4):
            ids, slope = (value[worker::n] for value in exact_batch(step))
            session.run("train_op", feed_dict={"ids": [ids], "slope": [slope]})
        made.append({name: value.clone() for name, value in net.state_dict().items()})
        session.close()
    return made


@pytest.mark.parametrize(("n", "hosts"), [(2, None), (4, "a:3,b:1")])
def test_exact_sums_have_the_bits_of_one_process(n: int, hosts: str | None) -> None:
    net = Exact()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(4):
        optimizer.zero_grad()
        net(*exact_batch(step)).backward()
        optimizer.step()
    for results in run_ranks(n, exact, hosts=hosts):
        for state in results:
            assert all(torch.equal(state[name], value) for name, value in net.state_dict().items()), state


def own_steps() -> list[dict[str, torch.Tensor]]:
    """Steps of the user's own, with the optimizer that was given."""
    made = []
    for option in ("MPI", "HYBRID", "PS"):
        net = Net()
        optimizer = optimizer_of(net, "sgd")
        config = parallax.Config(run_option=option, average_sparse=True)
        session, n, worker, replicas = parallax.parallel_run((net, optimizer), parallax_config=config)

        def step(ids: torch.Tensor, net: Net = net, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            net(ids)["loss"].backward()
            optimizer.step()

        for i in range(STEPS):
            session.run(step, feed_dict={"ids": [batch(i)[worker::n]] * replicas})
        made.append({name: value.clone() for name, value in net.state_dict().items()})
        session.close()
    return made


def test_a_function_makes_a_step_with_the_optimizer_that_was_given() -> None:
    serial = alone("sgd", 2, average=True)
    for results in run_ranks(2, own_steps):
        for state in results:
            for name, value in serial.items():
                assert torch.allclose(state[name], value, atol=1e-6), name


def hybrid() -> parallax.Config:
    config = parallax.Config()
    config.run_option = "HYBRID"
    return config


def placed() -> list[Any]:
    told = []
    for rows, rest in ((False, True), (True, False), (True, True)):
        net = Net(rows, rest)
        optimizer = optimizer_of(net, "sgd")
        session, n, worker, _ = parallax.parallel_run((net, optimizer), parallax_config=hybrid())
        before = session.counters()["allreduce_operations"]
        for step in range(2):
            session.run(["train_op"], feed_dict={"ids": [batch(step)[worker::n]]})
        trained = session._trained
        told.append(
            (
                session.explain().splitlines()[0],
                trained._tables is not None,
                isinstance(trained._optimizer, _DistributedOptimizer),
                session.counters()["allreduce_operations"] - before,
            )
        )
        session.close()
    return told


def test_without_sparse_gradients_nothing_is_served_and_with_them_alone_nothing_is_reduced() -> None:
    for dense, sparse, both in run_ranks(2, placed):
        assert dense[0].startswith("MPI: no gradient is sparse") and dense[1:3] == (False, True)
        assert sparse[0].startswith("HYBRID") and sparse[1:] == (True, False, 0)
        assert both[0].startswith("HYBRID") and both[1:3] == (True, True) and both[3] > 0


def uneven(kind: str) -> tuple[int, dict[str, torch.Tensor], float]:
    net = Net()
    session, _, worker, _ = parallax.parallel_run((net, optimizer_of(net, kind)), parallax_config=hybrid())
    for step in range(4 if worker == 0 else 2):
        session.run("train_op", feed_dict={"ids": [batch(step)]})
    last = hvd.join()
    # As with Horovod, dense parameters stay on a rank that has joined; tables do not. All go on together.
    hvd.broadcast_parameters(dict(net.out.named_parameters()), root_rank=last)
    (loss,), _ = session.run(["loss", "train_op"], feed_dict={"ids": [batch(9)]})
    state = net.state_dict()
    session.close()
    return last, state, float(loss)


def test_a_rank_that_has_joined_pushes_no_rows() -> None:
    (last, first, loss), (_, second, other) = run_ranks(2, uneven, "sgd")
    assert last == 0 and loss == other
    net = Net()
    optimizer = optimizer_of(net, "sgd")
    for step in [0, 1, 2, 3, 9]:
        optimizer.zero_grad()
        net(batch(step))["loss"].backward()
        for p in net.parameters():
            # Rows are summed, others averaged with zeros.
            both = step in (0, 1, 9)
            p.grad *= (2.0 if both else 1.0) if p is net.words.weight else (1.0 if both else 0.5)
        optimizer.step()
    for name, value in net.state_dict().items():
        torch.testing.assert_close(first[name], value, rtol=1e-6, atol=1e-9)
        assert torch.equal(first[name], second[name])


def saved(folder: str, option: str, steps: list[int], n_partitions: int) -> tuple[int, dict[str, torch.Tensor]]:
    parallax.get_partitioner(n_partitions)
    net = Net()
    config = parallax.Config(run_option=option)
    config.ckpt_config = parallax.CheckPointConfig(folder, save_ckpt_steps=2, save_ckpt_secs=1000)
    session, n, worker, _ = parallax.parallel_run((net, optimizer_of(net, "adagrad")), parallax_config=config)
    with session:
        first = session.global_step
        for step in steps:
            session.run("train_op", feed_dict={"ids": [batch(step)[worker::n]]})
        state = {name: value.clone() for name, value in net.state_dict().items()}
    return first, state


@pytest.mark.parametrize("option", ["HYBRID", "PS"])
def test_a_training_goes_on_with_other_partitions_and_the_same_bits(tmp_path: Path, option: str) -> None:
    straight = run_ranks(2, saved, str(tmp_path / "a"), option, [0, 1, 2, 3], 4)
    run_ranks(2, saved, str(tmp_path / "b"), option, [0, 1], 4)
    again = run_ranks(2, saved, str(tmp_path / "b"), option, [2, 3], 7)
    for (_, wanted), (first, state) in zip(straight, again, strict=True):
        assert first == 2
        assert all(torch.equal(wanted[name], value) for name, value in state.items())


def naive() -> list[tuple[dict[str, torch.Tensor], dict[str, int]]]:
    made = []
    for option in ("PS", "HYBRID"):
        for on in (True, False):
            ps = parallax.PSConfig(
                local_aggregation=on, boundary_among_servers=on, boundary_between_workers_and_servers=on
            )
            net = Net()
            config = parallax.Config(
                run_option=option, average_sparse=True, communication_config=parallax.CommunicationConfig(ps)
            )
            session, n, worker, _ = parallax.parallel_run((net, optimizer_of(net, "sgd")), parallax_config=config)
            for step in range(STEPS):
                session.run("train_op", feed_dict={"ids": [batch(step)[worker::n]]})
            state = {name: value.clone() for name, value in net.state_dict().items()}
            made.append((state, session.counters()))
            session.close()
    return made


def test_the_naive_ways_learn_the_same_and_send_every_row() -> None:
    first, second = run_ranks(2, naive)
    wanted = alone("sgd", 2, average=True)
    for results in (first, second):
        for state, _ in results:
            for name, value in wanted.items():
                torch.testing.assert_close(state[name], value, rtol=1e-6, atol=1e-9)
    hybrid = [counters["pushed_rows"] for _, counters in first[2:]] + [second[3][1]["pushed_rows"]]
    unions = sum(len(set(batch(step).flatten().tolist())) for step in range(STEPS))
    assert hybrid == [unions, *[sum(batch(step)[rank::2].numel() for step in range(STEPS)) for rank in (0, 1)]]


def searched(short: tuple[int, int]) -> tuple[dict[str, torch.Tensor], str, list[str]]:
    from phalanx.parallax import _search

    _search.TRIAL = short
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    parallax.log.addHandler(handler)
    parallax.log.setLevel(logging.INFO)
    net = Net()
    config = parallax.Config(run_option="HYBRID", average_sparse=True, search_partitions=True)
    session, n, worker, _ = parallax.parallel_run((net, optimizer_of(net, "adagrad")), parallax_config=config)
    for step in range(40):
        session.run("train_op", feed_dict={"ids": [batch(step % STEPS)[worker::n]]})
    state, explained = {name: value.clone() for name, value in net.state_dict().items()}, session.explain()
    session.close()
    return state, explained, told


class Crowded:
    """Tables of which this rank has no room for these numbers of partitions."""

    def __init__(self, tables: Any, refused: tuple[int, ...]) -> None:
        self._tables, self._refused = tables, refused

    def admits(self, partitions: int) -> str | None:
        return "a test wants it" if partitions in self._refused else self._tables.admits(partitions)

    def reshard(self, partitions: int) -> None:
        assert partitions not in self._refused
        self._tables.reshard(partitions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)


def crowded(refused: tuple[int, ...]) -> tuple[dict[str, torch.Tensor], str, list[str]]:
    from phalanx.parallax import _search

    _search.TRIAL = (1, 2)
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    parallax.log.addHandler(handler)
    parallax.log.setLevel(logging.INFO)
    net = Net()
    config = parallax.Config(run_option="HYBRID", average_sparse=True, search_partitions=True)
    session, n, worker, _ = parallax.parallel_run((net, optimizer_of(net, "adagrad")), parallax_config=config)
    if worker == 1:
        session._trained._tables = Crowded(session._trained._tables, refused)
    for step in range(40):
        session.run("train_op", feed_dict={"ids": [batch(step % STEPS)[worker::n]]})
    state, explained = {name: value.clone() for name, value in net.state_dict().items()}, session.explain()
    session.close()
    return state, explained, told


def test_partitions_that_one_rank_has_no_room_for_are_not_tried() -> None:
    # It begins with one partition, doubles, and would always try two next.
    found = run_ranks(2, crowded, (2, 3, 5, 6, 7), fresh=True)
    never = run_ranks(2, searched, (1000, 1000), fresh=True)
    for (state, explained, _), (wanted, _, _) in zip(found, never, strict=True):
        assert all(torch.equal(state[name], value) for name, value in wanted.items())
        assert "1 partitions" in explained, explained
    assert any("2 partitions are not tried: a test wants it" in text for text in found[1][2]), found[1][2]
    assert any("found 1 partitions" in text for text in found[0][2]), found[0][2]


def test_search_partitions_finds_a_number_and_changes_no_bit() -> None:
    found = run_ranks(2, searched, (1, 2), fresh=True)
    never = run_ranks(2, searched, (1000, 1000), fresh=True)
    for (state, explained, told), (wanted, _, _) in zip(found, never, strict=True):
        assert all(torch.equal(state[name], value) for name, value in wanted.items())
        if told:
            number = next(text.split()[-2] for text in told if " found " in text)
            assert f"{number} partitions" in explained, explained
    assert found[0][2] and all("search" not in text for text in never[0][2])


def two_models() -> tuple[float, float]:
    nets = [Net(), Net()]
    sessions = [parallax.parallel_run((net, optimizer_of(net, "sgd")))[0] for net in nets]
    for step in range(3):
        for session in sessions:
            session.run("train_op", feed_dict={"ids": [batch(step)]})
    ends = [float(session.run("loss", feed_dict={"ids": [batch(0)]})[0]) for session in sessions]
    for session in sessions:
        session.close()
    return ends[0], ends[1]


def test_two_models_are_trained_beside_each_other() -> None:
    for a, b in run_ranks(2, two_models):
        assert a == b


def apart() -> bool:
    net = Net()
    config = parallax.Config(run_option="PS")
    config.communication_config.ps_config.replicate_variables = False
    session, _, worker, _ = parallax.parallel_run((net, optimizer_of(net, "sgd")), sync=False, parallax_config=config)
    # Nobody waits for anybody: one makes more steps than the other.
    for step in range(2 + 3 * worker):
        session.run("train_op", feed_dict={"ids": [batch(step)]})
    # Neither does a rank that has joined make steps of its own.
    hvd.join()
    after = float(session.run("loss", feed_dict={"ids": [batch(0)]})[0])
    hvd.barrier()
    session.close()
    return after < float(Net()(batch(0))["loss"])


def test_workers_that_are_not_in_step_learn_too() -> None:
    assert run_ranks(2, apart) == [True, True]


def program() -> tuple[list[str], float, float]:
    numpy = pytest.importorskip("numpy")
    from phalanx import graph

    main, startup = graph.Program(), graph.Program()
    with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
        x = graph.data("x", [None, 2], dtype="int64")
        rows = graph.layers.embedding(x, size=[10, 3], is_sparse=True)
        loss = graph.layers.mean(graph.layers.square(rows))
        graph.optimizer.SGD(learning_rate=0.5).minimize(loss)
        feed = {"x": [numpy.array([[1, 2], [3, 4]])]}
        told: list[str] = []
        config = parallax.Config(run_option="MPI", average_sparse=True)
        config.communication_config.ps_config.wire_dtype = "float16"
        parallax.get_partitioner(3)
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        parallax.log.addHandler(handler)
        session, *_ = parallax.parallel_run(main, parallax_config=config)
        partitions._asked.clear()
        wanted = "no table is on servers with MPI here: PSConfig.wire_dtype and get_partitioner() has no effect"
        assert (wanted in said) == (hvd.rank() == 0), said
        with session:
            first = session.run(loss, feed_dict=feed)[0]
            for _ in range(5):
                (last,), _ = session.run([loss.name, "train_op"], feed_dict=feed)
            told.append(session.explain())
            told.append(says(lambda: session.run(loss, feed_dict={"x": [1, 2, 3]})))
    return told, first.item(), last.item()


def test_a_program_is_trained_by_allreduce_where_that_is_asked_for() -> None:
    for told, first, last in run_ranks(2, program):
        assert last < first and "rows gathered by all" in told[0], told
        assert "has 3 values, and this worker has 1 replicas" in told[1]


def digits(folder: str) -> tuple[str, dict[str, int], list[str], float, float]:
    sys.path.insert(0, folder)
    import torch_mnist

    class Reader(torch_mnist.Net):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(super().forward(x), labels)

    torch.manual_seed(1)
    net = Reader()
    images, labels = torch_mnist.digits("t10k", torch_mnist.DATA)
    config = parallax.Config(run_option="HYBRID")
    session, n, worker, _ = parallax.parallel_run(
        (net, torch.optim.SGD(net.parameters(), lr=0.1)), parallax_config=config
    )
    losses = []
    for step in range(12):
        part = slice(step * 64 + worker, (step + 1) * 64, n)
        (loss,), _ = session.run(["loss", "train_op"], feed_dict={"x": [images[part]], "labels": [labels[part]]})
        losses.append(float(loss))
    threads = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It may have ended since.
            threads.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
    told = session.explain(), session.counters(), threads, losses[0], losses[-1]
    session.close()
    return told


def test_digits_have_no_sparse_gradient_and_start_no_server() -> None:
    examples = str(Path(__file__).resolve().parents[2] / "examples")
    for explained, counters, threads, first, last in run_ranks(2, digits, examples, fresh=True):
        assert explained.startswith("MPI: no gradient is sparse, so no server is needed")
        assert not any("rows" in name for name in counters)
        assert threads and not any(name.startswith("phalanx-tables") for name in threads)
        assert last < first
