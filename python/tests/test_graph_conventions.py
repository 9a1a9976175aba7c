"""Conventions of Paddle's scripts: startup programs that replace, sizes that are not checked, ids of int32, lists of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, world

import phalanx.graph as fluid
from phalanx.distributed.session import initialise

__all__ = ["world"]
layers = fluid.layers


def _network(width: int, devices: int | None = None) -> tuple[fluid.Program, fluid.Program, Any]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        _, loss = classifier(width=width)
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return main, startup, loss


@pytest.mark.parametrize("devices", [None, 2])
def test_a_startup_program_replaces_variables_of_another_shape(world: World, devices: int | None) -> None:
    exe = fluid.Executor(fluid.CPUPlace())

    def trained(width: int) -> list[float]:
        main, startup, loss = _network(width)
        exe.run(startup)
        assert world.scope["fc_0.w_0"].shape == (8, width) == world.scope["fc_0.w_0.velocity"].shape
        assert not world.scope["fc_0.w_0.velocity"].any()
        if devices is not None:
            parallel = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, devices=devices)
            return [float(parallel.run([loss], feed=batch(8))[0].mean()) for _ in range(4)]
        return [exe.run(main, batch(8), [loss])[0].item() for _ in range(4)]

    first, second = trained(16), trained(5)
    assert first[-1] < first[0] and second[-1] < second[0]
    # With the first values of before, and nothing of what came between.
    assert trained(16) == first
    old, _, loss = _network(5)
    with pytest.raises(fluid.StateError, match="fc_0.w_0"):
        exe.run(old, batch(8), [loss])


def test_a_type_is_replaced_too_and_given_values_are_set(world: World) -> None:
    exe = fluid.Executor(fluid.CPUPlace())
    for array in (np.ones([2], "float32"), np.arange(6, dtype="float64").reshape(2, 3), np.array([1, 2, 3])):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup):
            begin = fluid.initializer.NumpyArrayInitializer(array)
            layers.create_parameter(list(array.shape), array.dtype.name, "w", default_initializer=begin)
        exe.run(startup)
        np.testing.assert_array_equal(world.scope["w"], array)
        assert world.scope["w"].dtype == array.dtype


def test_a_session_does_not_replace_what_it_keeps(world: World) -> None:
    _, startup, _ = _network(16)
    fluid.Executor().run(startup)
    before = {name: world.scope[name].tobytes() for name in world.scope.names()}
    main, startup, _ = _network(5)
    with fluid.program_guard(main, startup):
        layers.create_global_var([1], 0, "int64", name="new")
    with pytest.raises(
        fluid.StateError, match=r"the scope has `fc_0.w_0` as float32\[8, 16\].*run the startup program"
    ):
        initialise(world.scope, main, startup)
    assert {name: world.scope[name].tobytes() for name in world.scope.names()} == before


def _sized(rows: int | None) -> tuple[fluid.Program, fluid.Program, Any]:
    """A network whose batch is part of its shapes, or not."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        if rows is None:
            image, label = fluid.data("image", [None, 1, 6, 6]), fluid.data("label", [None, 1], "int64")
        else:
            image = layers.data("image", [rows, 1, 6, 6], append_batch_size=False)
            label = layers.data("label", [rows, 1], append_batch_size=False, dtype="int64")
        hidden = layers.pool2d(layers.conv2d(image, 4, 3, act="relu"), 2, "avg", 2)
        flat = layers.reshape(hidden, [0, -1])
        rows_of = layers.reshape(layers.fc(flat, 12, act="tanh"), [-1, 3, 4])
        mixed = layers.reduce_sum(layers.batch_norm(rows_of), 1)
        scores = layers.fc(mixed, 4) + layers.fc(flat, 4)
        loss = layers.mean(layers.softmax_with_cross_entropy(scores, label))
        fluid.optimizer.Adam(0.01).minimize(loss)
    return main, startup, loss


