"""Parallax's settings: what each does, and what is said of those that cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parallax_models import Net, batch, optimizer_of, says
from ranks import DEADLINE_S, run_ranks

import phalanx.torch as hvd
from phalanx import parallax


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
    session, *_ = run((net, optimizer_of(net, "sgd")), parallax_config=config)
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
    again, alone = optimizer_of(other, "sgd"), parallax.Config(run_option="MPI")
    run((other, again), parallax_config=alone)[0].close()
    told += [
        ("has taken this model already", says(lambda: run((other, again), parallax_config=alone))),
        ("has taken this model already", says(lambda: run((other, optimizer_of(other, "sgd"))))),
        ("served already", says(lambda: run((net, optimizer_of(net, "sgd")), parallax_config=alone))),
    ]
    return told


def test_what_users_get_wrong_is_answered() -> None:
    (told,) = run_ranks(1, mistakes)
    for part, text in told:
        assert part in text, text


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


def unequal_steps(option: str) -> list[str]:
    rank = hvd.rank()
    net = Net()
    session, *_ = parallax.parallel_run((net, optimizer_of(net, "sgd")), parallax_config=parallax.Config(run_option=option))
    for step in range(3 - rank):
        session.run("train_op", feed_dict={"ids": [batch(step).numpy()]})
    assert session.run("global_step") == [3 - rank]
    if rank == 0:
        return [says(session.close)]
    session.close()
    return []


def test_hosts_are_for_a_process_that_is_no_world_yet() -> None:
    """A world of one would train alone in silence."""
    program = """
import phalanx, torch
from phalanx import parallax
phalanx.init()
net = torch.nn.Linear(1, 1)
parallax.parallel_run((net, torch.optim.SGD(net.parameters(), lr=0.1)), "hosts.txt")
"""
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, env=alone)
    assert done.returncode != 0 and "call parallel_run before phalanx.init()" in done.stderr, done.stderr


def test_a_step_that_another_worker_never_makes_is_told() -> None:
    (lonely,), nothing = run_ranks(2, unequal_steps, "PS")
    assert nothing == []
    assert "rank 1" in lonely and "never pushes" in lonely, lonely


def ends_early(option: str) -> dict[str, torch.Tensor]:
    """One worker has less data: it joins, and takes what the others have learned."""
    rank = hvd.rank()
    net = Net()
    session, *_ = parallax.parallel_run((net, optimizer_of(net, "sgd")), parallax_config=parallax.Config(run_option=option))
    for step in range(4 - rank):
        session.run("train_op", feed_dict={"ids": [batch(step)]})
    hvd.broadcast_parameters(dict(net.named_parameters()), root_rank=hvd.join())
    learned = {name: value.clone() for name, value in net.state_dict().items()}
    session.close()
    return learned


@pytest.mark.parametrize("option", ["PS", "HYBRID", "MPI"])
def test_a_worker_whose_data_end_earlier_joins(option: str) -> None:
    first, second = run_ranks(2, ends_early, option)
    torch.testing.assert_close(first, second, rtol=0.0, atol=0.0)
