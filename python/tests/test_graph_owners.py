"""Reduce on several ranks: each parameter has an owner, and everything has the bits of AllReduce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import batch, classifier
from ranks import run_ranks

import phalanx
import phalanx.graph as fluid
from phalanx.distributed import CheckpointSaverHook, DistributedSession, Scaffold
from phalanx.graph.errors import FetchError, StateError

STEPS, SAMPLES = 3, 12


def owned(reduce: str, devices: int, folder: str, resume: bool) -> dict[str, Any]:
    """Trains with Adam, clipping and an average; everything in the scope, and what it took before it was gathered."""
    rank, size = phalanx.rank(), phalanx.size()
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=3)
    startup.random_seed = rank
    told: dict[str, Any] = {}
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        _, loss = classifier()
        clip = fluid.clip.GradientClipByGlobalNorm(0.1)
        fluid.optimizer.Adam(0.05, grad_clip=clip).minimize(loss)
        average = fluid.optimizer.ExponentialMovingAverage(0.9)
        average.update()
        exe = fluid.Executor()
        exe.run(startup)
        if resume:
            fluid.load(main, f"{folder}/saved")
        build = fluid.BuildStrategy()
        build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy[reduce]
        build.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.BySamples
        parallel = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, build_strategy=build, devices=devices)
        for step in range(STEPS):
            share = {name: np.array_split(value, size)[rank] for name, value in batch(SAMPLES, seed=step).items()}
            told["loss"] = parallel.run([loss], feed=share)[0].tobytes()
        kept = sorted(v.name for v in main.list_vars() if v.persistable)
        states = [name for name in kept if "moment" in name]
        told["bytes"] = sum(scope._store.bytes_of(name) for name in states)
        if reduce == "Reduce" and size > 1:
            with pytest.raises(StateError, match="owns it.*gather"):
                [scope[name] for name in states]
            with pytest.raises(StateError, match="gather"):
                fluid.save(main, f"{folder}/{rank}")
            with pytest.raises(FetchError, match="AllReduce"):
                parallel.run([states[0]], feed=share)
            with average.apply(exe):
                told["average"] = {p.name: scope[p.name].tobytes() for p in main.all_parameters()}
        else:
            with average.apply(exe):
                told["average"] = {p.name: scope[p.name].tobytes() for p in main.all_parameters()}
        parallel.gather()
        told["bits"] = {name: scope[name].tobytes() for name in kept}
        if rank == 0 and not resume:
            fluid.save(main, f"{folder}/saved")
    return told


@pytest.mark.parametrize(("n", "devices"), [(2, 1), (3, 2)])
def test_owners_have_the_bits_of_all_reduce(n: int, devices: int, tmp_path: Path) -> None:
    # PARA-1, STORE-3
    wanted = run_ranks(n, owned, "AllReduce", devices, str(tmp_path), False)
    got = run_ranks(n, owned, "Reduce", devices, str(tmp_path), False)
    for key in ("loss", "bits", "average"):
        assert [each[key] for each in got] == [each[key] for each in wanted], key
    assert max(each["bytes"] for each in got) < wanted[0]["bytes"]
    assert sum(each["bytes"] for each in got) == wanted[0]["bytes"]
    # Two ranks go on with what n have saved.
    on_two = [run_ranks(2, owned, reduce, 1, str(tmp_path), True) for reduce in ("AllReduce", "Reduce")]
    assert on_two[0][0]["bits"] == on_two[1][0]["bits"] == on_two[1][1]["bits"]


def fed(reduce: str, folder: str) -> dict[str, bytes]:
    """Trains with momentum in a session that saves, and sets a state of the optimizer by a feed now and then."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=3)
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        _, loss = classifier()
        fluid.optimizer.Momentum(0.05, 0.9).minimize(loss)
        build = fluid.BuildStrategy()
        build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy[reduce]
        velocities = [v for v in main.list_vars() if "velocity" in v.name]
        scaffold = Scaffold(main, startup, loss, build_strategy=build, devices=1)
        hooks = [CheckpointSaverHook(folder, save_steps=2)]
        with DistributedSession(
            checkpoint_dir=folder, scaffold=scaffold, hooks=hooks, log_step_count_steps=None
        ) as session:
            for step in range(6):
                share: dict[str, Any] = {
                    name: np.array_split(value, phalanx.size())[phalanx.rank()]
                    for name, value in batch(SAMPLES, seed=step).items()
                }
                if step in (1, 2, 4):
                    share |= {v.name: np.full(v.shape, 0.1 * step, "float32") for v in velocities}
                session.run([], share)
            session._exe.gather()
        return {v.name: scope[v.name].tobytes() for v in main.list_vars() if v.persistable}


def test_a_state_that_is_fed_goes_to_its_owner(tmp_path: Path) -> None:
    wanted, got = (run_ranks(2, fed, reduce, str(tmp_path / reduce)) for reduce in ("AllReduce", "Reduce"))
    assert got == wanted and got[0] == got[1]
    assert any("velocity" in name for name in got[0])


