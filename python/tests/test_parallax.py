"""Parallax's door: all strategies end where one process ends, and what cannot be is said in a sentence."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import DEADLINE_S, run_ranks

import phalanx.torch as hvd
from phalanx import parallax
from phalanx.parallax import partitions
from phalanx.torch.optimizer import _DistributedOptimizer

WORDS, WIDTH, STEPS = 30, 3, 5


class Net(torch.nn.Module):
    def __init__(self, rows: bool = True, rest: bool = True) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.words = torch.nn.Embedding(WORDS, WIDTH, sparse=rows, dtype=torch.float64)
        self.out = torch.nn.Linear(WIDTH, 1, dtype=torch.float64) if rest else torch.nn.Flatten(0)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        made = self.out(self.words(ids).sum(1))
        return {"loss": made.square().mean(), "made": made}


def optimizer_of(net: torch.nn.Module, kind: str) -> torch.optim.Optimizer:
    if kind == "adagrad":
        return torch.optim.Adagrad(net.parameters(), lr=0.1, lr_decay=0.1)
    return torch.optim.SGD(net.parameters(), lr=0.1)


def batch(step: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (8, 3), generator=torch.Generator().manual_seed(step))


def alone(kind: str, n: int, average: bool) -> dict[str, torch.Tensor]:
    """What one process computes: dense gradients are averages over workers, rows averages or sums."""
    net = Net()
    optimizer = optimizer_of(net, kind)
    for step in range(STEPS):
        optimizer.zero_grad()
        net(batch(step))["loss"].backward()
        if not average:
            net.words.weight.grad *= n
        optimizer.step()
    return net.state_dict()


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


@pytest.mark.parametrize("n", [1, 2])
def test_all_strategies_end_where_one_process_ends(n: int) -> None:
    for results in run_ranks(n, strategies, ["sgd", "adagrad"]):
        for kind, option, average, state, explained in results:
            wanted = alone(kind, n, average)
            for name, value in wanted.items():
                torch.testing.assert_close(
                    state[name], value, rtol=1e-6, atol=1e-9, msg=f"{kind} {option} {average} {name}"
                )
            assert explained.startswith("HYBRID" if option == "None" else option)


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


def placed() -> list[Any]:
    told = []
    for rows, rest in ((False, True), (True, False), (True, True)):
        net = Net(rows, rest)
        optimizer = optimizer_of(net, "sgd")
        session, n, worker, _ = parallax.parallel_run((net, optimizer))
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
    session, _, worker, _ = parallax.parallel_run((net, optimizer_of(net, kind)))
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


def test_search_partitions_finds_a_number_and_changes_no_bit() -> None:
    found = run_ranks(2, searched, (1, 2), fresh=True)
    never = run_ranks(2, searched, (1000, 1000), fresh=True)
    for (state, explained, told), (wanted, _, _) in zip(found, never, strict=True):
        assert all(torch.equal(state[name], value) for name, value in wanted.items())
        if told:
            number = next(text.split()[-2] for text in told if " found " in text)
            assert f"{number} partitions" in explained, explained
    assert found[0][2] and all("search" not in text for text in never[0][2])


def says(call: Callable[[], Any]) -> str:
    with pytest.raises((ValueError, TypeError, AttributeError, OSError, KeyError, RuntimeError)) as caught:
        call()
    return str(caught.value)


def set_to(**values: Any) -> Callable[[], Any]:
    def call() -> Any:
        config = parallax.Config()
        for name, value in values.items():
            setattr(config, name, value)
        net = Net()
        return parallax.parallel_run((net, optimizer_of(net, "sgd")), parallax_config=config)

    return call


def ps(**values: Any) -> Callable[[], Any]:
    return set_to(communication_config=parallax.CommunicationConfig(parallax.PSConfig(**values)))


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (set_to(run_options="PS"), "did you mean 'run_option'"),
    (set_to(run_option=("HYBRID",)), "is a tuple, ('HYBRID',): a comma behind the value makes one"),
    (set_to(run_option="hybrid"), "must be PS, MPI or HYBRID, or None to choose, not 'hybrid'"),
    (set_to(average_sparse="yes"), "average_sparse is True or False, not 'yes'"),
    (set_to(ckpt_config="/tmp"), "ckpt_config is a CheckPointConfig, not '/tmp'"),
    (set_to(ckpt_config=parallax.CheckPointConfig(save_ckpt_steps=5)), "need ckpt_dir"),
    (set_to(ckpt_config=parallax.CheckPointConfig("x", save_ckpt_steps=0)), "a whole number from 1, not 0"),
    (set_to(profile_config=parallax.ProfileConfig("x", [1], [1, 2])), "profile_steps and profile_range; give one"),
    (set_to(profile_config=parallax.ProfileConfig(profile_steps=[1])), "need profile_dir"),
    (set_to(profile_config=parallax.ProfileConfig("x", profile_steps=[])), "a list of steps from 1"),
    (set_to(profile_config=parallax.ProfileConfig("x", profile_steps=[0])), "a list of steps from 1"),
    (set_to(profile_config=parallax.ProfileConfig(profile_worker=0)), "profile_worker needs profile_dir"),
    (
        set_to(profile_config=parallax.ProfileConfig("x", [1], profile_worker=1)),
        "profile_worker is 1, and the workers are 0 to 0",
    ),
    (
        set_to(ckpt_config=parallax.CheckPointConfig("x", save_ckpt_secs=float("inf"))),
        "a positive number of seconds, not inf",
    ),
    (set_to(sess_config=object()), "sess_config is for programs"),
    (ps(protocol="grpc+verbs"), "must be one of grpc, shm, tcp, unix, not 'grpc+verbs'"),
    (ps(local_aggregation=0), "local_aggregation is True or False, not 0"),
    (ps(wire_dtype="int8"), '"float16", "bfloat16" or None'),
    (ps(staleness="1"), "staleness is a number of steps"),
    (ps(staleness=-2), "staleness is a number of steps, -1 for any, or None, not -2"),
    (
        set_to(
            ckpt_config=parallax.CheckPointConfig("x"),
            communication_config=parallax.CommunicationConfig(parallax.PSConfig(staleness=2)),
        ),
        "ckpt_dir needs workers in step",
    ),
    (lambda: parallax.PSConfig(protcol="tcp"), "protcol"),  # type: ignore[call-arg]
    (set_to(communication_config=parallax.PSConfig()), "communication_config is a CommunicationConfig"),
    (
        set_to(
            communication_config=parallax.CommunicationConfig(
                mpi_config=parallax.MPIConfig(mpirun_options="-mca btl ^openib")
            )
        ),
        "no mpirun is started",
    ),
]


def all_refused() -> list[tuple[str, str]]:
    return [(part, says(call)) for call, part in REFUSED]


def test_every_attribute_acts_or_is_refused_with_the_reason() -> None:
    (told,) = run_ranks(1, all_refused)
    for part, text in told:
        assert part in text, text


def mistakes() -> list[tuple[str, str]]:
    def run(graph: Any, **options: Any) -> Any:
        return parallax.parallel_run(graph, **options)

    net, other = Net(), Net()
    config = parallax.Config(run_option="HYBRID")
    frozen = Net()
    for p in frozen.parameters():
        p.requires_grad_(False)
    told = [
        ("write (module, optimizer)", says(lambda: run(net))),
        ("(module, optimizer) of torch or a Program, not a str", says(lambda: run("net"))),
        ("parameters that are not in the module", says(lambda: run((net, optimizer_of(other, "sgd"))))),
        ("all parameters of the optimizer are frozen", says(lambda: run((frozen, optimizer_of(frozen, "sgd"))))),
        (
            "sync must be True if run_option is MPI or HYBRID",
            says(lambda: run((net, optimizer_of(net, "sgd")), sync=False, parallax_config=config)),
        ),
        (
            "replicate_variables is only possible with sync",
            says(lambda: run((net, optimizer_of(net, "sgd")), sync=False)),
        ),
        ("num_iterations must be", says(lambda: run((net, optimizer_of(net, "sgd")), run=print))),
        ("leave num_iterations out", says(lambda: run((net, optimizer_of(net, "sgd")), num_iterations=5))),
        ("whole number from 1, not 0", says(lambda: parallax.get_partitioner(0))),
        (
            "and <lambda> does not",
            says(lambda: run((net, optimizer_of(net, "sgd")), run=lambda session: None, num_iterations=1)),
        ),
        ("the path of a file", says(lambda: run((net, optimizer_of(net, "sgd")), resource_info=True))),
        (
            "parallax_config is given twice",
            says(
                lambda: parallax.parallel_run(
                    (net, optimizer_of(net, "sgd")), "hosts", True, config, parallax_config=config
                )
            ),
        ),
        ("have no numbers", says(lambda: parallax.shard.shard({"a": 1}))),
    ]
    session, *_ = run((net, optimizer_of(net, "sgd")))
    ids = batch(0)
    told += [
        (
            "has 2 values, and this worker has 1 replicas",
            says(lambda: session.run("loss", feed_dict={"ids": [ids, ids]})),
        ),
        ("write [value]", says(lambda: session.run("loss", feed_dict={"ids": ids}))),
        ("takes ids", says(lambda: session.run("loss", feed_dict={"words": [ids]}))),
        ("nothing to fetch", says(lambda: session.run(None))),
        ("and not 'accuracy'", says(lambda: session.run("accuracy", feed_dict={"ids": [ids]}))),
        ("served already", says(lambda: run((net, optimizer_of(net, "sgd"))))),
        ("of replica 3, and this worker has 1", says(lambda: session.run("replica_3/loss"))),
        ("'ids' is given twice", says(lambda: session.run("loss", feed_dict={"ids": [ids], "replica_0/ids": ids}))),
    ]
    assert session.global_step == 0
    values = session.run({"a": "loss", "b": ["replica_0/loss", "global_step"]}, feed_dict={"replica_0/ids": ids})
    assert len(values["a"]) == 1 and float(values["b"][0]) == float(values["a"][0]) and values["b"][1] == [0]
    session.close()
    session.close()
    told.append(("the session is closed", says(lambda: session.run("loss", feed_dict={"ids": [ids]}))))
    return told


def test_what_users_get_wrong_is_answered() -> None:
    (told,) = run_ranks(1, mistakes)
    for part, text in told:
        assert part in text, text


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


def seed_config(folder: str) -> list[str]:
    """The block of Parallax's documentation, with names for its placeholders."""
    run_option, redirect_path, ckpt_dir, save_ckpt_steps = "HYBRID", f"{folder}/log", f"{folder}/ckpt", 2
    replicate_variables, protocol, local_aggregation = True, "grpc", True
    boundary_among_servers = boundary_between_workers_and_servers = True
    use_allgatherv, mpirun_options = False, ""
    ckpt_config = parallax.CheckPointConfig(ckpt_dir=ckpt_dir, save_ckpt_steps=save_ckpt_steps)
    ps_config = parallax.PSConfig(
        replicate_variables=replicate_variables,
        protocol=protocol,
        local_aggregation=local_aggregation,
        boundary_among_servers=boundary_among_servers,
        boundary_between_workers_and_servers=boundary_between_workers_and_servers,
    )
    mpi_config = parallax.MPIConfig(use_allgatherv=use_allgatherv, mpirun_options=mpirun_options)
    profile_config = parallax.ProfileConfig(profile_dir=f"{folder}/profile", profile_steps=[2, 3])
    parallax_config = parallax.Config()
    parallax_config.run_option = (run_option,)  # type: ignore[assignment]
    parallax_config.average_sparse = False
    parallax_config.redirect_path = redirect_path
    parallax_config.communication_config = parallax.CommunicationConfig(ps_config, mpi_config)
    parallax_config.ckpt_config = ckpt_config
    parallax_config.profile_config = profile_config
    parallax_config.export_graph_path = f"{folder}/graph"

    def run(session: Any, n_iterations: int, names: Any, n_workers: int, worker: int, n_replicas: int) -> None:
        for step in range(n_iterations):
            feed = {name: batch(step)[worker::n_workers] for name in names["ids"]}
            loss, _ = session.run([names["loss"], names["train_op"]], feed_dict=feed)
            assert len(loss) == n_replicas

    net = Net()
    graph = (net, optimizer_of(net, "sgd"))
    told = says(lambda: parallax.parallel_run(graph, run, None, 4, parallax_config=parallax_config))
    assert "is a tuple" in told
    parallax_config.run_option = run_option
    parallax.parallel_run(graph, run, None, 4, parallax_config=parallax_config)
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("run_meta_*"))


