"""Programs that several ranks train together, through the engine of ``phalanx.init()``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import batch, classifier
from ranks import launch, run_ranks

import phalanx
import phalanx.graph as fluid

STEPS, SAMPLES = 4, 12


def train(devices: int, reduce: str, sparse: bool) -> dict[str, Any]:
    """Trains on this rank's share of each batch; parameters, losses and what holds."""
    rank, size = (phalanx.rank(), phalanx.size()) if phalanx.is_initialized() else (0, 1)
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=3)
    # Ranks begin apart; the first run gives all of them what the first one has.
    startup.random_seed = rank
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        if sparse:
            words = fluid.data("words", [None, 3], "int64")
            rows = fluid.layers.embedding(words, [40, 4], is_sparse=True)
            hidden = fluid.layers.dropout(fluid.layers.fc(rows, 8, act="tanh"), 0.25)
            loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(hidden, 1) - 1.0))
        else:
            _, loss = classifier()
        fluid.optimizer.Momentum(0.2, 0.9).minimize(loss)
        fluid.Executor().run(startup)
        build = fluid.BuildStrategy()
        build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy[reduce]
        build.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.BySamples
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, build_strategy=build, devices=devices)
        losses = []
        for step in range(STEPS):
            whole = batch(SAMPLES, seed=step)
            if sparse:
                whole = {"words": np.random.default_rng(step).integers(40, size=[SAMPLES, 3])}
            share = {name: np.array_split(value, size)[rank] for name, value in whole.items()}
            losses.append(exe.run([loss], feed=share)[0])
        held = exe.effective
    bits = {p.name: scope[p.name].tobytes() for p in main.all_parameters()}
    return {"bits": bits, "losses": losses, "trainers": (held["num_trainers"], held["trainer_id"])}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("devices", "reduce"), [(1, "AllReduce"), (2, "Reduce")])
def test_two_ranks_learn_the_bits_of_one(devices: int, reduce: str, sparse: bool) -> None:
    # ACCORD-1, RANKS-1
    alone = train(2 * devices, "AllReduce", sparse)
    together = run_ranks(2, train, devices, reduce, sparse)
    assert [each["trainers"] for each in together] == [(2, 0), (2, 1)]
    for each in together:
        assert each["bits"] == alone["bits"]
    for step, losses in enumerate(alone["losses"]):
        shares = [each["losses"][step] for each in together]
        assert np.concatenate(shares).tobytes() == losses.tobytes()


