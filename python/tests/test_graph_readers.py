"""What readers give: every batch once and in order, also after runs that did not happen."""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, doubled, loader, numbers, world

import phalanx.graph as fluid

__all__ = ["world"]

#: For a thread to end; nothing here takes so long unless it hangs.
SOON_S = 30


@pytest.mark.parametrize("keep_order", [True, False])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_hundred_epochs_give_every_batch_once_and_in_order(world: World, devices: int, keep_order: bool) -> None:
    x, y = doubled()
    reader = loader(x, iterable=False, keep_order=keep_order)
    reader.set_batch_generator(numbers(10))
    exe = fluid.ParallelExecutor(main_program=world.main, devices=devices)
    for epoch in range(100):
        reader.start()
        seen: list[float] = []
        with pytest.raises(fluid.core.EOFException, match="no more batches"):
            while True:
                seen += (exe.run([y])[0].ravel() / 2).tolist()
        reader.reset()
        assert seen == list(range(10)), epoch


def test_reset_in_the_middle_begins_again(world: World) -> None:
    x, y = doubled()
    reader = loader(x, iterable=False)
    reader.set_batch_generator(numbers(10))
    exe = fluid.Executor()
    for stop in (0, 1, 3, 10):
        reader.start()
        assert [exe.run(world.main, fetch_list=[y])[0].item() for _ in range(stop)] == [2 * i for i in range(stop)]
        reader.reset()
    with pytest.raises(fluid.FeedError, match="was not started; call start") as caught:
        exe.run(world.main, fetch_list=[y])
    assert caught.value.var == "x"


def test_iterable_epochs_and_compiled_programs(world: World) -> None:
    x, y = doubled()
    reader = loader(x).set_sample_generator(
        lambda: ((np.float32(i),) for i in range(10)), 4, drop_last=False, places=fluid.cpu_places(1)
    )
    compiled = fluid.CompiledProgram(world.main).with_data_parallel(places=fluid.cpu_places(2))
    for _ in range(100):
        # What was made for one place is split.
        seen = [fluid.Executor().run(compiled, feed=data, fetch_list=[y])[0] for data in reader()]
        assert [len(part) for part in seen] == [4, 4, 2]
        assert (np.concatenate(seen).ravel() / 2).tolist() == list(range(10))
    reader.set_sample_generator(lambda: ((np.float32(i),) for i in range(10)), 4)
    assert [len(data[0]["x"]) for data in reader] == [4, 4]


@pytest.mark.parametrize(("drop_last", "runs"), [(True, 25), (False, 26)])
def test_a_hundred_and_one_batches_on_four_devices(world: World, drop_last: bool, runs: int) -> None:
    x, y = doubled()
    exe = fluid.ParallelExecutor(main_program=world.main, devices=4)
    reader = loader(x, drop_last=drop_last).set_batch_generator(numbers(101, rows=3), fluid.cpu_places(4))
    seen, sizes = [], []
    for data in reader():
        assert isinstance(data, list)
        sizes.append(len(data))
        seen.append(exe.run([y], feed=data)[0])
    assert sizes == [4] * 25 + [1] * (runs - 25)
    got = np.concatenate(seen)[::3].ravel() / 2
    assert got.tolist() == list(range(100 if drop_last else 101))
    # The same without iteration.
    still = loader(x, drop_last=drop_last, iterable=False).set_batch_generator(numbers(101, rows=3))
    still.start()
    again: list[Any] = []
    with pytest.raises(fluid.EOFException):
        while True:
            again.append(exe.run([y])[0])
    assert np.array_equal(np.concatenate(again), np.concatenate(seen))


