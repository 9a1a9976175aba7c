"""Programs: what they look like, how they are written down, and what is wrong with them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, world

import phalanx.graph as fluid

__all__ = ["world"]


def here() -> str:
    """File and line of the caller, one line above the call that is to blame."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{frame.f_back.f_code.co_filename}:{frame.f_back.f_lineno + 1}"


def test_operations_and_variables_are_placed_in_the_script(world: World) -> None:
    # PYGRAPH-2
    site = here()
    x = fluid.data("x", [None, 4])
    assert x.site == site
    site = here()
    y = fluid.layers.fc(x, 3, act="relu")
    assert {op.site for op in world.main.global_block().ops} == {site}
    loss = fluid.layers.mean(y)
    site = here()
    fluid.optimizer.Adam().minimize(loss)
    ops = world.main.global_block().ops
    assert all(Path(__file__).name in op.site for op in ops), [op.site for op in ops]
    updates = [op for op in ops if op.role in ("Optimize", "Loss", "LrSched")]
    assert updates
    assert {op.site for op in updates} == {site}
    assert world.main.var("fc_0.w_0.moment1").site == site


def test_mistakes_name_the_line(world: World) -> None:
    x = fluid.data("x", [None, 4])
    with pytest.raises(fluid.ProgramError) as caught:
        site = here()
        fluid.layers.elementwise_add(x, fluid.layers.fill_constant([3], "float32", 1.0))
    assert (caught.value.op, caught.value.site) == ("add", site)
    assert "[batch, 4]" in str(caught.value)
    with pytest.raises(fluid.ProgramError) as caught:
        site = here()
        fluid.data("x", [None, 5])
    assert (caught.value.var, caught.value.site) == ("x", site)
    assert fluid.data("x", [None, 4]).name == "x"
    with pytest.raises(fluid.LossError, match="one floating-point number") as lost:
        site = here()
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.fc(x, 2))
    assert lost.value.site == site


def test_a_program_that_could_not_be_extended_is_as_it_was(world: World) -> None:
    # PYGRAPH-4
    x = fluid.data("x", [None, 4])
    y = fluid.layers.fc(x, 2)
    text = str(world.main)
    with pytest.raises(fluid.LossError):
        fluid.optimizer.SGD(0.1).minimize(y)
    assert str(world.main) == text
    with pytest.raises(fluid.ProgramError):
        fluid.layers.matmul(y, x)
    assert str(world.main) == text


def test_programs_are_read_as_they_were_written(world: World) -> None:
    # PYGRAPH-1
    _, loss = classifier()
    fluid.optimizer.Momentum(fluid.layers.piecewise_decay([2], [0.1, 0.01]), momentum=0.9).minimize(loss)
    written = world.main.serialize_to_string()
    again = fluid.Program.parse_from_string(written)
    assert str(again) == str(world.main)
    assert again.serialize_to_string() == written
    assert [p.name for p in again.all_parameters()] == [p.name for p in world.main.all_parameters()]
    begin(world)
    exe = fluid.Executor()
    (there,) = exe.run(again, feed=batch(4), fetch_list=[loss.name])
    begin(world)
    (here_,) = exe.run(world.main, feed=batch(4), fetch_list=[loss.name])
    assert there.tobytes() == here_.tobytes()


@pytest.mark.parametrize("cut", [0, 1, 10, 200, -1])
def test_programs_that_are_cut_off_are_refused(world: World, cut: int) -> None:
    classifier()
    with pytest.raises(fluid.ProgramError, match="not a program"):
        fluid.Program.parse_from_string(world.main.serialize_to_string()[:cut])


