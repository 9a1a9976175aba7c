"""Static programs in Parallax's door: servers, allreduce or both end where one process ends."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import DEADLINE_S, run_ranks

import phalanx
from phalanx import graph, parallax
from phalanx.parallax import _search, partitions

WORDS, WIDTH, STEPS, SAMPLES, RATE = 20, 3, 20, 8, 0.05
Values = dict[str, np.ndarray[Any, Any]]


def build(
    rule: str, dtype: str = "float32", clip: Any = None, program_clip: Any = None
) -> tuple[graph.Program, graph.Program, Any]:
    """A table, and a layer behind it."""
    main, startup = graph.Program(), graph.Program()
    with graph.unique_name.guard(), graph.program_guard(main, startup):
        x = graph.data("x", [None, 2], dtype="int64")
        y = graph.data("y", [None, 1], dtype=dtype)
        attr = graph.ParamAttr(name="words", initializer=graph.initializer.Normal(0.0, 0.5, seed=3))
        rows = graph.layers.embedding(x, size=[WORDS, WIDTH], is_sparse=True, param_attr=attr, dtype=dtype)
        made = graph.layers.fc(
            graph.layers.reduce_sum(rows, dim=1), 1, param_attr=graph.ParamAttr(name="w"), bias_attr=False
        )
        loss = graph.layers.mean(graph.layers.square(made - y))
        optimizers = {
            "sgd": lambda: graph.optimizer.SGD(learning_rate=RATE, grad_clip=clip),
            "adagrad": lambda: graph.optimizer.Adagrad(learning_rate=RATE, epsilon=1e-6, grad_clip=clip),
            "adam": lambda: graph.optimizer.Adam(learning_rate=RATE, grad_clip=clip),
        }
        if program_clip is not None:
            graph.clip.set_gradient_clip(program_clip)
        optimizers[rule]().minimize(loss)
    return main, startup, loss


def batch(step: int) -> Values:
    dice = np.random.default_rng(step)
    return {"x": dice.integers(0, WORDS, (SAMPLES, 2)), "y": dice.normal(size=(SAMPLES, 1)).astype("float32")}


def share(step: int, worker: int, n: int) -> dict[str, list[Any]]:
    return {name: [value[worker::n]] for name, value in batch(step).items()}


def serial(first: Values, rule: str, n: int, average: bool, limit: float | None = None) -> Values:
    """What numpy computes of all samples; rows count as often as there are workers, unless they are averaged."""
    words, w = first["words"].astype("float64"), first["w"].astype("float64")
    squares = [np.zeros_like(words), np.zeros_like(w)]
    for step in range(STEPS):
        data = batch(step)
        sums = words[data["x"]].sum(1)
        slope = 2 * (sums @ w - data["y"]) / SAMPLES
        g_w, g_words = sums.T @ slope, np.zeros_like(words)
        np.add.at(g_words, data["x"], (slope @ w.T)[:, None, :] * (1 if average else n))
        if limit is not None:
            norm = np.sqrt((g_words**2).sum() + (g_w**2).sum())
            assert norm > limit, "the limit acts"
            g_words, g_w = g_words * (limit / norm), g_w * (limit / norm)
        for p, g, s in ((words, g_words, squares[0]), (w, g_w, squares[1])):
            if rule == "sgd":
                p -= RATE * g
            else:
                s += g * g
                p -= RATE * g / (np.sqrt(s) + 1e-6)
    return {"words": words, "w": w}


def first_values() -> Values:
    dice = np.random.default_rng(77)
    return {
        "words": dice.normal(0, 0.3, (WORDS, WIDTH)).astype("float32"),
        "w": dice.normal(0, 0.3, (WIDTH, 1)).astype("float32"),
    }


def begun(main: graph.Program, startup: graph.Program) -> graph.Scope:
    """Rank 0 alone has the values that count."""
    graph.Executor().run(startup)
    scope = graph.global_scope()
    if not phalanx.is_initialized() or phalanx.rank() == 0:
        for name, value in first_values().items():
            scope[name] = value
    return scope


def trained(rules: list[str]) -> list[tuple[str, str, bool, Values, str, dict[str, int]]]:
    found = []
    for rule in rules:
        for option in ("PS", "MPI", "HYBRID", None):
            for average in (True, False):
                main, startup, loss = build(rule)
                with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
                    scope = begun(main, startup)
                    config = parallax.Config(run_option=option, average_sparse=average)
                    session, n, worker, _ = parallax.parallel_run(main, parallax_config=config)
                    for step in range(STEPS):
                        session.run([loss.name, "train_op"], feed_dict=share(step, worker, n))
                    told, counted = session.explain(), session.counters()
                    session.close()
                    found.append(
                        (rule, str(option), average, {name: scope[name] for name in ("words", "w")}, told, counted)
                    )
    return found


@pytest.mark.parametrize(("n", "hosts"), [(1, None), (2, None), (4, None), (4, "a:3,b:1")])
def test_every_strategy_of_a_program_ends_where_one_process_ends(n: int, hosts: str | None) -> None:
    for results in run_ranks(n, trained, ["sgd", "adagrad"], hosts=hosts):
        for rule, option, average, values, told, counted in results:
            case = f"{rule} {option} average={average} on {n} ranks"
            wanted = serial(first_values(), rule, n, average)
            for name, value in wanted.items():
                assert np.abs(values[name] - value).max() < 1e-6, (case, name, np.abs(values[name] - value).max())
            chosen = told.split(":")[0]
            # What None chooses between hosts, the network decides: test_parallax_auto.py has both.
            known = ("MPI",) if hosts is None else ("MPI", "HYBRID")
            assert chosen in (known if option == "None" else (option,)), (case, told)
            on_servers = {"PS": ["words", "w"], "MPI": []}.get(chosen, ["words"])
            for name in ("words", "w"):
                assert (f"{name} -> servers" in told) == (name in on_servers), (case, told)
                assert (f"{name} -> allreduce" in told) == (name not in on_servers), (case, told)
            assert ("pushed_rows" in counted) == bool(on_servers), case


#: Less than the norm of any step here.
LIMIT = 0.05


def clipped(rules: list[str]) -> list[tuple[str, str, bool, Values, str]]:
    found = []
    for rule in rules:
        for option, of_program in (("PS", True), ("HYBRID", False), ("HYBRID", True), ("MPI", False)):
            for average in (True, False):
                clip = graph.clip.GradientClipByGlobalNorm(clip_norm=LIMIT)
                main, startup, loss = build(rule, program_clip=clip) if of_program else build(rule, clip=clip)
                with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
                    scope = begun(main, startup)
                    config = parallax.Config(run_option=option, average_sparse=average)
                    session, n, worker, _ = parallax.parallel_run(main, parallax_config=config)
                    for step in range(STEPS):
                        session.run([loss.name, "train_op"], feed_dict=share(step, worker, n))
                    told = session.explain()
                    session.close()
                    found.append((rule, option, average, {name: scope[name] for name in ("words", "w")}, told))
    return found


@pytest.mark.parametrize(("n", "hosts"), [(1, None), (2, None), (4, None), (4, "a:3,b:1")])
def test_the_norm_of_all_gradients_is_that_of_one_process(n: int, hosts: str | None) -> None:
    for results in run_ranks(n, clipped, ["sgd", "adagrad"], hosts=hosts):
        for rule, option, average, values, told in results:
            case = f"{rule} {option} average={average} on {n} ranks"
            wanted = serial(first_values(), rule, n, average, LIMIT)
            for name, value in wanted.items():
                assert np.abs(values[name] - value).max() < 1e-6, (case, name, np.abs(values[name] - value).max())
            assert ("words -> servers" in told) == (option != "MPI"), (case, told)
            assert ("w -> servers" in told) == (option == "PS"), (case, told)


def clipped_apart() -> list[str]:
    main, startup, _ = build("sgd", clip=graph.clip.GradientClipByGlobalNorm(clip_norm=LIMIT))
    free = parallax.CommunicationConfig(ps_config=parallax.PSConfig(replicate_variables=False))
    config = parallax.Config(run_option="PS", communication_config=free)
    with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
        begun(main, startup)
        return [says(lambda: parallax.parallel_run(main, sync=False, parallax_config=config))]


def test_workers_that_are_not_in_step_have_no_norm_of_all_gradients() -> None:
    for (said,) in run_ranks(2, clipped_apart):
        assert said.startswith("ValueError: without sync every push is applied by itself"), said
        assert "`words`" in said and "leave clipping out, or use sync" in said, said


CANDIDATES = 5


def shared(option: str) -> tuple[Values, str]:
    """One table for the words of the samples and for candidates that all samples share."""
    main, startup = graph.Program(), graph.Program()
    with graph.unique_name.guard(), graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
        x = graph.data("x", [None, 2], dtype="int64")
        label = graph.data("label", [None, 1], dtype="int64")
        candidates = graph.data("candidates", [CANDIDATES], dtype="int64")
        attr = graph.ParamAttr(name="words")
        seen = graph.layers.embedding(x, size=[WORDS, WIDTH], is_sparse=True, param_attr=attr)
        other = graph.layers.embedding(candidates, size=[WORDS, WIDTH], is_sparse=True, param_attr=attr)
        scores = graph.layers.matmul(graph.layers.reduce_sum(seen, dim=1), other, transpose_y=True)
        loss = graph.layers.mean(graph.layers.softmax_with_cross_entropy(scores, label))
        graph.optimizer.Adagrad(learning_rate=RATE, epsilon=1e-10).minimize(loss)
        graph.Executor().run(startup)
        scope = graph.global_scope()
        scope["words"] = first_values()["words"]
        config = parallax.Config(run_option=option, average_sparse=True)
        session, n, worker, _ = parallax.parallel_run(main, parallax_config=config)
        for step in range(STEPS):
            words, labels, others = sampled(step)
            feed = {"x": [words[worker::n]], "label": [labels[worker::n, None]], "candidates": [others]}
            session.run("train_op", feed_dict=feed)
        told = session.explain()
        session.close()
        return {"words": scope["words"]}, told


def sampled(step: int) -> tuple[Any, Any, Any]:
    dice = np.random.default_rng(step)
    rows = dice.integers(0, WORDS, (SAMPLES, 2)), dice.integers(0, CANDIDATES, SAMPLES)
    return *rows, dice.integers(0, WORDS, CANDIDATES)


def test_a_table_of_words_and_candidates_learns_what_torch_learns() -> None:
    torch = pytest.importorskip("torch")
    words = torch.nn.Parameter(torch.from_numpy(first_values()["words"].astype("float64")))
    optimizer = torch.optim.Adagrad([words], lr=RATE)
    for step in range(STEPS):
        seen, label, others = map(torch.from_numpy, sampled(step))
        optimizer.zero_grad()
        scores = words[seen].sum(1) @ words[others].T
        torch.nn.functional.cross_entropy(scores, label).backward()
        optimizer.step()
    for n, option in ((1, "MPI"), (1, "HYBRID"), (2, "HYBRID"), (2, "PS")):
        for values, told in run_ranks(n, shared, option):
            assert np.abs(values["words"] - words.detach().numpy()).max() < 1e-6, (n, option)
            assert ("words -> servers" in told) == (option != "MPI"), told


def scopes() -> list[str]:
    """What the scope says while servers have a table."""
    main, startup, loss = build("adagrad")
    with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
        scope = begun(main, startup)
        test = main.clone(for_test=True)
        session, n, worker, _ = parallax.parallel_run(main, parallax_config=parallax.Config(run_option="PS"))
        ((now,), _) = session.run(["words", "train_op"], feed_dict=share(0, worker, n))
        assert scope._store.bytes_of("words") == 0, "the rank has given the memory back"
        said = []
        feed = {name: values[0] for name, values in share(0, worker, n).items()}
        for call in (
            lambda: scope["words"],
            lambda: scope.__setitem__("words", first_values()["words"]),
            lambda: scope.__setitem__("w", first_values()["w"]),
            lambda: graph.Executor().run(test, feed=feed, fetch_list=[loss.name]),
        ):
            try:
                call()
                said.append("accepted")
            except graph.errors.StateError as why:
                said.append(str(why))
        session.close()
        assert np.array_equal(scope["words"], now), "what was fetched is what servers had after the step"
        scope["w"] = first_values()["w"]
        graph.Executor().run(test, feed=feed, fetch_list=[loss.name])
        return said


def test_a_scope_says_that_servers_have_a_table_until_the_session_is_closed() -> None:
    for said in run_ranks(2, scopes):
        assert ["`words` is on servers" in said[i] for i in (0, 1, 3)] == [True] * 3, said
        assert "`w` is on servers while it is trained: set it before" in said[2], said


def resumed(folder: str, rule: str, option: str, n_steps: int, n_partitions: int) -> tuple[int, Values]:
    main, startup, _ = build(rule)
    parallax.get_partitioner(n_partitions)
    with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
        scope = begun(main, startup)
        config = parallax.Config(run_option=option, average_sparse=True)
        config.ckpt_config = parallax.CheckPointConfig(ckpt_dir=folder, save_ckpt_steps=2)
        session, n, worker, _ = parallax.parallel_run(main, parallax_config=config)
        begin = session.global_step
        for step in range(begin, begin + n_steps):
            session.run("train_op", feed_dict=share(step, worker, n))
        assert f"{n_partitions} partitions" in session.explain(), session.explain()
        session.close()
        partitions._asked.clear()
        return begin, {name: scope[name] for name in scope.names()}


@pytest.mark.parametrize("option", ["PS", "HYBRID"])
def test_a_program_goes_on_from_a_checkpoint_with_other_partitions_and_the_same_bits(
    tmp_path: Path, option: str
) -> None:
    whole = run_ranks(2, resumed, str(tmp_path / "whole"), "adam", option, 7, 4)
    run_ranks(2, resumed, str(tmp_path / "cut"), "adam", option, 3, 4)
    again = run_ranks(2, resumed, str(tmp_path / "cut"), "adam", option, 4, 7)
    for (_, wanted), (begin, values) in zip(whole, again, strict=True):
        assert begin == 3 and wanted.keys() == values.keys() and "words.moment1" in " ".join(values), values.keys()
        for name, value in wanted.items():
            assert np.array_equal(value, values[name]), name


def apart() -> tuple[list[float], int]:
    main, startup, loss = build("sgd")
    config = parallax.Config(run_option="PS")
    config.communication_config.ps_config.replicate_variables = False
    with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
        begun(main, startup)
        session, n, worker, _ = parallax.parallel_run(main, sync=False, parallax_config=config)
        losses = [session.run(loss, feed_dict=share(0, worker, n))[0].item() for _ in range(30 + 10 * worker)]
        session.close()
        return losses, session.global_step


def test_workers_of_a_program_need_not_be_in_step() -> None:
    for worker, (losses, steps) in enumerate(run_ranks(2, apart)):
        assert steps == 30 + 10 * worker and losses[-1] < losses[0] / 2, (steps, losses[0], losses[-1])


def searched(short: tuple[int, int]) -> tuple[Values, list[str], str]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    parallax.log.addHandler(handler)
    was, _search.TRIAL = _search.TRIAL, short
    try:
        main, startup, _ = build("sgd")
        with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
            scope = begun(main, startup)
            config = parallax.Config(run_option="HYBRID", average_sparse=True, search_partitions=bool(short[1]))
            session, n, worker, _ = parallax.parallel_run(main, parallax_config=config)
            for step in range(40):
                session.run("train_op", feed_dict=share(step, worker, n))
            told = session.explain()
            session.close()
            return {name: scope[name] for name in ("words", "w")}, said, told
    finally:
        _search.TRIAL = was
        parallax.log.removeHandler(handler)


def test_a_search_for_partitions_of_a_program_changes_no_bit() -> None:
    plain = run_ranks(2, searched, (0, 0))
    found = run_ranks(2, searched, (1, 2))
    for (wanted, _, _), (values, said, _) in zip(plain, found, strict=True):
        assert all(np.array_equal(wanted[name], values[name]) for name in wanted)
        assert all(text.startswith("search_partitions: ") for text in said)
    assert any("found" in text for text in found[0][1]), found[0][1]


def stumbled() -> tuple[Values, str]:
    """A step of the first trial fails on both ranks; the search and the training go on."""
    was, _search.TRIAL = _search.TRIAL, (1, 2)
    try:
        main, startup, _ = build("sgd")
        with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
            scope = begun(main, startup)
            config = parallax.Config(run_option="HYBRID", average_sparse=True, search_partitions=True)
            session, n, worker, _ = parallax.parallel_run(main, parallax_config=config)
            for step in range(40):
                if step == 1:
                    wrong = share(step, worker, n)
                    wrong["x"] = [np.full_like(wrong["x"][0], WORDS if worker == 1 else 0)]
                    assert str(WORDS) in says(lambda feed=wrong: session.run("train_op", feed_dict=feed))
                session.run("train_op", feed_dict=share(step, worker, n))
            assert session._trained._tables.found is not None
            told = session.explain()
            session.close()
            return {name: scope[name] for name in ("words", "w")}, told
    finally:
        _search.TRIAL = was


def test_a_step_that_fails_in_a_trial_ends_neither_the_search_nor_the_training() -> None:
    plain = run_ranks(2, searched, (0, 0))
    for (wanted, _, _), (values, told) in zip(plain, run_ranks(2, stumbled), strict=True):
        assert all(np.array_equal(wanted[name], values[name]) for name in wanted)
        # The first trial was of one partition.
        assert "f32, 1 partitions" not in told, told


def says(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as why:
        return f"{type(why).__name__}: {why}"
    return "nothing was raised"


def refused() -> list[str]:
    main, startup, loss = build("sgd")
    ps = parallax.PSConfig(staleness=1)
    apart = parallax.CommunicationConfig(ps_config=ps)
    free = parallax.CommunicationConfig(ps_config=parallax.PSConfig(replicate_variables=False))
    folder = parallax.CheckPointConfig(ckpt_dir="/nonexistent/phalanx")
    made = []
    with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):

        def run(program: Any = main, sync: bool = True, **settings: Any) -> str:
            return says(lambda: parallax.parallel_run(program, sync=sync, parallax_config=parallax.Config(**settings)))

        made += [run(run_option="HYBRID", communication_config=apart)]
        made += [run(run_option="PS", sync=False, communication_config=free, ckpt_config=folder)]
        made += [run(run_option="PS", sess_config=3)]
    clipped, startup, _ = graph.Program(), graph.Program(), None
    with graph.program_guard(clipped, startup), graph.scope_guard(graph.Scope()):
        x = graph.data("x", [None, 2], dtype="int64")
        rows = graph.layers.embedding(x, size=[9, 3], is_sparse=True, param_attr=graph.ParamAttr(name="words"))
        loss = graph.layers.mean(graph.layers.fc(rows, 1, param_attr=graph.ParamAttr(name="w")))
        graph.optimizer.Adamax(learning_rate=0.1).minimize(loss)
        made += [run(clipped, run_option=option) for option in ("PS", "HYBRID")]
        config = parallax.Config(average_sparse=True)
        session, *_ = parallax.parallel_run(clipped, parallax_config=config)
        session.run(loss, feed_dict={"x": [np.array([[1, 2]])]})
        made.append(session.explain().splitlines()[0])
        session.close()
    return made


def test_what_servers_cannot_do_with_a_program_is_refused_in_a_sentence() -> None:
    for said in run_ranks(2, refused):
        wanted = [
            "workers that are not in step reduce nothing between them, but w would be reduced",
            "CheckPointConfig.ckpt_dir needs workers in step",
            "sess_config of a program is an ExecutionStrategy, not a int",
            "updates it, and servers know sgd, momentum, adam, adagrad and rmsprop",
            "'words': it cannot be on servers",
            "MPI: servers cannot train a table: words",
        ]
        for text, part in zip(said, wanted, strict=True):
            assert part in text, (part, text)


SCRIPT = """
import numpy as np
from phalanx import graph, parallax

main, startup = graph.Program(), graph.Program()
with graph.program_guard(main, startup):
    x = graph.data("x", [None, 2], dtype="int64")
    loss = graph.layers.mean(graph.layers.square(graph.layers.embedding(x, size=[8, 3], is_sparse=True)))
    graph.optimizer.RMSProp(learning_rate=0.1, regularization=graph.regularizer.L2Decay(0.01)).minimize(loss)
    session, n, worker, _ = parallax.parallel_run(main, parallax_config=parallax.Config(run_option="HYBRID"))
    for _ in range(3):
        (now,) = session.run(loss, feed_dict={"x": [np.array([[1, 2]])]})
    print("trained", worker, "of", n, session.explain().count("server"), flush=True)
    session.close()
"""


def test_processes_that_only_serve_have_the_tables_of_a_program() -> None:
    command = [sys.executable, "-m", "phalanx", "run", "-np", "2", "--servers", "2", "--", sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == 2 and "trained 1 of 2" in done.stdout, done.stdout