# The last one has as many rows as there are classes.
@pytest.mark.parametrize("rows", [6, 4])
def test_fixed_sizes_are_not_checked(world: World, rows: int) -> None:
    """The same bits as a program whose batch is open, also where there are as many classes as rows (REFIT-1)."""
    random = np.random.default_rng(3)
    sizes = [rows, 3, rows, 7, 3, 1]
    feeds = [
        {
            "image": random.standard_normal([n, 1, 6, 6]).astype("float32"),
            "label": random.integers(0, 4, [n, 1]),
        }
        for n in sizes
    ]

    def losses(main: fluid.Program, startup: fluid.Program, loss: Any) -> list[Any]:
        with fluid.scope_guard(fluid.Scope(seed=5)):
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            return [exe.run(main, feed, [loss])[0] for feed in feeds]

    np.testing.assert_array_equal(losses(*_sized(rows)), losses(*_sized(None)))


def test_what_does_not_fit_other_sizes_says_so(world: World) -> None:
    """Constants stay (REFIT-1)."""
    x = layers.data("x", [4, 3], append_batch_size=False)
    whole = x + layers.fill_constant([4, 3], "float32", 1.0)
    checked = fluid.data("checked", [4, 3]) * 2.0
    exe = fluid.Executor()
    fed = {"x": np.ones([4, 3], "float32"), "checked": np.ones([4, 3], "float32")}
    np.testing.assert_array_equal(exe.run(feed=fed, fetch_list=[whole])[0], np.full([4, 3], 2.0))
    with pytest.raises(fluid.FeedError, match=r"`x`.*fed \[5, 3\], which the program does not fit") as caught:
        exe.run(feed={**fed, "x": np.ones([5, 3], "float32")}, fetch_list=[whole])
    assert (caught.value.var, caught.value.got) == ("x", "float32[5, 3]")
    with pytest.raises(fluid.FeedError, match="checked"):
        exe.run(feed={**fed, "checked": np.ones([5, 3], "float32")}, fetch_list=[checked])
    with pytest.raises(fluid.FeedError, match="x"):
        exe.run(feed={**fed, "x": np.ones([5], "float32")}, fetch_list=[whole])
    parallel = fluid.ParallelExecutor(main_program=world.main, devices=2)
    for rows, says in ((5, "declare the batch as None"), (10, r"fed \[5, 3\], which the program does not fit")):
        with pytest.raises(fluid.FeedError, match=says):
            parallel.run([whole], feed={**fed, "x": np.ones([rows, 3], "float32")})
    with pytest.raises(fluid.FeedError, match="checked"):
        parallel.run([checked], feed={**fed, "checked": np.ones([6, 3], "float32")})


@pytest.mark.parametrize("reduce", ["AllReduce", "Reduce"])
@pytest.mark.parametrize("devices", [2, 4])
def test_fixed_sizes_are_not_checked_on_several_devices(world: World, devices: int, reduce: str) -> None:
    """A fixed batch of 10 fed with other numbers of rows: the bits of a program whose batch is open (REFIT-1)."""
    random = np.random.default_rng(4)
    feeds = [
        {"image": random.standard_normal([n, 1, 6, 6]).astype("float32"), "label": random.integers(0, 4, [n, 1])}
        for n in (40, 24, 12, 40, 10 * devices, 12, 4)
    ]

    def trained(main: fluid.Program, startup: fluid.Program, loss: Any) -> list[bytes]:
        with fluid.scope_guard(fluid.Scope(seed=5)):
            fluid.Executor(fluid.CPUPlace()).run(startup)
            build = fluid.BuildStrategy()
            build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy[reduce]
            exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, build_strategy=build, devices=devices)
            exe.record()
            losses = [exe.run([loss], feed=feed)[0] for feed in feeds]
            # A list has a dict for each device.
            parts = [{name: value[i : i + 3] for name, value in feeds[0].items()} for i in range(devices)]
            losses += [exe.run([loss], feed=parts)[0]]
            assert exe.trace() and all(each.shape == (devices,) for each in losses)
            exe.drop_local_exe_scopes()
            scope = fluid.global_scope()
            return [each.tobytes() for each in [*losses, *(scope[p.name] for p in main.all_parameters())]]

    assert trained(*_sized(10)) == trained(*_sized(None))