def test_hostile_programs_are_refused(world: World) -> None:
    classifier()
    parts = json.loads(world.main.serialize_to_string())
    wrong = []
    for change in (
        lambda p: p["ops"][0]["inputs"].__setitem__(0, 9999),
        lambda p: p["ops"].reverse(),
        lambda p: p["vars"].append(dict(p["vars"][0])),
        lambda p: p["vars"][0]["sig"].__setitem__("shape", [{"Fixed": 2**63}, {"Fixed": 2**63}]),
        lambda p: p["ops"][0].__setitem__("kind", {"NoSuch": {}}),
        lambda p: p.pop("ops"),
    ):
        hostile = json.loads(json.dumps(parts))
        change(hostile)
        wrong.append(json.dumps(hostile).encode())
    for bytes_ in wrong:
        with pytest.raises(fluid.ProgramError):
            fluid.Program.parse_from_string(bytes_)


def test_a_program_for_testing_learns_nothing_and_drops_nothing(world: World) -> None:
    x = fluid.data("x", [None, 64])
    y = fluid.layers.dropout(x, 0.5, dropout_implementation="upscale_in_train")
    down = fluid.layers.dropout(x, 0.25)
    loss = fluid.layers.mean(fluid.layers.fc(y + down, 1))
    test = world.main.clone(for_test=True)
    fluid.optimizer.SGD(0.1).minimize(loss)
    assert {op.role for op in test.global_block().ops} == {"Forward"}
    begin(world)
    ones = np.ones([2, 64], "float32")
    exe = fluid.Executor()
    kept, scaled = exe.run(test, feed={"x": ones}, fetch_list=[y, down])
    assert np.array_equal(kept, ones)
    assert np.array_equal(scaled, ones * np.float32(0.75))
    kept, masked = exe.run(world.main, feed={"x": ones}, fetch_list=[y, down])
    assert set(np.unique(kept)) == {0.0, 2.0}
    assert set(np.unique(masked)) == {0.0, 1.0}
    (again,) = exe.run(world.main, feed={"x": ones}, fetch_list=[y])
    assert not np.array_equal(kept, again)


def test_layers_compute_what_numpy_computes(world: World) -> None:
    random = np.random.default_rng(3)
    a = random.standard_normal([2, 3, 4]).astype("float32")
    layers = fluid.layers
    x = fluid.data("x", [None, 3, 4])
    e = np.exp(a - a.max(-1, keepdims=True))
    wanted = {
        layers.relu(x): np.maximum(a, 0),
        layers.scale(x, 2.0, 1.0, bias_after_scale=False): 2 * (a + 1),
        layers.clip(x, -0.5, 0.5): np.clip(a, -0.5, 0.5),
        layers.softmax(x): e / e.sum(-1, keepdims=True),
        layers.reduce_sum(x, dim=[1, -1]): a.sum((1, 2)),
        layers.reduce_max(x, dim=1, keep_dim=True): a.max(1, keepdims=True),
        layers.transpose(x, [0, 2, 1]): a.transpose(0, 2, 1),
        layers.reshape(x, [0, -1]): a.reshape(2, 12),
        layers.reshape(x, [-1, 4]): a.reshape(6, 4),
        layers.flatten(x, axis=2): a.reshape(6, 4),
        layers.slice(x, [2], [-3], [100]): a[:, :, 1:],
        layers.split(x, [1, 3], dim=2)[1]: a[:, :, 1:],
        layers.concat([x, x], axis=-1): np.concatenate([a, a], -1),
        layers.stack([x, x], axis=1): np.stack([a, a], 1),
        layers.matmul(x, x, transpose_y=True, alpha=0.5): 0.5 * a @ a.transpose(0, 2, 1),
        layers.sums([x, x, x]): 3 * a,
        layers.argmax(x): a.argmax(-1),
        layers.huber_loss(x, layers.zeros([3, 4]), 0.5): np.where(abs(a) <= 0.5, a * a / 2, 0.5 * abs(a) - 0.125),
        1.0 - x * 2.0: 1 - 2 * a,
        -x / 4.0: -a / 4,
    }
    got = fluid.Executor().run(world.main, feed={"x": a}, fetch_list=list(wanted))
    for var, value, right in zip(wanted, got, wanted.values(), strict=True):
        assert value.shape == right.shape, var
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-5, err_msg=repr(var))