def test_the_block_of_parallaxs_documentation_runs(tmp_path: Path) -> None:
    for files in run_ranks(2, seed_config, str(tmp_path), fresh=True):
        assert [f.split("/", 2)[2] for f in files if "worker:1" in f] == [
            f"worker:1/run_meta/run_meta_{s}" for s in (2, 3)
        ]
        trace = json.loads((tmp_path / files[0]).read_text())
        assert trace["traceEvents"]
    assert any((tmp_path / "ckpt").iterdir())
    assert "HYBRID" in (tmp_path / "graph" / "worker-1_metagraph").read_text()


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


def shards() -> tuple[list[int], list[int], tuple[int, int]]:
    from phalanx.data import Dataset

    some = list(parallax.shard.shard(range(7)))
    return (
        some,
        list(parallax.shard.shard(Dataset.from_list(range(7)))),
        parallax.shard.create_num_shards_and_shard_id(),
    )


def test_shards_are_disjoint_and_together_everything() -> None:
    (a, same, first), (b, other, second) = run_ranks(2, shards)
    assert sorted([*a, *b]) == list(range(7)) and a == same and b == other
    assert (first, second) == ((2, 0), (2, 1))
    assert list(parallax.shard.shard(iter("abc"))) == ["a", "b", "c"]


SCRIPT = """
import sys, torch
from phalanx import parallax

class Net(torch.nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.words = torch.nn.Embedding(8, 2, sparse=sparse)
    def forward(self, ids):
        return self.words(ids).square().sum()

def run(session, n, names, n_workers, worker, n_replicas):
    for _ in range(n):
        session.run(names["train_op"], feed_dict={"ids": [torch.tensor([worker])] * n_replicas})
    print("trained", worker, "of", n_workers, session.explain().split(":")[0], "argument", sys.argv[1], flush=True)
    if sys.argv[1] == "bad":
        sys.exit(7)

net = Net(sparse=sys.argv[1] != "dense")
config = parallax.Config(redirect_path=sys.argv[3] if len(sys.argv) > 3 else None)
parallax.parallel_run((net, torch.optim.SGD(net.parameters(), lr=0.1)), run, sys.argv[2] or None, 3, parallax_config=config)
"""