@pytest.mark.parametrize(
    "layer",
    [
        lambda x: layers.split(x, 2, dim=0)[0],
        lambda x: x[1:],
        lambda x: layers.slice(x, [0], [1], [1000]),
        lambda x: layers.reshape(x, [2, -1, 1, 6, 6]),
        layers.shape,
        lambda x: layers.expand_as(layers.fill_constant([1, 1, 6, 6], "float32", 1.0), x),
    ],
)
def test_a_size_that_became_a_number_is_refused(world: World, layer: Any) -> None:
    """What a layer made of the declared size would be wrong for another one (REFIT-1)."""
    x = layers.data("x", [4, 1, 6, 6], append_batch_size=False)
    made = layer(x)
    exe = fluid.Executor()
    exe.run(feed={"x": np.ones([4, 1, 6, 6], "float32")}, fetch_list=[made])
    with pytest.raises(fluid.FeedError, match="which the program does not fit"):
        exe.run(feed={"x": np.ones([8, 1, 6, 6], "float32")}, fetch_list=[made])


def test_same_padding_fits_other_batches_and_no_other_images(world: World) -> None:
    """The padding of an image was computed from its size (REFIT-1)."""
    x = layers.data("x", [4, 1, 5, 5], append_batch_size=False)
    made = layers.conv2d(x, 2, 3, stride=2, padding="SAME")
    begin(world)
    exe = fluid.Executor()
    assert exe.run(feed={"x": np.ones([7, 1, 5, 5], "float32")}, fetch_list=[made])[0].shape == (7, 2, 3, 3)
    with pytest.raises(fluid.FeedError, match="took the size of `x` for a number"):
        exe.run(feed={"x": np.ones([4, 1, 6, 6], "float32")}, fetch_list=[made])


@pytest.mark.parametrize("parallel", [False, True])
def test_random_seed_counts_after_a_refit(world: World, parallel: bool) -> None:
    """Of feeds of other sizes, too, random numbers are those of the program's seed."""
    x = layers.data("x", [4, 30], append_batch_size=False)
    y = layers.dropout(x, 0.5)

    def run(seed: int, exe: fluid.Executor, rows: int) -> bytes:
        world.main.random_seed = seed
        fed = {"x": np.ones([rows, 30], "float32")}
        with fluid.scope_guard(fluid.Scope(seed=1)):
            if parallel:
                return fluid.ParallelExecutor(main_program=world.main, devices=2).run([y], feed=fed)[0].tobytes()
            return exe.run(feed=fed, fetch_list=[y])[0].tobytes()

    used = fluid.Executor()
    for rows in (8, 6):
        first, second = run(3, used, rows), run(9, used, rows)
        assert first != second
        assert (first, second) == (run(3, fluid.Executor(), rows), run(9, fluid.Executor(), rows))