def test_parameters_have_names_first_values_and_owners(world: World) -> None:
    x = fluid.data("x", [None, 4])
    shared = fluid.ParamAttr(name="shared", initializer=fluid.initializer.Constant(0.25))
    y = fluid.layers.fc(
        fluid.layers.fc(x, 4, param_attr=shared, bias_attr=False), 4, param_attr=shared, bias_attr=False
    )
    fixed = fluid.ParamAttr(trainable=False)
    z = fluid.layers.fc(y, 2, param_attr=fixed, bias_attr=fluid.initializer.Uniform(1.0, 2.0), name="out")
    assert [p.name for p in world.main.all_parameters()] == ["shared", "out.w_0", "out.b_0"]
    assert z.name == "out"
    _, pairs = fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(z))
    assert [p.name for p, _ in pairs] == ["shared", "out.b_0"]
    with pytest.raises(fluid.ProgramError, match="cannot be shared"):
        fluid.layers.fc(x, 3, param_attr=shared)
    begin(world)
    assert np.array_equal(world.scope["shared"], np.full([4, 4], 0.25, "float32"))
    assert np.all((world.scope["out.b_0"] >= 1) & (world.scope["out.b_0"] < 2))


def test_the_startup_program_begins_anew_from_its_seed(world: World) -> None:
    _, loss = classifier()
    fluid.optimizer.Adam().minimize(loss)
    with pytest.raises(fluid.UninitialisedError, match="run the startup program") as caught:
        fluid.Executor().run(world.main, feed=batch(4), fetch_list=[loss])
    assert caught.value.var == "fc_0.w_0"
    begin(world)
    first = world.scope["fc_0.w_0"]
    fluid.Executor().run(world.main, feed=batch(4), fetch_list=[loss])
    assert not np.array_equal(world.scope["fc_0.w_0"], first)
    begin(world)
    assert np.array_equal(world.scope["fc_0.w_0"], first)
    world.startup.random_seed = 5
    begin(world)
    assert not np.array_equal(world.scope["fc_0.w_0"], first)


def test_variables_of_two_programs_do_not_mix(world: World) -> None:
    x = fluid.data("x", [None, 4])
    with fluid.unique_name.guard(), fluid.program_guard(fluid.Program()):
        y = fluid.data("y", [None, 4])
    with pytest.raises(fluid.ProgramError, match="different programs"):
        _ = x + y
    with pytest.raises(TypeError, match="takes variables"):
        fluid.layers.relu(np.ones(3))


def test_what_is_not_supported_says_so(world: World) -> None:
    x = fluid.data("x", [None, 4, 4])
    for call in (
        lambda: fluid.data("ragged", [None], lod_level=2),
        lambda: fluid.data("negative", [None, -2]),
        lambda: fluid.layers.softmax(x, axis=3),
        lambda: fluid.layers.embedding(x, [3, 3], is_distributed=True),
        lambda: fluid.layers.reshape(x, [-1, -1]),
        lambda: fluid.layers.reshape(x, [0, 5]),
        lambda: fluid.layers.fc(x, 3, act="no_such"),
        lambda: fluid.optimizer.RMSProp(0.1, centered=True),
        lambda: fluid.layers.piecewise_decay([1], [0.1]),
    ):
        with pytest.raises(fluid.ProgramError):
            call()
    with pytest.raises(TypeError):
        fluid.optimizer.SGD(learning_rate="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite"):
        loss = fluid.layers.mean(fluid.layers.fc(x, 1))
        fluid.optimizer.Momentum(0.1, momentum=float("nan")).minimize(loss)