def script(reduce: str, through: str, is_fed: bool, folder: str) -> dict[str, Any]:
    """A script of Paddle's that trains five steps and saves; what the scope has, and what a fresh one has that loads it."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=3)
    told: dict[str, Any] = {"losses": []}
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        _, loss = classifier()
        fluid.optimizer.Adam(learning_rate=0.05).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        build = fluid.BuildStrategy()
        build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy[reduce]
        states = sorted(v.name for v in main.list_vars() if v.persistable and "moment" in v.name)
        whole: Any
        if through == "CompiledProgram":
            whole = fluid.CompiledProgram(main).with_data_parallel(loss.name, build, places=fluid.cpu_places(2))
        else:
            whole = fluid.ParallelExecutor(False, loss.name, main, build_strategy=build, devices=2)
        for i in range(5):
            rows = {name: np.array_split(value, phalanx.size()) for name, value in batch(SAMPLES, seed=i).items()}
            fed: dict[str, Any] = {name: parts[phalanx.rank()] for name, parts in rows.items()}
            if is_fed and i in (1, 3):
                # Runs that follow go on with these on all ranks.
                fed |= {name: np.full(main.var(name).shape, 0.01 * i, "float32") for name in states}
            if through == "CompiledProgram":
                (value,) = exe.run(whole, feed=fed, fetch_list=[loss.name])
            else:
                (value,) = whole.run([loss.name], feed=fed)
            told["losses"].append(value.tobytes())
        whole.gather()
        folder = f"{folder}/{phalanx.rank()}"
        fluid.io.save_persistables(exe, folder, main)
        told["scope"] = {v.name: scope[v.name].tobytes() for v in main.list_vars() if v.persistable}
        with fluid.scope_guard(fluid.Scope()):
            exe.run(startup)
            fluid.io.load_persistables(exe, folder, main)
            told["loaded"] = {name: fluid.global_scope()[name].tobytes() for name in told["scope"]}
    return told


@pytest.mark.parametrize("is_fed", [False, True])
@pytest.mark.parametrize("through", ["ParallelExecutor", "CompiledProgram"])
def test_a_script_trains_and_saves_the_same_with_reduce(through: str, is_fed: bool, tmp_path: Path) -> None:
    wanted, got = (
        run_ranks(2, script, kind, through, is_fed, str(tmp_path / kind)) for kind in ("AllReduce", "Reduce")
    )
    assert got == wanted
    for each in got:
        assert each["loaded"] == each["scope"] == got[0]["scope"]
    assert any("moment" in name for name in got[0]["scope"])


def goes_back(reduce: str, folder: str) -> dict[str, Any]:
    """Saves, trains on, loads what was saved while states are with their owners, sets some by hand, and trains again."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=3)
    told: dict[str, Any] = {"losses": []}
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1])
        hidden = fluid.layers.fc(x, 3, act="tanh")
        loss = fluid.layers.mse_loss(fluid.layers.fc(hidden, 1), y)
        fluid.optimizer.Adam(0.05).minimize(loss)
        exe = fluid.Executor()
        exe.run(startup)
        build = fluid.BuildStrategy()
        build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy[reduce]
        both = fluid.CompiledProgram(main).with_data_parallel(loss.name, build, places=fluid.cpu_places(1))
        draw = np.random.default_rng(phalanx.rank())
        feed = {"x": draw.random([6, 4], "float32"), "y": draw.random([6, 1], "float32")}

        def train() -> None:
            told["losses"].append(exe.run(both, feed=feed, fetch_list=[loss])[0].tobytes())

        train()
        both.gather()
        fluid.save(main, f"{folder}/{phalanx.rank()}")
        train()
        fluid.load(main, f"{folder}/{phalanx.rank()}")
        train()
        assert told["losses"][2] == told["losses"][1]
        if reduce == "Reduce":
            # The owners have them, and this process takes no memory for those of others.
            kept = [v.name for v in main.list_vars() if "moment" in v.name and not scope._store.bytes_of(v.name)]
            assert kept
        for var in [v for v in main.list_vars() if "moment" in v.name]:
            # An array of one number, a list, and a number: nothing is read for any of them.
            shape = tuple(var.shape)
            value: Any = np.full(shape, 0.25, "float32") if len(shape) == 2 else [0.25] * shape[0]
            fluid.global_scope().find_var(var.name).get_tensor().set(value, fluid.CPUPlace())
        train()
        train()
        exe.run(startup)
        train()
        both.gather()
        told["scope"] = {v.name: scope[v.name].tobytes() for v in main.list_vars() if v.persistable}
    return told


def test_states_with_their_owners_are_loaded_set_and_begun_anew(tmp_path: Path) -> None:
    wanted, got = (run_ranks(2, goes_back, reduce, str(tmp_path / reduce)) for reduce in ("AllReduce", "Reduce"))
    assert got == wanted