def compiled() -> tuple[bytes, float]:
    """A compiled program, for which nobody has named a loss or places, on this rank's share."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=3)
    rank, size = (phalanx.rank(), phalanx.size()) if phalanx.is_initialized() else (0, 1)
    startup.random_seed = rank
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        _, loss = classifier()
        fluid.optimizer.SGD(0.2).minimize(loss)
        exe = fluid.Executor()
        exe.run(startup)
        program = fluid.CompiledProgram(main)
        for step in range(STEPS):
            whole = batch(SAMPLES, seed=step)
            share = {name: np.array_split(value, size)[rank] for name, value in whole.items()}
            exe.run(program, feed=share)
        return b"".join(scope[p.name].tobytes() for p in main.all_parameters()), float(scope["fc_0.w_0"].sum())


def test_a_compiled_program_alone_trains_with_the_other_ranks() -> None:
    """It has one device, but ranks are trained together as by a ParallelExecutor."""
    (_, alone), together = compiled(), run_ranks(2, compiled)
    assert together[0][0] == together[1][0]
    assert together[0][1] == pytest.approx(alone, rel=1e-5)


def trouble(kind: str) -> list[str]:
    """One rank does something wrong; what every rank is told, and whether all can go on."""
    rank = phalanx.rank()
    said: list[str] = []
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        words = fluid.data("words", [None, 2], "int64")
        rows = fluid.layers.embedding(words, [10, 4])
        loss = fluid.layers.mean(fluid.layers.fc(rows, 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        fluid.Executor().run(startup)
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, devices=2)
        good = np.arange(8).reshape(4, 2)
        wrong = {"feed": np.arange(12).reshape(4, 3), "operation": good + 9}[kind]
        for value in (good, wrong if rank == 1 else good, good, wrong if rank == 0 else good, good):
            try:
                exe.run([loss], feed={"words": value})
                said.append("ok")
            except fluid.GraphError as why:
                said.append(type(why).__name__)
        said.append(scope["embedding_0.w_0"].tobytes().hex())
    return said


@pytest.mark.parametrize(("kind", "culprit"), [("feed", "FeedError"), ("operation", "OpError")])
def test_a_rank_that_fails_is_no_trap_for_the_others(kind: str, culprit: str) -> None:
    # ACCORD-2, RANKS-3
    first, second = run_ranks(2, trouble, kind)
    assert first[:5] == ["ok", "ProcessError", "ok", culprit, "ok"]
    assert second[:5] == ["ok", culprit, "ok", "ProcessError", "ok"]
    assert first[5] == second[5]


def late() -> list[str]:
    """Rank 1 fails behind the last gradient of a step, where the others had all they need for their update."""
    said: list[str] = []
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        x = fluid.data("x", [None, 2])
        index = fluid.data("index", [None], "int64")
        loss = fluid.layers.mean(fluid.layers.fc(x, 1, param_attr="w"))
        fluid.optimizer.SGD(0.1).minimize(loss)
        picked = fluid.layers.gather(fluid.layers.fill_constant([3, 1], "float32", 1.0), index)
        fluid.Executor().run(startup)
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, devices=1)
        for step in range(4):
            wrong = phalanx.rank() == 1 and step == 1
            feed = {"x": np.ones([2, 2], "float32"), "index": np.array([0, 9 if wrong else 1])}
            try:
                exe.run([picked], feed=feed)
                said.append("ok")
            except fluid.GraphError as why:
                said.append(type(why).__name__)
            said.append(scope["w"].tobytes().hex())
    return said


def test_a_rank_that_fails_behind_the_last_gradient_fails_the_same_run_of_all() -> None:
    # PARA-2: nobody has updated in that run, and nobody's next one fails for it.
    first, second = run_ranks(2, late)
    assert first[::2] == ["ok", "ProcessError", "ok", "ok"]
    assert second[::2] == ["ok", "OpError", "ok", "ok"]
    assert first[1::2] == second[1::2]
    assert first[1] == first[3] != first[5]


def told(kind: str, at: int) -> list[str]:
    """Rank 1 fails in one of three runs; what each run says."""
    said: list[str] = []
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        words = fluid.data("words", [None, 1], "int64")
        loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.embedding(words, [10, 4]), 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        fluid.Executor().run(startup)
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, devices=1)
        good = np.arange(4).reshape(4, 1)
        wrong = {"feed": good.astype("float32"), "operation": good + 9, "type": [1, 2], "end": None}[kind]
        loader = fluid.io.DataLoader.from_generator([words], capacity=2, iterable=False)
        loader.set_batch_generator(lambda: iter([]))
        loader.start()
        for run in range(3):
            value = wrong if run == at and phalanx.rank() == 1 else good
            try:
                exe.run([loss], feed=None if value is None else {"words": value})
                said.append("ok")
            except fluid.GraphError as why:
                said.append(f"{type(why).__name__}: {why}")
    return said


@pytest.mark.parametrize(
    ("kind", "own", "reason"),
    [
        ("feed", "FeedError: ", r"could not run: `words` wants i64\[batch, 1\] .*got f32\[4, 1\]; nothing.*"),
        ("operation", "OpError: ", r"failed in this run: .*`embedding` at .*test_graph_ranks\.py:\d+ failed: .*"),
        ("type", "FeedTypeError: ", "failed in this run: FeedTypeError: `words` wants an array.*"),
        ("end", "EOFException: ", "has no more batches, so the epoch ends on all ranks.*"),
    ],
)
@pytest.mark.parametrize(("n", "at"), [(2, 0), (2, 1), (3, 1)])
def test_others_are_told_who_failed_and_why(n: int, at: int, kind: str, own: str, reason: str) -> None:
    # ACCORD-3
    for rank, said in enumerate(run_ranks(n, told, kind, at)):
        failed = said.pop(at)
        assert said == ["ok", "ok"]
        if rank == 1:
            assert failed.startswith(own)
        else:
            kind_of = "EOFException" if kind == "end" else "ProcessError"
            assert re.fullmatch(f"{kind_of}: rank 1 {reason}", failed), failed


def epochs() -> tuple[list[int], bytes]:
    """Three epochs from a loader that ends on all ranks at the same time; batches of each, and what was learned."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    counts = []
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        _, loss = classifier()
        fluid.optimizer.SGD(0.1).minimize(loss)
        fluid.Executor().run(startup)
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, devices=2)
        loader = fluid.io.DataLoader.from_generator([main.var("x"), main.var("label")], capacity=2, iterable=False)
        loader.set_batch_generator(lambda: (batch(4, seed=phalanx.rank() + i) for i in range(6)))
        for _ in range(3):
            loader.start()
            counts.append(0)
            try:
                while True:
                    exe.run([])
                    counts[-1] += 1
            except fluid.EOFException:
                loader.reset()
        return counts, scope["fc_0.w_0"].tobytes()


def test_loaders_that_end_together_are_no_failure() -> None:
    (first, one), (second, other) = run_ranks(2, epochs)
    assert first == second == [3, 3, 3]
    assert one == other


def learner() -> tuple[fluid.ParallelExecutor, fluid.Variable, fluid.Program]:
    x = fluid.data("x", [None, 2])
    loss = fluid.layers.mean(fluid.layers.fc(x, 1))
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(0.1).minimize(loss)
    fluid.Executor().run(fluid.default_startup_program())
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=fluid.default_main_program(), devices=2)
    exe.run([loss], feed={"x": np.ones([2, 2], "float32")})
    return exe, loss, test