def test_a_script_cannot_ask_a_variable_what_only_a_run_knows(world: World) -> None:
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 4])
    i = fluid.layers.fill_constant([1], "int64", 0)
    text = str(world.main)
    for ask in (lambda: bool(i), lambda: x and y, lambda: not x, lambda: 1 if i else 0):
        with pytest.raises(TypeError, match=r"no truth.*layers\.cond.*layers\.while_loop"):
            ask()
    for compared in (lambda: x == 1, lambda: x != 0.5, lambda: np.float32(2) == x, lambda: np.ones(4) != x):
        with pytest.raises(TypeError, match=r"layers\.equal"):
            compared()
    for function in (np.mean, np.asarray, np.std):
        with pytest.raises(TypeError, match="`x` is a variable of a program and has no value"):
            function(x)
    for wrong in (lambda: list(x), lambda: 1.0 in x, lambda: x + np.ones(4), lambda: np.ones(4) * x, lambda: x < "a"):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(fluid.FeedTypeError, match=r"`x` wants an array .*got a Variable"):
        fluid.Executor().run(feed={"x": y, "y": y}, fetch_list=[x])
    assert str(world.main) == text, "nothing was added by asking"
    # As keys and in lists they are themselves.
    assert x in [y, None, "x", x]
    assert x not in [y, "x"]
    assert {x: 1, y: 2}[y] == 2
    assert len({x, y, x}) == 2
    assert x == x and x != y and [x, y].index(y) == 1


def test_operators_compute_what_numpy_computes(world: World) -> None:
    a = np.random.default_rng(5).standard_normal([2, 3, 4]).astype("float32")
    b, k = a.transpose(0, 2, 1).reshape(a.shape).copy(), np.arange(6).reshape(2, 3)
    x, y, i = fluid.data("x", [None, 3, 4]), fluid.data("y", [None, 3, 4]), fluid.data("i", [None, 3], "int64")
    big = 2**60 + 1
    wanted = {
        x < y: a < b,
        x <= 0.25: a <= 0.25,
        x > y: a > b,
        x >= np.float64(0.25): a >= 0.25,
        0.25 < x: a > 0.25,  # noqa: SIM300
        i < 3: k < 3,
        x[:, 0]: a[:, 0],
        x[:, -1, 1:3]: a[:, -1, 1:3],
        x[:, :, np.int64(2)]: a[:, :, 2],
        x[:, 1:]: a[:, 1:],
        i + 1: k + 1,
        big + i: k + big,
        i - 2: k - 2,
        i + 3.0: k + 3,
        2.0 * x: 2 * a,
        np.float32(2) * x - 1: 2 * a - 1,
    }
    got = fluid.Executor().run(world.main, feed={"x": a, "y": b, "i": k}, fetch_list=list(wanted))
    for var, value, right in zip(wanted, got, wanted.values(), strict=True):
        assert (value.shape, value.dtype) == (right.shape, right.dtype), var
        np.testing.assert_allclose(value, right, rtol=1e-6, err_msg=repr(var))


def test_operators_that_cannot_be_say_what_to_write(world: World) -> None:
    x, i = fluid.data("x", [None, 4]), fluid.data("i", [None, 4], "int64")
    y, s = fluid.data("y", [None, 3, 3]), fluid.data("s", [None], "int32")
    text = str(world.main)
    for wrong, says in [
        (lambda: i * 0.5, r"elementwise_mul: `i` is int64 and 0.5 is not.*layers\.cast\(x"),
        (lambda: i / 2, "elementwise_div.*cast"),
        (lambda: i + 0.5, "scale.*`\\+` and `-` of whole numbers"),
        (lambda: i + float("inf"), "cast"),
        (lambda: i + 2**63, "cast"),
        (lambda: fluid.layers.scale(i, 2.0), "scale.*cast"),
        (lambda: fluid.layers.elementwise_mul(x, i), "`x` is float32 and `i` int64; layers.cast one"),
        (lambda: i < 0.5, "less_than.*cast"),
        (lambda: i < 2**53 + 1, "less_than.*cast"),
        (lambda: x[0], "axis 0 .* is the batch"),
        (lambda: x[:, 4], "no place 4"),
        (lambda: x[:, 0, 0], "does not have 3 axes"),
        (lambda: y[:, 1, 9], "no place 9"),
        (lambda: fluid.layers.less_than(x, i), "`x` is float32 and `i` int64"),
        (lambda: s < 0.5, "`s` is int32 .*layers.cast"),
    ]:
        with pytest.raises(fluid.ProgramError, match=says) as caught:
            wrong()
        assert caught.value.var in ("x", "i", "y", "s")
    for wrong in (lambda: x[:, ::2], lambda: x[:, True], lambda: x[:, [0, 1]], lambda: x["a"], lambda: x[:, i:]):
        with pytest.raises(TypeError, match=r"layers\.gather"):
            wrong()
    for wrong in (lambda: fluid.layers.less_than(x, 1.0), lambda: fluid.layers.elementwise_add(x, 1.0)):
        with pytest.raises(TypeError, match=r"takes variables, got float; .*fill_constant"):
            wrong()
    assert str(world.main) == text