def test_idle_devices_learn_what_one_device_learns(world: World) -> None:
    x, label = fluid.layers.data("x", [2]), fluid.layers.data("label", [1], dtype="int64")
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(x, 3), label))
    fluid.optimizer.SGD(0.5).minimize(loss)
    random = np.random.default_rng(1)
    samples = [(random.standard_normal(2).astype("float32"), int(i % 3)) for i in range(5 * 2)]
    build = fluid.BuildStrategy()
    build.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.BySamples
    learned = []
    for devices in (1, 4):
        begin(world)
        exe = fluid.ParallelExecutor(
            loss_name=loss.name, main_program=world.main, build_strategy=build, devices=devices
        )
        batches = fluid.io.DataLoader.from_generator([x, label], capacity=8, drop_last=False)
        batches.set_sample_generator(lambda: iter(samples), 2 * (4 // devices), False, fluid.cpu_places(devices))
        for data in batches():
            exe.run([], feed=data)
        learned.append(world.scope["fc_0.w_0"])
    np.testing.assert_allclose(learned[0], learned[1], rtol=1e-5, atol=1e-6)


def learned(how: str, devices: int) -> bytes:
    """All parameters after two epochs, fed in this way."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=1)
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        _, loss = classifier()
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
        fluid.Executor().run(startup)
        compiled = fluid.CompiledProgram(main).with_data_parallel(loss_name=loss.name, places=devices)
        exe = fluid.Executor()
        batches = [batch(8, seed=i) for i in range(6)]
        feed_list = [main.var("x"), main.var("label")]
        loader = fluid.io.DataLoader.from_generator(feed_list, capacity=2, iterable=how == "iterable")
        loader.set_batch_generator(lambda: iter(batches), places=fluid.cpu_places(devices))
        for _ in range(2):
            if how == "fed":
                for i in range(0, 6, devices):
                    exe.run(compiled, feed=batches[i : i + devices])
            elif how == "iterable":
                for data in loader():
                    exe.run(compiled, feed=data)
            else:
                loader.start()
                with pytest.raises(fluid.EOFException):
                    while True:
                        exe.run(compiled)
                loader.reset()
        return b"".join(scope[p.name].tobytes() for p in main.all_parameters())


@pytest.mark.parametrize("devices", [1, 2])
def test_readers_train_the_bits_that_feeds_train(devices: int) -> None:
    assert learned("fed", devices) == learned("iterable", devices) == learned("started", devices)


def test_one_device_takes_a_list_of_one(world: World) -> None:
    _, y = doubled()
    exe = fluid.Executor()
    one = {"x": np.ones([3, 1], "float32")}
    assert exe.run(world.main, feed=[one], fetch_list=[y])[0].ravel().tolist() == [2, 2, 2]
    with pytest.raises(fluid.FeedError, match="for 2 devices, but an Executor has one"):
        exe.run(world.main, feed=[one, one], fetch_list=[y])


def test_devices_take_their_batches_in_pieces(world: World) -> None:
    x, y = doubled()
    loss = fluid.layers.mean(fluid.layers.fc(y, 1))
    fluid.optimizer.SGD(0.5).minimize(loss)
    build = fluid.BuildStrategy()
    build.accumulate = 3
    exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, build_strategy=build, devices=2)
    begin(world)
    reader = loader(x, drop_last=False).set_batch_generator(numbers(5, rows=4), fluid.cpu_places(2))
    got = [exe.run([y], feed=data)[0].ravel().tolist() for data in reader()]
    assert got == [[0] * 4 + [2] * 4, [4] * 4 + [6] * 4, [8] * 4]


def test_devices_without_a_dict_are_idle_but_a_loader_for_fewer_places_is_a_mistake(world: World) -> None:
    x, y = doubled()
    exe = fluid.ParallelExecutor(main_program=world.main, devices=4)
    two = list(next(iter(loader(x).set_batch_generator(numbers(2), fluid.cpu_places(2)))))
    assert exe.run([y], feed=two)[0].ravel().tolist() == [0, 2]
    groups = loader(x).set_batch_generator(numbers(2), fluid.cpu_places(2))
    with pytest.raises(fluid.FeedError, match="for 2 replicas, but there are 4"):
        exe.run([y], feed=next(groups()))


def broken_after(n: int, error: BaseException) -> Iterator[list[Any]]:
    yield from numbers(n)()
    raise error


def test_an_error_of_the_reader_comes_out_after_what_was_read(world: World) -> None:
    x, y = doubled()
    reader = loader(x).set_batch_generator(lambda: broken_after(3, ZeroDivisionError("at three")))
    for _ in range(3):
        seen = []
        with pytest.raises(ZeroDivisionError, match="at three") as caught:
            for data in reader():
                seen.append(fluid.Executor().run(world.main, feed=data, fetch_list=[y])[0].item())
        assert seen == [0, 2, 4]
        assert "in broken_after" in "".join(traceback.format_tb(caught.value.__traceback__))
    # Without iteration it is no end of data either, and stays an error until it is reset.
    still = loader(x, iterable=False).set_batch_generator(lambda: broken_after(1, ZeroDivisionError("at one")))
    still.start()
    exe = fluid.ParallelExecutor(main_program=world.main, devices=2)
    with pytest.raises(ZeroDivisionError, match="at one"):
        exe.run([y])
    with pytest.raises(RuntimeError, match="has already failed"):
        exe.run([y])
    still.reset()
    still.set_batch_generator(numbers(2))
    still.start()
    assert exe.run([y])[0].ravel().tolist() == [0, 2]


@pytest.mark.parametrize("error", [StopIteration("odd"), fluid.EOFException("odd")])
def test_an_error_that_looks_like_the_end_is_not_the_end(world: World, error: BaseException) -> None:
    x, y = doubled()

    class Odd:
        def __iter__(self) -> Odd:
            raise error

        def __next__(self) -> Any:
            raise AssertionError

    for iterable in (True, False):
        reader = loader(x, iterable=iterable).set_batch_generator(Odd)
        with pytest.raises(RuntimeError, match=r"raised .*(odd|StopIteration)") as caught:
            if iterable:
                next(reader())
            reader.start()
            fluid.Executor().run(world.main, fetch_list=[y])
        assert caught.value.__cause__ is error


def test_the_end_hides_no_error_of_an_operation(world: World) -> None:
    words = fluid.data("words", [None, 1], "int64")
    rows = fluid.layers.embedding(words, [10, 2])
    begin(world)
    reader = loader(words, iterable=False)
    reader.set_batch_generator(lambda: ([np.full([1, 1], i, "int64")] for i in (1, 99)))
    exe = fluid.ParallelExecutor(main_program=world.main, devices=1)
    reader.start()
    exe.run([rows])
    with pytest.raises(fluid.OpError, match="99"):
        exe.run([rows])
    with pytest.raises(fluid.EOFException):
        exe.run([rows])


def late(until: threading.Event) -> Callable[[], Iterator[list[Any]]]:
    """Batches 0 to 3; those after the first come when they may."""

    def batches() -> Iterator[list[Any]]:
        for i, each in enumerate(numbers(4)()):
            if i == 1:
                until.wait()
            yield each

    return batches


def test_no_batch_is_lost_by_waiting_too_short(world: World) -> None:
    x, y = doubled()
    until = threading.Event()
    reader = loader(x, iterable=False, timeout_s=0.2).set_batch_generator(late(until))
    reader.start()
    exe = fluid.ParallelExecutor(main_program=world.main, devices=2)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            exe.run([y])
    until.set()
    reader._running._timeout_s = SOON_S
    assert [exe.run([y])[0].ravel().tolist() for _ in range(2)] == [[0, 2], [4, 6]]
    with pytest.raises(fluid.EOFException):
        exe.run([y])


@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_that_did_not_happen_takes_no_batch(world: World, devices: int) -> None:
    a, b = (fluid.data(name, [None, 1]) for name in "ab")
    out = fluid.layers.fc(a + b, 1, param_attr=fluid.initializer.Constant(1.0), bias_attr=False)
    given = np.zeros([devices, 1], "float32")
    readers = [loader(v, iterable=False).set_batch_generator(numbers(n * devices)) for v, n in ((a, 3), (b, 2))]
    exe = fluid.ParallelExecutor(main_program=world.main, devices=devices)
    alone = fluid.Executor()
    runs: list[Callable[..., Any]] = [lambda fetch, feed=None: exe.run(fetch, feed=feed)]
    if devices == 1:
        runs.append(lambda fetch, feed=None: alone.run(world.main, feed=feed, fetch_list=fetch))
    for run in runs:
        for reader in readers:
            reader.start()
        if run is runs[0]:
            with pytest.raises(fluid.UninitialisedError):
                run([out])
            begin(world)
        with pytest.raises(fluid.FetchError, match="`nobody` is fetched"):
            run(["nobody"])
        with pytest.raises(fluid.FeedError, match="`c` is fed"):
            run([out], {"c": given})
        with pytest.raises(fluid.FeedError):
            run([out], {"c": "no array"})
        seen = [run([out])[0].ravel().tolist() for _ in range(2)]
        assert seen == [[2.0 * (i * devices + k) for k in range(devices)] for i in range(2)]
        # The second has no more, and the first is asked again once it is fed.
        for _ in range(2):
            with pytest.raises(fluid.EOFException, match="the loader of b "):
                run([out])
        assert run([out], {"b": given})[0].ravel().tolist() == [2.0 * devices + k for k in range(devices)]
        for reader in readers:
            reader.reset()


def test_nothing_waits_for_a_wrong_name(world: World) -> None:
    x, _ = doubled()
    until = threading.Event()
    reader = loader(x, iterable=False, timeout_s=SOON_S).set_batch_generator(late(until))
    reader.start()
    exe = fluid.ParallelExecutor(main_program=world.main, devices=2)
    # With two devices it would wait for the second batch.
    with pytest.raises(fluid.FetchError, match="`nobody` is fetched"):
        exe.run(["nobody"])
    until.set()


def test_reset_forgets_what_was_handed_back(world: World) -> None:
    x, y = doubled()
    reader = loader(x, iterable=False).set_batch_generator(numbers(3))
    exe = fluid.Executor()
    for _ in range(2):
        reader.start()
        assert exe.run(world.main, fetch_list=[y])[0].item() == 0
        with pytest.raises(fluid.FeedError):
            exe.run(world.main, feed={"nobody": 1.0}, fetch_list=[y])
        reader.reset()


def test_tensors_that_are_no_arrays_yet_can_be_given_again(world: World) -> None:
    x, y = doubled()
    exe = fluid.ParallelExecutor(main_program=world.main, devices=2)
    ones = {"x": np.ones([2, 1], "float32")}
    (tensor,) = exe.run([y], feed=ones, return_numpy=False)
    for iterable in (True, False):
        reader = loader(x, iterable=iterable, drop_last=False)
        reader.set_batch_generator(lambda: ([tensor] for _ in range(3)), fluid.cpu_places(2))
        if iterable:
            got = [exe.run([y], feed=data)[0].ravel().tolist() for data in reader()]
        else:
            reader.start()
            got = [exe.run([y])[0].ravel().tolist() for _ in range(2)]
        assert got == [[4] * 4, [4] * 2]


@pytest.mark.parametrize(
    ("dtype", "value", "says"),
    [
        ("int64", 1.7, "1.7"),
        ("int64", float("nan"), "nan"),
        ("int64", 2**70, str(2**70)),
        ("int32", 2**40 + 5, "1099511627781"),
        ("uint8", -1, "-1"),
        ("uint8", 256, "256"),
        ("int64", "a", "<U21[1, 2]"),
        ("int64", None, "None"),
    ],
)
def test_numbers_that_a_type_cannot_hold_are_refused(world: World, dtype: str, value: Any, says: str) -> None:
    n = fluid.layers.data("n", [2], dtype=dtype)
    for way in (
        lambda: next(loader(n).set_batch_generator(lambda: [[[[1, value]]]])()),
        lambda: next(loader(n).set_sample_generator(lambda: [([1, value],)], 1)()),
        lambda: fluid.DataFeeder([n]).feed([([1, value],)]),
    ):
        with pytest.raises(fluid.FeedError, match=f"`n` wants {dtype}.*test_graph_readers.py") as caught:
            way()
        assert caught.value.var == "n"
    with pytest.raises(fluid.FeedError, match=f"cannot hold {re.escape(says)}$"):
        next(loader(n).set_batch_generator(lambda: [[[[1, value]]]])())
    # Whole numbers of other types are no trouble, and parts of different lengths are told as such.
    assert next(loader(n).set_batch_generator(lambda: [[[[1.0, 2.0]]]])())[0]["n"].dtype == dtype
    with pytest.raises(fluid.FeedError, match="`n`: the batch is a list whose parts differ in shape"):
        next(loader(n).set_batch_generator(lambda: [[[[1], [1, 2]]]])())


def test_older_names(world: World) -> None:
    x, label = fluid.layers.data("x", [2]), fluid.layers.data("label", [1], dtype="int64")
    both = fluid.layers.reduce_sum(x, dim=1, keep_dim=True) + fluid.layers.cast(label, "float32")
    samples = [([float(i), 1.0], i) for i in range(4)]
    exe = fluid.Executor()
    reader = fluid.io.PyReader([x, label], capacity=2)
    for decorate in (
        lambda: reader.decorate_sample_generator(lambda: iter(samples), batch_size=2, places=fluid.CPUPlace()),
        lambda: reader.decorate_sample_list_generator(fluid.batch(lambda: iter(samples), 2)),
        lambda: reader.decorate_paddle_reader(fluid.batch(lambda: iter(samples), 2)),
        lambda: reader.decorate_batch_generator(
            lambda: ([np.array([s[0] for s in samples], "float32"), np.array([[s[1]] for s in samples])] for _ in (0,))
        ),
    ):
        decorate()
        got = np.concatenate([exe.run(world.main, feed=data, fetch_list=[both])[0] for data in reader()])
        assert got.ravel().tolist() == [2 * i + 1 for i in range(4)]
    as_lists = fluid.io.PyReader([x, label], capacity=2, return_list=True)
    as_lists.decorate_sample_generator(lambda: iter(samples), batch_size=4)
    (((first, second),),) = list(as_lists())
    assert first.shape == (4, 2) and second.ravel().tolist() == [0, 1, 2, 3]


def test_py_reader_declares_what_it_gives(world: World) -> None:
    reader = fluid.layers.py_reader(capacity=2, shapes=[[-1, 2], [-1, 1]], dtypes=["float32", "int64"])
    x, label = fluid.layers.read_file(reader)
    y = x * 2.0
    reader.decorate_tensor_provider(lambda: ([np.ones([3, 2], "float32"), np.ones([3, 1], "int64")] for _ in range(2)))
    exe = fluid.Executor()
    for _ in range(2):
        reader.start()
        n = 0
        with pytest.raises(fluid.core.EOFException):
            while True:
                assert exe.run(world.main, fetch_list=[y, label])[0].shape == (3, 2)
                n += 1
        assert n == 2
        reader.reset()


def test_what_is_fed_goes_before_the_loader(world: World) -> None:
    a, b, c = (fluid.data(name, [None, 1]) for name in "abc")
    y = a + b + c
    reader = fluid.io.DataLoader.from_generator([a, b], capacity=2, iterable=False)
    reader.set_batch_generator(lambda: ([np.ones([2, 1], "float32")] * 2 for _ in range(3)))
    one = np.full([2, 1], 10, "float32")
    exe = fluid.ParallelExecutor(main_program=world.main, devices=2)
    assert exe.run([y], feed={"a": one, "b": one, "c": one})[0].ravel().tolist() == [30, 30]
    reader.start()
    (got,) = exe.run([y], feed={"c": np.full([4, 1], 10, "float32")})
    assert got.ravel().tolist() == [12] * 4
    with pytest.raises(fluid.FeedError, match="feed all or none"):
        exe.run([y], feed={"a": one, "c": one})


def test_wrong_loaders_are_refused_in_words(world: World) -> None:
    x, y = doubled()
    make = fluid.io.DataLoader.from_generator
    for given, says in [
        ({"use_multiprocess": True}, "readers run in a thread"),
        ({"capacity": 0}, "capacity=0"),
        ({"capacity": True}, "capacity=True"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"timeout_s": float("nan")}, "timeout_s=nan"),
        ({"feed_list": []}, "feed_list is empty"),
        ({"feed_list": [y]}, "is computed, not fed"),
        ({"capacity": None}, "needs capacity"),
    ]:
        with pytest.raises(ValueError, match=says):
            make(**{"feed_list": [x], "capacity": 2, **given})
    with pytest.raises(fluid.FeedError, match="no reader yet"):
        next(loader(x)())
    with pytest.raises(fluid.FeedError, match="for data in loader"):
        loader(x).start()
    with pytest.raises(fluid.FeedError, match="call start\\(\\)"):
        iter(loader(x, iterable=False))
    with pytest.raises(TypeError, match="a function that returns a generator"):
        loader(x).set_batch_generator(iter([]))  # type: ignore[arg-type]
    with pytest.raises(fluid.FeedError, match="batch_size=0"):
        loader(x).set_sample_generator(list, 0)
    running = loader(x, iterable=False).set_batch_generator(numbers(2))
    running.start()
    with pytest.raises(fluid.FeedError, match="already running"):
        running.start()
    with pytest.raises(fluid.FeedError, match="reset\\(\\) before you set another"):
        running.set_batch_generator(numbers(2))
    with pytest.raises(fluid.FeedError, match="2 parts, but feed_list has 1: x"):
        next(loader(x).set_batch_generator(lambda: [(1, 2)])())
    with pytest.raises(fluid.FeedError, match="differs from feed_list"):
        next(loader(x).set_batch_generator(lambda: [{"z": 1}])())


def test_samples_become_feeds(world: World) -> None:
    image = fluid.layers.data("image", [1, 2, 2])
    fluid.layers.data("label", [1], dtype="int64")
    feeder = fluid.DataFeeder([image, "label"], fluid.CPUPlace())
    fed = feeder.feed([(np.arange(4.0), 3), ([[5, 6], [7, 8]], np.int32(4))])
    assert fed["image"].shape == (2, 1, 2, 2) and fed["image"].dtype == np.float32
    assert fed["label"].tolist() == [[3], [4]]
    two = list(feeder.feed_parallel([[(np.zeros(4), 0)], [(np.ones(4), 1)] * 2], num_places=2))
    assert [len(each["label"]) for each in two] == [1, 2]
    reader = feeder.decorate_reader(
        lambda: iter([[(np.zeros(4), 0)]] * 5), multi_devices=True, num_places=2, drop_last=False
    )
    assert [len(group) for group in reader()] == [2, 2, 1]
    for samples, says in [
        ([(np.zeros(3), 0)], r"`image` wants float32\[1, 2, 2\] of each sample .*sample 0 has float64\[3\]"),
        ([(np.zeros(4), 0), (np.zeros(4), 0.5)], r"`label` wants int64\[1\].*sample 1 has float64\[\]"),
        ([(np.zeros(4),)], "sample 0 has 1 parts, but feed_list has 2: image, label"),
        ([np.zeros(4)], "sample 0 is a tuple with image, label, not a ndarray"),
    ]:
        with pytest.raises(fluid.FeedError, match=says):
            feeder.feed(samples)
    with pytest.raises(fluid.FeedError, match="samples for 1 devices, but there are 2"):
        feeder.feed_parallel([[(np.zeros(4), 0)]], num_places=2)


def test_readers_can_be_batched_and_shuffled() -> None:
    source = lambda: iter(range(10))  # noqa: E731
    assert [len(b) for b in fluid.batch(source, 4)()] == [4, 4, 2]
    assert [len(b) for b in fluid.batch(source, 4, drop_last=True)()] == [4, 4]
    mixed = fluid.shuffle(source, 100, seed=3)
    assert sorted(mixed()) == list(range(10))
    assert list(mixed()) == list(mixed()) != list(range(10))
    near = list(fluid.shuffle(source, 5)())
    assert sorted(near[:5]) == [0, 1, 2, 3, 4]
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(fluid.FeedError, match="from 1"):
            fluid.shuffle(source, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("iterable", [True, False])
def test_a_reader_may_use_its_array_again(world: World, iterable: bool) -> None:
    """The thread reads ahead, but every batch keeps what it had when it was given."""
    x = fluid.data("x", [None, 1])
    y = fluid.layers.scale(x, 1.0)
    buffer = np.zeros([2, 1], "float32")

    def batches() -> Any:
        for k in range(20):
            buffer[:] = k
            yield (buffer,)

    loader = fluid.io.DataLoader.from_generator(feed_list=[x], capacity=8, iterable=iterable)
    loader.set_batch_generator(batches)
    exe = fluid.ParallelExecutor(main_program=world.main, devices=1)
    seen = []
    if iterable:
        seen = [float(exe.run([y], feed=data)[0][0, 0]) for data in loader()]
    else:
        loader.start()
        with pytest.raises(fluid.core.EOFException):
            while True:
                seen.append(float(exe.run([y])[0][0, 0]))
        loader.reset()
    assert seen == list(range(20))
