"""``run_option=None``: what it measures and chooses, and that the values are those of the other options."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import test_parallax_programs as programs
import torch
from parallax_models import STEPS, Net, alone, batch
from ranks import run_ranks

from phalanx import _phalanx, graph, parallax
from phalanx.parallax import _auto

HOSTS = ((2, "a:1,b:1"), (4, "a:3,b:1"))


def optimizer_of(net: torch.nn.Module, kind: str) -> torch.optim.Optimizer:
    if kind == "adagrad":
        return torch.optim.Adagrad(net.parameters(), lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2)
    if kind == "sparse_adam":
        return torch.optim.SparseAdam(list(net.parameters()), lr=0.1)
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9 if kind == "momentum" else 0.0)


def torch_runs(
    cases: list[tuple[str, str | None, bool | None, bool]],
) -> list[tuple[dict[str, torch.Tensor], str, str, int]]:
    """For each rule, option, whether servers are said to be faster (or measured), and average: values, what is said first and last."""
    found = []
    honest = _auto.predicted
    for kind, option, faster, average in cases:
        seen: list[int] = []

        def told(tables: Any, faster: bool | None = faster, seen: list[int] = seen) -> tuple[float, float]:
            gathered, served = honest(tables)
            assert gathered > 0 and served > 0, "measured"
            seen.extend(lent[2][0] for _, _, lent in tables)
            return (gathered, served) if faster is None else ((2.0, 1.0) if faster else (1.0, 2.0))

        _auto.predicted = told
        net = Net(rest=kind != "sparse_adam")
        config = parallax.Config(run_option=option, average_sparse=average)
        session, n, worker, _ = parallax.parallel_run((net, optimizer_of(net, kind)), parallax_config=config)
        begun = session.explain()
        for step in range(STEPS):
            session.run("loss", feed_dict={"ids": [batch(step)]})  # Looks and learns nothing.
            session.run("train_op", feed_dict={"ids": [batch(step)[worker::n]]})
        state = {name: value.clone() for name, value in net.state_dict().items()}
        found.append((state, begun, session.explain(), sum(seen)))
        session.close()
    _auto.predicted = honest
    return found


@pytest.mark.parametrize(("n", "hosts"), HOSTS)
def test_a_model_ends_with_the_values_of_the_option_that_is_chosen(n: int, hosts: str) -> None:
    kinds = ["sgd", "momentum", "adagrad", "sparse_adam"]
    cases = [
        (kind, option, faster, average)
        for kind in kinds
        for average in (True, False)
        for option, faster in ((None, True), ("HYBRID", None), (None, False), ("MPI", None))
    ]
    for results in run_ranks(n, torch_runs, cases, hosts=hosts):
        for at in range(0, len(cases), 4):
            (served, begun, told, rows), (hybrid, *_), (gathered, _, kept, _), (mpi, *_) = results[at : at + 4]
            case = cases[at]
            assert begun.startswith("AUTO: the first step is measured"), begun
            assert told.startswith("HYBRID: the first step was measured: predicted 1000.000 ms on servers"), told
            assert "servers" in told.splitlines()[1] and kept.startswith("MPI: the first step was measured"), (
                told,
                kept,
            )
            # Rows of the one step, and not of the passes that only look.
            assert rows == batch(0)[0::n].numel(), rows
            for name, value in gathered.items():
                assert torch.equal(value, mpi[name]), (case, name)
            for name, value in served.items():
                torch.testing.assert_close(value, hybrid[name], rtol=1e-12, atol=1e-14, msg=f"{case} {name}")


def test_a_model_whose_first_step_is_measured_ends_where_one_process_ends() -> None:
    for results in run_ranks(2, torch_runs, [("sgd", None, None, True), ("sgd", None, None, False)], hosts="a:1,b:1"):
        for (state, _, told, _), average in zip(results, (True, False), strict=True):
            assert told.startswith(("HYBRID: the first step was measured", "MPI: the first step was measured")), told
            for name, value in alone("sgd", 2, average).items():
                torch.testing.assert_close(state[name], value, rtol=1e-6, atol=1e-9)


def own_steps() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], int, int]:
    """Steps of the user's own, whose rate a scheduler sets; tables leave after the first one, and with them all that is reduced."""
    values = []
    counts = []
    for option in (None, "HYBRID"):
        net = Net(rest=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        _auto.predicted = lambda tables: (2.0, 1.0)
        config = parallax.Config(run_option=option, average_sparse=True)
        session, n, worker, _ = parallax.parallel_run((net, optimizer), parallax_config=config)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)

        def step(ids: torch.Tensor, net: Net = net, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            net(ids)["loss"].backward()
            optimizer.step()

        for at in range(STEPS):
            if at == 2:
                before = session.counters()["allreduce_operations"]
            session.run(step, feed_dict={"ids": [batch(at)[worker::n]]})
            scheduler.step()
        counts.append(session.counters()["allreduce_operations"] - before)
        values.append({name: value.clone() for name, value in net.state_dict().items()})
        session.close()
    return values[0], values[1], counts[0], counts[1]


def test_steps_of_the_users_own_go_on_with_tables_on_servers() -> None:
    for chosen, hybrid, n_chosen, n_hybrid in run_ranks(2, own_steps, hosts="a:1,b:1"):
        assert n_chosen == n_hybrid == 0, "with tables alone nothing is reduced"
        for name, value in chosen.items():
            torch.testing.assert_close(value, hybrid[name], rtol=1e-12, atol=1e-14)


def program_runs(cases: list[tuple[str, str | None, bool | None]]) -> list[tuple[programs.Values, str, str]]:
    found = []
    honest = _auto.measured
    for rule, option, faster in cases:

        def told(program: Any, fed: Any, faster: bool | None = faster) -> _phalanx.Rates:
            wire, memory, rows = honest(program, fed)
            assert wire > 0 and memory > 0 and [name for name, *_ in rows] == ["words"], "measured"
            if faster is None:
                return wire, memory, rows
            # Rows of few different numbers over a slow link, or a link that takes no time and workers that touch other rows each.
            return (1.0, 1e12, [("words", 100.0, 1.0)]) if faster else (1e15, 1e3, [("words", 1.0, 100.0)])

        _auto.measured = told
        main, startup, loss = programs.build(rule)
        with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
            scope = programs.begun(main, startup)
            config = parallax.Config(run_option=option, average_sparse=True)
            session, n, worker, _ = parallax.parallel_run(main, parallax_config=config)
            begun = session.explain()
            for step in range(programs.STEPS):
                session.run([loss.name, "train_op"], feed_dict=programs.share(step, worker, n))
            told_last = session.explain()
            session.close()
            found.append(({name: scope[name] for name in ("words", "w")}, begun, told_last))
    _auto.measured = honest
    return found


@pytest.mark.parametrize(("n", "hosts"), HOSTS)
def test_a_program_has_every_bit_of_the_option_that_is_chosen(n: int, hosts: str) -> None:
    cases = [
        (rule, option, faster)
        for rule in ("sgd", "adagrad", "adam")
        for option, faster in ((None, True), ("HYBRID", None), (None, False), ("MPI", None))
    ]
    for results in run_ranks(n, program_runs, cases, hosts=hosts):
        for at in range(0, len(cases), 4):
            (served, begun, told), (hybrid, *_), (gathered, _, kept), (mpi, *_) = results[at : at + 4]
            assert begun.startswith("AUTO: the first step is measured"), begun
            assert told.startswith("HYBRID: the first step was measured"), told
            assert "words -> servers: predicted" in told and "w -> allreduce" in told, told
            assert kept.startswith("MPI: the first step was measured"), kept
            assert "words -> allreduce: predicted" in kept, kept
            for name in ("words", "w"):
                assert np.array_equal(served[name], hybrid[name]), (cases[at], name)
                assert np.array_equal(gathered[name], mpi[name]), (cases[at], name)


def test_a_program_whose_first_step_is_measured_ends_where_one_process_ends() -> None:
    every = run_ranks(2, program_runs, [("sgd", None, None)], hosts="a:1,b:1")
    wanted = programs.serial(programs.first_values(), "sgd", 2, True)
    for ((values, _, told),) in every:
        assert told.split(":")[0] == every[0][0][2].split(":")[0], "all workers choose alike"
        for name, value in wanted.items():
            assert np.abs(values[name] - value).max() < 1e-6, (name, told)


def stumbled() -> tuple[str, programs.Values, str]:
    main, startup, _ = programs.build("sgd")
    _auto.measured = lambda program, fed: (1.0, 1e12, [("words", 100.0, 1.0)])
    with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
        scope = programs.begun(main, startup)
        config = parallax.Config(average_sparse=True)
        session, n, worker, _ = parallax.parallel_run(main, parallax_config=config)
        feed = programs.share(0, worker, n)
        wrong = {**feed, "x": ["no numbers"]} if worker == 1 else feed
        said = programs.says(lambda: session.run("train_op", feed_dict=wrong))
        for step in range(programs.STEPS):
            session.run("train_op", feed_dict=programs.share(step, worker, n))
        told = session.explain()
        session.close()
        return said, {name: scope[name] for name in ("words", "w")}, told


def test_a_first_feed_that_is_wrong_is_told_on_all_workers_and_measured_again() -> None:
    wanted = programs.serial(programs.first_values(), "sgd", 2, True)
    for worker, (said, values, told) in enumerate(run_ranks(2, stumbled, hosts="a:1,b:1")):
        assert "`x` wants an array" in said, said
        assert said.startswith(
            "FeedTypeError" if worker == 1 else "SessionError: the feed of the first step failed on rank 1"
        ), said
        assert told.startswith("HYBRID: the first step was measured"), told
        for name, value in wanted.items():
            assert np.abs(values[name] - value).max() < 1e-6, name


def on_one_host(free: int | None) -> tuple[list[str], list[str]]:
    """What a model and a program are told of their choice on one host with so much free memory."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    parallax.log.addHandler(handler)
    level, _ = parallax.log.level, parallax.log.setLevel(logging.INFO)
    own = _auto._phalanx
    names = ("hosts", "GraphTables", "predicted")
    _auto._phalanx = SimpleNamespace(free_memory=lambda: free, **{name: getattr(own, name) for name in names})  # type: ignore[assignment]
    told = []
    try:
        net = Net()
        session, n, worker, _ = parallax.parallel_run((net, optimizer_of(net, "adagrad")))
        session.run("train_op", feed_dict={"ids": [batch(0)[worker::n]]})
        told.append(session.explain())
        session.close()
        main, startup, _ = programs.build("adagrad")
        with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
            programs.begun(main, startup)
            session, n, worker, _ = parallax.parallel_run(main)
            session.run("train_op", feed_dict=programs.share(0, worker, n))
            told.append(session.explain())
            session.close()
    finally:
        _auto._phalanx = own
        parallax.log.removeHandler(handler)
        parallax.log.setLevel(level)
    return told, said


@pytest.mark.parametrize(
    ("n", "free", "option"), [(1, 1, "MPI"), (2, 1 << 40, "MPI"), (2, None, "MPI"), (2, 1, "HYBRID")]
)
def test_one_host_measures_nothing_and_serves_only_where_memory_is_short(n: int, free: int | None, option: str) -> None:
    for worker, (told, said) in enumerate(run_ranks(n, on_one_host, free)):
        assert all(
            text.startswith(f"{option}: one host sends nothing between hosts, so nothing is measured") for text in told
        ), told
        assert all(("a server has them once" in text) == (option == "HYBRID") for text in told), told
        chosen = [text for text in said if text.startswith(f"run_option=None chooses {option}: one host")]
        assert len(chosen) == (2 if worker == 0 else 0), said