def test_one_number_is_a_scalar_here_and_an_array_of_one_in_paddle(world: World) -> None:
    layers = fluid.layers
    mean, one = layers.mean(fluid.data("x", [None, 3])), layers.fill_constant([1], "float32", 1.0)
    assert (mean.shape, one.shape) == ((), (1,))
    yes, no = layers.less_than(mean, one), mean > 4.0
    wanted = {
        yes: [False],
        layers.greater_equal(one, mean): [False],
        layers.logical_and(yes, no): [False],
        layers.logical_or(no, yes): [False],
        mean + one: [4.0],
        one - mean: [-2.0],
        layers.elementwise_max(mean, one): [3.0],
        layers.sums([mean, one, mean]): [7.0],
        layers.sums([one, mean]): [4.0],
        layers.concat([mean, mean, one]): [3.0, 3.0, 1.0],
        layers.cond(yes, lambda: mean, lambda: one * 2.0): [2.0],
        layers.while_loop(lambda v: v < 5.0, lambda v: v + mean, [one], maximum_trip_count=3)[0]: [7.0],
        layers.while_loop(lambda v: mean < v, lambda v: v - one, [mean], maximum_trip_count=3)[0]: [3.0],
    }
    got = fluid.Executor().run(feed={"x": np.full([2, 3], 3, "float32")}, fetch_list=list(wanted))
    assert [value.tolist() for value in got] == list(wanted.values())
    two, count = layers.fill_constant([2], "float32", 1.0), layers.fill_constant([1], "int64", 0)
    zero = layers.fill_constant([], "int64", 0)
    text = str(world.main)
    for wrong in (
        lambda: mean + two,
        lambda: layers.sums([mean, one, two]),
        lambda: layers.concat([mean, count]),
        lambda: layers.concat([mean, zero]),
        lambda: layers.less_than(mean, count),
        lambda: layers.logical_and(yes, mean),
        lambda: layers.elementwise_add(mean, one, axis=3),
        lambda: layers.elementwise_add(mean, one, name="x"),
    ):
        with pytest.raises(fluid.ProgramError):
            wrong()
        assert str(world.main) == text, "PYGRAPH-4: what was made on the way is gone"


def test_a_batch_that_is_given_is_not_put_before(world: World) -> None:
    layers = fluid.layers
    assert layers.data("a", [-1, 3]).shape == layers.data("b", [None, 3]).shape == layers.data("c", [3]).shape
    assert layers.data("d", [3, -1]).shape == (3, -1)
    assert layers.data("e", [3], append_batch_size=False).shape == (3,)
    assert layers.data("f", [-1, 2], lod_level=1, max_length=5).shape == (-1, 5, 2)
    for many in (lambda: layers.data("g", [-1, None, 3]), lambda: fluid.data("g", [None, -1])):
        with pytest.raises(fluid.ProgramError, match=r"`g`: .* has 2 dimensions.*one batch dimension only") as caught:
            many()
        assert caught.value.var == "g"