def script(*args: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "PARALLAX_"))}
    command = [sys.executable, "-c", SCRIPT, *args]
    if launcher:
        command = [sys.executable, "-m", "phalanx", "run", *launcher, "--", *command]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)


def test_a_process_starts_the_job_of_a_file_and_ends_with_its_code(tmp_path: Path) -> None:
    hosts = tmp_path / "resource_info"
    hosts.write_text("# two workers on this machine\n\nlocalhost\nlocalhost  # again\n")
    done = script("a b'c", str(hosts), str(tmp_path / "logs"))
    assert done.returncode == 0, done.stderr
    assert all(f"trained {r} of 2 HYBRID argument a b'c" in done.stdout for r in range(2)), done.stdout
    assert "trained 1 of 2" in (tmp_path / "logs" / "rank.1" / "stdout").read_text()
    assert script("bad", str(hosts)).returncode == 7


def test_a_file_that_is_missing_or_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    missing = script("x", str(tmp_path / "none"))
    assert missing.returncode != 0 and "resource_info" in missing.stderr and str(tmp_path / "none") in missing.stderr
    bad = tmp_path / "bad"
    bad.write_text("localhost\nh:\n")
    done = script("x", str(bad))
    assert done.returncode != 0 and f"{bad} line 2: nothing follows the colon" in done.stderr