def test_parameters_keep_their_shapes(world: World) -> None:
    """A program that needs a parameter of another shape is refused (REFIT-2)."""
    x = layers.data("x", [4, 3], append_batch_size=False)
    y = layers.fc(layers.transpose(x, [1, 0]), 2, param_attr="w", bias_attr=False)
    begin(world)
    exe = fluid.Executor()
    assert exe.run(feed={"x": np.ones([4, 5], "float32")}, fetch_list=[y])[0].shape == (5, 2)
    with pytest.raises(fluid.FeedError, match="does not fit"):
        exe.run(feed={"x": np.ones([6, 3], "float32")}, fetch_list=[y])
    assert world.scope["w"].shape == (4, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_highest_of_a_batch(world: World, dtype: str) -> None:
    x = fluid.data("x", [None, 3, 2], dtype)
    high, low = layers.argmax(x, 0), layers.argmin(x, axis=0)
    assert high.shape == (3, 2)
    given = np.random.default_rng(1).standard_normal([7, 3, 2]).astype(dtype)
    exe = fluid.Executor()
    for n in (7, 4, 1):
        got = exe.run(feed={"x": given[:n]}, fetch_list=[high, low])
        np.testing.assert_array_equal(got[0], given[:n].argmax(0))
        np.testing.assert_array_equal(got[1], given[:n].argmin(0))
    # Of its samples, on each device.
    parallel = fluid.ParallelExecutor(main_program=world.main, devices=2)
    both = parallel.run([fluid.Fetch(high, "unmerged")], feed={"x": given[:6]})[0]
    np.testing.assert_array_equal(both, [given[:3].argmax(0), given[3:6].argmax(0)])


def _ids(dtype: str) -> list[Any]:
    """What layers give that take numbers of something, with numbers of this type."""
    with fluid.unique_name.guard(), fluid.program_guard(fluid.Program(), fluid.Program()):
        scope = fluid.Scope(seed=2)
        x = fluid.data("x", [None, 4])
        ids, column = fluid.data("ids", [None], dtype), fluid.data("column", [None, 1], dtype)
        pairs = fluid.data("pairs", [None, 2], dtype)
        words = layers.data("words", [1], dtype=dtype, lod_level=1, max_length=3)
        scores = layers.fc(layers.embedding(words, [6, 3]), 4)
        length = fluid.data("length", [None], dtype)
        padded = fluid.data("padded", [None, 3, 4])
        tags = fluid.data("tags", [None, 3], dtype)
        out = [
            layers.accuracy(x, column),
            layers.accuracy(x, column, k=2),
            layers.cross_entropy(layers.softmax(x), column),
            layers.softmax_with_cross_entropy(x, column),
            layers.embedding(column, [6, 3]),
            fluid.embedding(ids, [6, 3]),
            layers.one_hot(column, 6),
            fluid.one_hot(ids, 6),
            layers.gather(layers.embedding(column, [6, 3]), ids),
            layers.gather_nd(x, pairs),
            layers.scatter(x, ids, x * 2.0, overwrite=False),
            layers.hsigmoid(x, column, 6),
            layers.nce(x, column, 6, num_neg_samples=2),
            layers.auc(layers.softmax(x), layers.cast(layers.cast(column, "bool"), dtype))[0],
            layers.sequence_mask(length, 3),
            layers.linear_chain_crf(padded, tags, fluid.ParamAttr("crf"), length=length),
            layers.crf_decoding(padded, fluid.ParamAttr("crf"), label=tags, length=length),
            layers.edit_distance(words, words)[0],
            layers.sequence_pool(scores, "sum"),
            layers.switch_case(layers.fill_constant([1], dtype, 1), [lambda: x, lambda: x * 3.0]),
        ]
        random = np.random.default_rng(4)
        numbers = np.array([0, 3, 1], dtype)
        fed = {
            "x": random.standard_normal([3, 4]).astype("float32"),
            "ids": np.array([0, 2, 1], dtype),
            "column": numbers.reshape(3, 1),
            "pairs": np.array([[0, 1], [2, 3], [1, 0]], dtype),
            "words": [[[1], [5]], [[2]], [[3], [4], [0]]],
            "length": np.array([1, 2, 3], dtype),
            "padded": random.standard_normal([3, 3, 4]).astype("float32"),
            "tags": np.array([[0, 1, 2], [3, 0, 0], [1, 1, 1]], dtype),
        }
        exe = fluid.Executor()
        with fluid.scope_guard(scope):
            exe.run(fluid.default_startup_program())
            return exe.run(fluid.default_main_program(), fed, out)


def test_ids_of_int32_are_as_good(world: World) -> None:
    for small, large in zip(_ids("int32"), _ids("int64"), strict=True):
        np.testing.assert_array_equal(small, large)


def _loader(**given: Any) -> Any:
    return fluid.io.DataLoader.from_generator(capacity=4, return_list=True, **given)


@pytest.mark.parametrize("make", [_loader, lambda: fluid.io.PyReader(capacity=4, return_list=True)])
def test_lists_need_no_variables(world: World, make: Callable[[], Any]) -> None:
    samples = make()
    samples.set_sample_generator(lambda: (([0.5, i], i) for i in range(5)), 2, drop_last=False)
    got = [parts for (parts,) in samples()]
    assert [[(a.dtype.name, a.shape) for a in parts] for parts in got] == [
        [("float32", (n, 2)), ("int64", (n,))] for n in (2, 2, 1)
    ]
    np.testing.assert_array_equal(np.concatenate([parts[1] for parts in got]), range(5))
    lists = make()
    lists.set_sample_list_generator(lambda: iter([[(np.ones(3), 1), (np.zeros(3), 2)]]))
    ((parts,),) = lists()
    assert parts[0].dtype == np.float64 and parts[0].shape == (2, 3)
    batches = make()
    batches.set_batch_generator(lambda: iter([(np.ones([2, 3]), [1, 2])]), places=fluid.cpu_places(1))
    ((parts,),) = batches()
    assert parts[1].tolist() == [1, 2]
    ragged = make()
    ragged.set_sample_list_generator(lambda: iter([[([1],), ([1, 2],)]]))
    with pytest.raises(fluid.FeedError, match="lod_level=1"):
        list(ragged())
    uneven = make()
    uneven.set_sample_list_generator(lambda: iter([[(1, 2), (1,)]]))
    with pytest.raises(fluid.FeedError, match="sample 1 has 1 parts, and sample 0 has 2"):
        list(uneven())


def test_lists_are_those_of_the_programs_feeds(world: World) -> None:
    x, label = layers.data("x", [2]), layers.data("label", [1], dtype="int64")
    reader = _loader()
    reader.set_sample_generator(lambda: (([0.5, i], i) for i in range(4)), 2)
    for (parts,) in reader():
        assert [(a.dtype.name, a.shape) for a in parts] == [("float32", (2, 2)), ("int64", (2, 1))]
        fluid.Executor().run(feed=dict(zip(("x", "label"), parts, strict=True)), fetch_list=[x, label])
    with fluid.program_guard(fluid.Program()), pytest.raises(fluid.FeedError, match="return_list=True"):
        fluid.io.DataLoader.from_generator(capacity=4)
    with pytest.raises(fluid.FeedError, match="feed_list is empty"):
        fluid.io.PyReader([], 4, return_list=True)
    with pytest.raises(fluid.FeedError, match="capacity"):
        fluid.io.PyReader([x])


def test_readers_of_declared_variables(world: World) -> None:
    x = layers.data("x", [2])
    y = x * 2.0
    reader = layers.double_buffer(layers.create_py_reader_by_data(4, [x], use_double_buffer=False))
    reader.decorate_batch_generator(lambda: iter([[np.ones([3, 2], "float32")]]))
    reader.start()
    assert layers.read_file(reader).name == "x"
    np.testing.assert_array_equal(fluid.Executor().run(fetch_list=[y])[0], np.full([3, 2], 2.0))
    with pytest.raises(fluid.EOFException):
        fluid.Executor().run(fetch_list=[y])


def test_grouped_filters_begin_as_paddles_do(world: World) -> None:
    """Paddle counts all channels, also those that a group does not see."""
    x = fluid.data("x", [None, 64, 8, 8])
    for groups in (1, 4, 64):
        layers.conv2d(x, 64, 3, groups=groups, param_attr=f"w{groups}", bias_attr=False)
    begin(world)
    for groups in (1, 4, 64):
        wanted = np.sqrt(2 / (64 * 9))
        assert abs(world.scope[f"w{groups}"].std() / wanted - 1) < 0.1
