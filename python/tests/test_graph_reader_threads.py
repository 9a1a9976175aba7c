"""The thread of a reader: how it ends, and that nobody waits for it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from graphs import World, doubled, loader, numbers, world

import phalanx.graph as fluid
from phalanx._channel import Prefetch
from phalanx.exceptions import ForkedError

__all__ = ["world"]

#: For a thread to end; nothing here takes so long unless it hangs.
SOON_S = 30


def thread_of(batches: Any) -> threading.Thread:
    thread: threading.Thread = batches.thread
    return thread


class Watched:
    """A reader without end, which knows when it was let go."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        self.n_made = 0

    def __call__(self) -> Iterator[list[Any]]:
        try:
            while True:
                self.n_made += 1
                yield [np.zeros([1, 1], "float32")]
        finally:
            self.gone.set()


def test_leaving_the_loop_ends_the_thread(world: World) -> None:
    x, _ = doubled()
    watched = Watched()
    reader = loader(x).set_batch_generator(watched)
    batches = reader()
    thread = thread_of(batches)
    for _ in batches:
        break
    del batches
    assert watched.gone.wait(SOON_S)
    thread.join(SOON_S)
    assert not thread.is_alive()


def test_reset_and_collection_end_the_thread(world: World) -> None:
    for how in ("reset", "collection"):
        main = fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main):
            x, y = doubled()
        watched = Watched()
        reader = loader(x, iterable=False).set_batch_generator(watched)
        reader.start()
        fluid.Executor().run(main, fetch_list=[y])
        thread = thread_of(reader._running)
        if how == "reset":
            reader.reset()
        gone = weakref.ref(reader)
        del main, x, y, reader
        gc.collect()
        assert gone() is None
        assert watched.gone.wait(SOON_S), how
        thread.join(SOON_S)
        assert not thread.is_alive()


def test_the_thread_reads_no_further_than_the_capacity(world: World) -> None:
    x, _ = doubled()
    taken, leads, full = [0], [0], threading.Semaphore(0)

    def ahead() -> Iterator[list[Any]]:
        for i in range(200):
            # One that was taken and not counted yet.
            leads.append(i - taken[0])
            full.release()
            yield [np.full([1, 1], i, "float32")]

    batches = iter(loader(x, capacity=3).set_batch_generator(ahead))
    # Three wait, and the fourth has been read.
    assert all(full.acquire(timeout=SOON_S) for _ in range(4))
    for _ in batches:
        taken[0] += 1
    assert taken == [200]
    assert 3 <= max(leads) <= 4


def test_a_reader_that_blocks_stops_nobody(world: World) -> None:
    x, y = doubled()
    until = threading.Event()

    def stuck() -> Iterator[list[Any]]:
        yield [np.ones([1, 1], "float32")]
        until.wait()
        yield [np.ones([1, 1], "float32")]

    exe = fluid.Executor()
    reader = loader(x, iterable=False, timeout_s=0.2).set_batch_generator(stuck)
    reader.start()
    assert exe.run(world.main, fetch_list=[y])[0].item() == 2
    with pytest.raises(TimeoutError, match=r"gave no batch for 0\.2 s"):
        exe.run(world.main, fetch_list=[y])
    thread = thread_of(reader._running)
    reader.reset()
    reader.set_batch_generator(numbers(2))
    reader.start()
    assert exe.run(world.main, fetch_list=[y])[0].item() == 0
    until.set()
    thread.join(SOON_S)
    assert not thread.is_alive()


def test_ctrl_c_ends_the_wait_for_a_reader(world: World) -> None:
    x, _ = doubled()
    until = threading.Event()

    def stuck() -> Iterator[list[Any]]:
        until.wait()
        yield from ()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            next(loader(x).set_batch_generator(stuck)())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        until.set()


def interrupt_at(event: int) -> Callable[..., None]:
    """A profiler that is Ctrl-C right after this many calls of what is written in C."""
    seen = [0]

    def profile(frame: Any, kind: str, what: Any) -> None:
        if kind == "c_return" and frame.f_code.co_filename.endswith("_channel.py"):
            seen[0] += 1
            if seen[0] == event:
                raise KeyboardInterrupt

    return profile


@pytest.mark.parametrize("n_items", [0, 50])
def test_ctrl_c_at_any_moment_takes_no_room_away(n_items: int) -> None:
    n_hit = 0
    for event in range(1, 20):
        items = Prefetch(lambda: iter(range(n_items)), 1, SOON_S)
        sys.setprofile(interrupt_at(event))
        try:
            next(items, None)
        except KeyboardInterrupt:
            n_hit += 1
        finally:
            sys.setprofile(None)
        # One may be lost, and nothing waits.
        rest = list(items)
        assert rest == list(range(n_items))[n_items - len(rest) :] and len(rest) >= n_items - 1
    assert n_hit > 0


STUCK_AT_EXIT = """\
import threading, numpy as np, phalanx.graph as fluid
x = fluid.data("x", [None, 1])
y = x * 2.0
def forever():
    while True:
        yield [np.zeros([1, 1], "float32")]
def stuck():
    yield [np.zeros([1, 1], "float32")]
    threading.Event().wait()
keep = []
for reader in (forever, stuck):
    loader = fluid.io.DataLoader.from_generator([x], capacity=2)
    keep.append(iter(loader.set_batch_generator(reader)))
    fluid.Executor().run(feed=next(keep[-1]), fetch_list=[y])
print("done")
"""


def test_readers_do_not_keep_a_process_from_ending() -> None:
    run = subprocess.run([sys.executable, "-c", STUCK_AT_EXIT], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


def test_a_forked_child_is_told_and_does_not_wait(world: World) -> None:
    x, _ = doubled()
    batches = iter(loader(x).set_batch_generator(numbers(9)))
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except ForkedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
