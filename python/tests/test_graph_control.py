"""Loops and branches of static programs: Paddle's while_loop and cond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import World, begin, world

import phalanx.graph as fluid

__all__ = ["world"]

layers = fluid.layers
TIME, WIDTH, STATE = 5, 3, 4


def recurrent(dropout: float = 0.0, most: int = TIME + 1) -> fluid.Variable:
    """The loss of a recurrent network that is a loop over time, with a branch in it."""
    x = fluid.data("x", [TIME, None, WIDTH])
    limit = fluid.data("limit", [1], dtype="int64")
    target = fluid.data("target", [None, 1])
    first = layers.fc(layers.reshape(layers.slice(x, axes=[0], starts=[0], ends=[1]), [-1, WIDTH]), STATE)

    def body(i: fluid.Variable, h: fluid.Variable) -> list[fluid.Variable]:
        now = layers.reshape(layers.gather(x, i), [-1, WIDTH])
        both = layers.elementwise_add(
            layers.fc(now, STATE, param_attr="u", bias_attr=False),
            layers.fc(h, STATE, param_attr="w", bias_attr=False),
        )
        early = layers.less_than(i, layers.fill_constant([1], "int64", 2))
        following = layers.cond(early, lambda: layers.tanh(both), lambda: layers.softsign(both))
        assert isinstance(following, fluid.Variable)
        if dropout:
            following = layers.dropout(following, dropout)
        return [layers.increment(i, in_place=False), following]

    i = layers.fill_constant([1], "int64", 0)
    last, h = layers.while_loop(lambda i, h: layers.less_than(i, limit), body, [i, first], maximum_trip_count=most)
    assert (last.dtype, h.shape) == ("int64", (-1, STATE))
    return layers.mean(layers.square(layers.elementwise_sub(layers.fc(h, 1), target)))


def fed(n: int, limit: int = TIME, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    x = random.standard_normal([TIME, n, WIDTH]).astype("float32")
    return {"x": x, "limit": np.array([limit], "int64"), "target": x[2, :, :1]}


def test_a_loop_goes_as_far_as_the_condition_says(world: World) -> None:
    limit = fluid.data("limit", [1], dtype="int64")
    i = layers.fill_constant([1], "int64", 0)
    one = layers.fill_constant([1], "float32", 1.0)
    got = layers.while_loop(
        lambda i, s: layers.logical_and(layers.less_than(i, limit), layers.less_than(s, one * 100.0)),
        lambda i, s: (layers.increment(i, in_place=False), s * 3.0),
        [i, one],
        maximum_trip_count=8,
    )
    exe = fluid.Executor(fluid.CPUPlace())
    for n, wanted in [(0, (0, 1.0)), (3, (3, 27.0)), (8, (5, 243.0))]:
        out = exe.run(feed={"limit": np.array([n], "int64")}, fetch_list=list(got))
        assert (int(out[0][0]), float(out[1][0])) == wanted


def test_a_recurrent_network_written_as_a_loop_learns_and_its_gradient_is_that_of_torch(world: World) -> None:
    torch = pytest.importorskip("torch")
    loss = recurrent()
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    exe = fluid.Executor(fluid.CPUPlace())
    feed = fed(6)
    names = ["u", "w"]
    start = {n: world.scope[n].copy() for n in [*names, "fc_0.w_0", "fc_0.b_0"]}
    last = next(op for op in reversed(world.main.global_block().ops) if op.kind == "MatMul" and op.role == "Forward")
    start |= {n: world.scope[n].copy() for n in last.inputs[1:]}
    got = exe.run(feed=feed, fetch_list=[loss, *(f"{n}@GRAD" for n in names)])
    given = {n: torch.tensor(v, requires_grad=True) for n, v in start.items()}
    x = torch.tensor(feed["x"])
    h = x[0] @ given["fc_0.w_0"] + given["fc_0.b_0"]
    for i in range(TIME):
        both = x[i] @ given["u"] + h @ given["w"]
        h = torch.tanh(both) if i < 2 else torch.nn.functional.softsign(both)
    wanted = (h @ given[last.inputs[1]] - torch.tensor(feed["target"])).square().mean()
    wanted.backward()
    np.testing.assert_allclose(got[0].reshape(()), wanted.item(), rtol=1e-5)
    for name, grad in zip(names, got[1:], strict=True):
        np.testing.assert_allclose(grad, given[name].grad.numpy(), rtol=1e-4, atol=1e-6)
    losses = [exe.run(feed=fed(6), fetch_list=[loss])[0].item() for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("reduce", [False, True])
def test_devices_learn_what_one_does(world: World, reduce: bool) -> None:
    loss = recurrent(dropout=0.3)
    fluid.optimizer.SGD(0.1).minimize(loss)
    feeds = [
        [{"x": f["x"][:, s], "limit": f["limit"], "target": f["target"][s]} for s in (slice(0, 3), slice(3, 6))]
        for f in (fed(6, seed=i) for i in range(4))
    ]
    build = fluid.BuildStrategy()
    if reduce:
        build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    results = []
    for memory in (True, False):
        build.memory_optimize = build.enable_inplace = memory
        scope = fluid.Scope(seed=7)
        with fluid.scope_guard(scope):
            fluid.Executor(fluid.CPUPlace()).run(world.startup)
            exe = fluid.ParallelExecutor(False, loss.name, world.main, build_strategy=build, devices=2)
            results.append([exe.run([loss], feed=f)[0].tobytes() for f in feeds])
            results[-1].append(scope["w"].tobytes())
    assert results[0] == results[1], "with and without a plan of memory, to the bit"


def test_too_many_rounds_end_the_run_and_the_next_one_is_fine(world: World) -> None:
    loss = recurrent(most=3)
    begin(world)
    exe = fluid.Executor(fluid.CPUPlace())
    with pytest.raises(fluid.OpError, match="after 3 rounds") as caught:
        exe.run(feed=fed(2, limit=4), fetch_list=[loss])
    assert caught.value.op == "while"
    assert caught.value.site is not None and __file__ in caught.value.site
    assert np.isfinite(exe.run(feed=fed(2, limit=3), fetch_list=[loss])[0]).all()


def test_an_optimizer_in_a_branch_is_refused_and_the_program_is_as_before(world: World) -> None:
    x = fluid.data("x", [None, 4])
    small = layers.less_than(layers.mean(x), layers.fill_constant([], "float32", 0.5))
    before = str(world.main)

    def learn() -> fluid.Variable:
        loss = layers.mean(layers.fc(x, 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    with pytest.raises(NotImplementedError) as caught:
        layers.cond(small, learn, lambda: layers.mean(x))
    assert isinstance(caught.value, fluid.ControlFlowError)
    assert (caught.value.op, isinstance(caught.value, fluid.GraphError)) == ("sgd", True)
    assert caught.value.site is not None and __file__ in caught.value.site
    assert str(world.main) == before
    with pytest.raises(fluid.ControlFlowError) as caught:
        layers.cond(small, lambda: layers.batch_norm(layers.fc(x, 4)), lambda: x)
    assert caught.value.op == "batch_norm"
    assert str(world.main) == before


def test_what_does_not_fit_names_the_line(world: World) -> None:
    x = fluid.data("x", [None, 4])
    i = layers.fill_constant([1], "int64", 0)
    yes = layers.less_than(i, i)
    before = str(world.main)
    with pytest.raises(fluid.ProgramError, match=r"f32\[batch, 4\], got f32\[batch, 2\]") as caught:
        layers.cond(yes, lambda: x, lambda: layers.fc(x, 2))
    assert caught.value.op == "cond"
    with pytest.raises(fluid.ProgramError, match="returns 2 values instead of 1"):
        layers.while_loop(lambda i: yes, lambda i: [i, x], [i], maximum_trip_count=2)
    with pytest.raises(fluid.ProgramError, match="bool"):
        layers.while_loop(lambda i: i, lambda i: i, [i], maximum_trip_count=2)
    with pytest.raises(TypeError, match="body must return variables, got int"):
        layers.while_loop(lambda i: yes, lambda i: 3, [i], maximum_trip_count=2)
    with pytest.raises(fluid.ProgramError, match="at least 1"):
        layers.while_loop(lambda i: yes, lambda i: i, [i], maximum_trip_count=0)
    with pytest.raises(ZeroDivisionError):
        layers.while_loop(lambda i: yes, lambda i: 1 // 0, [i], maximum_trip_count=2)
    with pytest.raises(fluid.ProgramError, match="in place"):
        layers.increment(i, in_place=True)
    assert str(world.main) == before


def test_programs_with_bodies_are_written_down_and_read_and_cloned_for_tests(world: World) -> None:
    loss = recurrent(dropout=0.5)
    fluid.optimizer.SGD(0.1).minimize(loss)
    begin(world)
    text = world.main.serialize_to_string()
    read = fluid.Program.parse_from_string(text)
    assert str(read) == str(world.main)
    assert b'.rs"' not in text, "PYGRAPH-2: what stands in bodies is placed in the script, too"
    assert "dropout(" in str(world.main)
    test = world.main.clone(for_test=True)
    assert "dropout(" not in str(test)
    exe = fluid.Executor(fluid.CPUPlace())
    first, second = (exe.run(test, feed=fed(3), fetch_list=[loss.name])[0].item() for _ in range(2))
    assert first == second


def test_branches_that_give_nothing_are_told_what_to_give(world: World) -> None:
    x = fluid.data("x", [None, 4])
    yes = layers.mean(x) < 0.5
    before = str(world.main)
    for call, says in [
        (lambda: layers.cond(yes, lambda: x), "cond at .*: false_fn is not a function; both are required"),
        (lambda: layers.cond(yes, None, lambda: x), "true_fn is not a function"),
        (lambda: layers.cond(yes, lambda: x, lambda: None), "false_fn must return variables, got None.*return"),
        (lambda: layers.cond(yes, lambda: None, lambda: None), "true_fn must return variables, got None.*return"),
        (lambda: layers.while_loop(lambda x: yes, lambda x: None, [x], maximum_trip_count=2), "body must.*got None"),
    ]:
        with pytest.raises(TypeError, match=says):
            call()
        assert str(world.main) == before


def test_what_lives_in_a_body_is_not_used_outside(world: World) -> None:
    x = fluid.data("x", [None, 4])
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 2)
    kept: list[fluid.Variable] = []

    def keep(v: fluid.Variable) -> fluid.Variable:
        kept.append(v)
        return v

    def body(i: fluid.Variable, h: fluid.Variable) -> list[fluid.Variable]:
        inner = layers.cond(i < 1, lambda: keep(layers.fc(h, 4, name="in")), lambda: keep(layers.tanh(h)))
        assert isinstance(inner, fluid.Variable)
        return [i + 1, keep(inner * 2.0)]

    _, last = layers.while_loop(lambda i, h: layers.less_than(i, n), body, [i, x], maximum_trip_count=4)
    early = i < 1
    before = str(world.main)
    for var, where in zip(kept, ["true_fn of the cond", "false_fn of the cond", "while_loop"], strict=True):
        for use in (layers.relu, lambda v: v + last, layers.mean, lambda v: layers.cond(early, lambda: v, lambda: v)):
            with pytest.raises(
                fluid.ProgramError, match=f"exists only inside the {where} at .*test_graph_control"
            ) as caught:
                use(var)
            assert caught.value.var == var.name
        with pytest.raises(fluid.ProgramError, match=f"minimize at .*exists only inside the {where}"):
            fluid.optimizer.SGD(0.1).minimize(var)
    assert str(world.main) == before
    # What the loop gives, and parameters that were declared in it, are for everybody.
    norm = layers.mean(layers.square(world.main.var("in.w_0"))) + layers.mean(last)
    begin(world)
    feed = {"x": np.ones([2, 4], "float32")}
    alone = fluid.Executor()
    together = fluid.ParallelExecutor(main_program=world.main, devices=2)
    test = world.main.clone(for_test=True)
    assert np.isfinite(alone.run(feed=feed, fetch_list=[norm])[0])
    for run in (
        lambda v: alone.run(feed=feed, fetch_list=[v]),
        lambda v: alone.run(test, feed=feed, fetch_list=[v.name]),
        lambda v: alone.run(feed=feed, fetch_list=[v], use_prune=True),
        lambda v: together.run([v], feed=feed),
    ):
        with pytest.raises(
            fluid.FetchError, match=r"exists only inside the while_loop at .*return it from the function there"
        ):
            run(kept[-1])


def test_a_loop_that_could_not_be_written_leaves_no_traces(world: World) -> None:
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 2)

    def count(i: fluid.Variable) -> fluid.Variable:
        return layers.while_loop(lambda i: layers.less_than(i, n), lambda i: i + 1, [i], maximum_trip_count=4)[0]

    def fails(i: fluid.Variable) -> int:
        count(i)
        return 1 // 0

    with pytest.raises(ZeroDivisionError):
        layers.while_loop(lambda i: layers.less_than(i, n), fails, [i], maximum_trip_count=4)
    # The next ones may have the names of those that are gone.
    assert fluid.Executor().run(fetch_list=[count(count(i))])[0].tolist() == [2]
    kept: list[fluid.Variable] = []

    def keep() -> fluid.Variable:
        kept.append(i + 1)
        return kept[0]

    with pytest.raises(fluid.ProgramError, match="exists only inside the true_fn"):
        layers.cond(i < 1, keep, lambda: kept[0] + 1)
    with pytest.raises(fluid.ProgramError, match=r"false_fn at .*exists only inside the true_fn"):
        layers.cond(i < 1, keep, lambda: kept[-1])


def test_a_body_that_failed_leaves_no_parameters_behind(world: World) -> None:
    x = fluid.data("x", [None, 3])
    small = fluid.layers.less_than(fluid.layers.mean(x), fluid.layers.fill_constant([], "float32", 1.0))

    def branch(size: int, fails: bool) -> Any:
        def body() -> fluid.Variable:
            y = fluid.layers.fc(x, size, param_attr="w")
            if fails:
                raise KeyError("in the middle")
            return y

        return body

    with pytest.raises(KeyError):
        fluid.layers.cond(small, branch(4, True), lambda: fluid.layers.fc(x, 4))
    y = fluid.layers.cond(small, branch(5, False), lambda: fluid.layers.fc(x, 5, param_attr="v"))
    fluid.Executor().run(world.startup)
    (got,) = fluid.Executor().run(world.main, feed={"x": np.ones([2, 3], "float32")}, fetch_list=[y])
    assert got.shape == (2, 5)
    assert sorted(p.name for p in world.main.all_parameters() if p.name in "wv") == ["v", "w"]