def test_ranks_that_only_serve_have_the_tables() -> None:
    done = script("x", "", launcher=("-np", "2", "--servers", "2"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 2 HYBRID") == 2, done.stdout
    served = script("x", "", launcher=("-np", "2", "--servers", "2", "--serve"))
    assert served.returncode == 0 and served.stdout.count("of 2 HYBRID") == 2, served.stderr
    dense = script("dense", "", launcher=("-np", "2", "--servers", "1"))
    assert dense.returncode == 0 and dense.stdout.count("of 2 MPI") == 2, dense.stderr


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
    threads = [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]
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


ENDLESS = """
import os, signal, sys, torch
from phalanx import parallax

open(os.path.join(sys.argv[1], "pid." + os.environ["PHALANX_RANK"]), "w").write(str(os.getpid()))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(8, 2, sparse=True)
    def forward(self, ids):
        return self.words(ids).square().sum()

net = Net()
session, n, worker, _ = parallax.parallel_run((net, torch.optim.SGD(net.parameters(), lr=0.1)))
steps = 0
try:
    while True:
        session.run("train_op", feed_dict={"ids": [torch.tensor([worker])]})
        steps += 1
        if steps == 3:
            print("ready", worker, flush=True)
except Exception as error:
    print("told", worker, error, flush=True)
    if len(sys.argv) > 2:
        # The network alone shall tell the others: not the end of this process.
        signal.pause()
    os._exit(3)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_killed_or_frozen_is_named_with_what_it_served(tmp_path: Path, how: signal.Signals) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "PARALLAX_"))}
    # A rank that waits for the timeout does not end in time.
    env.update(PHALANX_TIMEOUT=str(int(3 * DEADLINE_S)), OMP_NUM_THREADS="1")
    words = [sys.executable, "-m", "phalanx", "run", "-np", "2", "--servers", "1", "--"]
    words += [sys.executable, "-c", ENDLESS, str(tmp_path)]
    job = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert job.stdout is not None
    guard = threading.Timer(DEADLINE_S, job.kill)
    guard.start()
    said, server = "", 0
    try:
        for line in job.stdout:
            said += line
            if not server and said.count("ready") == 2:
                server = int((tmp_path / "pid.2").read_text())
                os.kill(server, how)
        code = job.wait(timeout=DEADLINE_S)
    finally:
        guard.cancel()
        job.kill()
        if server:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)
    told = [line for line in said.splitlines() if "told" in line]
    assert len(told) == 2 and all("rank 2, which serves partitions of words, is lost" in line for line in told), said
    assert code != 0


def ip(line: str) -> bool:
    return subprocess.run(["ip", *line.split()], capture_output=True).returncode == 0


def test_a_host_whose_link_is_cut_is_named_with_what_it_served(tmp_path: Path) -> None:
    a, b = (f"pxt{os.getpid()}{side}" for side in "ab")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "PARALLAX_"))}
    env.update(PHALANX_TIMEOUT=str(int(3 * DEADLINE_S)), OMP_NUM_THREADS="1")
    with contextlib.ExitStack() as stack:
        for name in (a, b):
            stack.callback(ip, f"netns del {name}")
        made = shutil.which("nsenter") is not None and ip(f"netns add {a}") and ip(f"netns add {b}")
        made = made and ip(f"-n {a} link add eth0 type veth peer name eth0 netns {b}")
        for i, name in enumerate((a, b), 1):
            made = made and ip(f"-n {name} addr add 10.79.0.{i}/24 dev eth0")
            made = made and ip(f"-n {name} link set lo up") and ip(f"-n {name} link set eth0 up")
        if not made:
            pytest.skip("network namespaces need root and iproute2")
        reach = "nsenter --net=/run/netns/{host}"
        words = ["nsenter", f"--net=/run/netns/{a}", sys.executable, "-m", "phalanx", "run", "-H", f"{a}:2,{b}:1"]
        words += ["--rsh", reach, "--", sys.executable, "-c", ENDLESS, str(tmp_path), "stays"]
        job = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        stack.callback(job.wait)
        stack.callback(job.terminate)
        guard = threading.Timer(DEADLINE_S, job.kill)
        guard.start()
        stack.callback(guard.cancel)
        assert job.stdout is not None
        said, cut = "", 0.0
        for line in job.stdout:
            said += line
            if not cut and said.count("ready") == 3:
                assert ip(f"-n {b} link set eth0 down")
                cut = time.monotonic()
            if said.count("told") == 3:
                break
        print(f"told {time.monotonic() - cut:.2f} s after the link was cut")
    told = [line for line in said.splitlines() if "told" in line]
    for who in ("told 0", "told 1"):
        assert any(who in line and "rank 2, which serves partitions of words, is lost" in line for line in told), said
    # The rank that is cut off has lost its launcher as well.
    assert any("told 2" in line and "does not answer" in line for line in told), said