def predict_alone() -> tuple[int, bytes]:
    """Rank 0 tests while it trains; the others do not."""
    size = phalanx.size()
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        exe, loss, program = learner()
        feed = {"x": np.ones([2, 2], "float32")}
        trainers = 0
        for _ in range(3):
            if phalanx.rank() == 0:
                test = fluid.ParallelExecutor(False, None, program, exe, num_trainers=size, trainer_id=0, devices=2)
                assert test.run([loss], feed=feed)[0].shape == (2,)
                trainers = test.effective["num_trainers"]
            exe.run([loss], feed=feed)
        return trainers, fluid.global_scope()["fc_0.w_0"].tobytes()


def test_prediction_is_every_ranks_own() -> None:
    (trainers, first), (_, second) = run_ranks(2, predict_alone)
    assert trainers == 1
    assert first == second


def test_lenet_learns_the_same_on_two_ranks(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "graph_lenet.py"
    words = [sys.executable, str(example), "--epochs", "1", "--plot", str(tmp_path / "lenet.svg")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    said = []
    for n, devices in ((1, "2"), (2, "1")):
        run = launch(n, [*words, "--devices", devices], **pipes)
        output, _ = run.communicate(timeout=200)
        assert run.returncode == 0, output
        found = re.search(r"all parameters together: (\w{8})", output)
        assert found, output
        said.append(found[1])
    assert said[0] == said[1]


def after_shutdown() -> str:
    exe, loss, _ = learner()
    feed = {"x": np.ones([2, 2], "float32")}
    exe.run([loss], feed=feed)
    phalanx.shutdown()
    try:
        exe.run([loss], feed=feed)
    except fluid.ProcessError as why:
        return str(why)
    return "nothing"


def test_executors_outlive_the_engine_but_not_silently() -> None:
    assert all("shutdown" in said for said in run_ranks(2, after_shutdown, fresh=True))


def test_wrong_numbers_of_trainers_are_conflicts() -> None:
    assert run_ranks(2, conflicting) == ["num_trainers is 3", "num_trainers is 3"]


def conflicting() -> str:
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main):
        fluid.layers.relu(fluid.data("x", [None, 2]))
        # Those of the world are no conflict.
        fluid.ParallelExecutor(main_program=main, num_trainers=2, trainer_id=phalanx.rank(), devices=1)
        try:
            fluid.ParallelExecutor(main_program=main, num_trainers=3, trainer_id=phalanx.rank(), devices=1)
        except fluid.StrategyError as why:
            return str(why).split("; ")[0].split(": ")[-1].split(",")[0]
    return "nothing"


def different() -> str:
    """Trains with another optimizer on every rank; says what came of it, and whether the engine still works."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope(seed=3)):
        _, loss = classifier()
        fluid.optimizer.Momentum(0.2, 0.1 + 0.1 * phalanx.rank()).minimize(loss)
        fluid.Executor().run(startup)
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, devices=1)
        try:
            exe.run([loss], feed=batch(4))
        except phalanx.MismatchError as why:
            assert phalanx.allgather_object(phalanx.rank()) == list(range(phalanx.size()))
            return str(why)
    return "nothing"


@pytest.mark.parametrize("n", [2, 4])
def test_ranks_with_different_programs_are_told_at_once(n: int) -> None:
    for said in run_ranks(n, different):
        assert re.search(r"ranks differ: rank 0 has line \d+: .*0\.1.*which rank 1 does not have", said), said


def test_a_rank_that_was_started_with_others_does_not_train_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    phalanx.shutdown()
    monkeypatch.setenv("PHALANX_SIZE", "2")
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        _, loss = classifier()
        fluid.optimizer.SGD(0.1).minimize(loss)
        with pytest.raises(fluid.StrategyError, match=r"call phalanx.init\(\)"):
            fluid.ParallelExecutor(loss_name=loss.name, main_program=main, devices=1)


LEARNS_UNTIL_RANK_1_FEEDS_NONSENSE = """\
import numpy as np, phalanx, phalanx.graph as fluid
phalanx.init()
x = fluid.data("x", [None, 2])
loss = fluid.layers.mean(fluid.layers.fc(x, 1))
fluid.optimizer.SGD(0.1).minimize(loss)
fluid.Executor().run(fluid.default_startup_program())
exe = fluid.ParallelExecutor(loss_name=loss.name, devices=2)
for step in range(5):
    width = 3 if step == 3 and phalanx.rank() == 1 else 2
    exe.run([loss], feed={"x": np.ones([4, width], "float32")})
"""


def test_the_launcher_ends_with_the_rank_that_failed_first(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LEARNS_UNTIL_RANK_1_FEEDS_NONSENSE)
    run = launch(2, [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, _ = run.communicate(timeout=120)
    assert run.returncode != 0
    assert "the first failure was on rank 1" in output and "FeedError" in output.split("the first failure")[1], output
