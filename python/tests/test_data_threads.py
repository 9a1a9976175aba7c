"""Threads behind data sets: order, errors, and how they end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from phalanx.data import DataError, Dataset, from_list

#: For a thread to end; nothing here takes this long unless it hangs.
SOON_S = 30


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(("phalanx-map", "phalanx-reader"))]


def ended(mine: list[threading.Thread]) -> bool:
    for thread in mine:
        thread.join(SOON_S)
    return not any(thread.is_alive() for thread in mine)


def test_map_uses_threads_and_keeps_the_order() -> None:
    together = threading.Barrier(4)
    used: set[int] = set()

    def meet(n: int) -> int:
        used.add(threading.get_ident())
        # Passes only if four calls run at the same time.
        together.wait(SOON_S)
        return n * n

    assert list(from_list(range(40)).map(meet, num_threads=4)) == [n * n for n in range(40)]
    assert len(used) == 4 and threading.get_ident() not in used
    assert ended(threads())


def test_map_without_threads_uses_none() -> None:
    used = set(from_list(range(9)).map(lambda _: threading.get_ident()))
    assert used == {threading.get_ident()}


@pytest.mark.parametrize("num_threads", [None, 1, 3])
def test_an_error_names_the_element_and_comes_in_its_turn(num_threads: int | None) -> None:
    def inverse(n: int) -> float:
        return 1 / (n - 17)

    elements = iter(from_list(range(100)).map(inverse, num_threads))
    for n in range(17):
        assert next(elements) == 1 / (n - 17)
    with pytest.raises(DataError, match=r"map\(inverse\) failed at element 17: ZeroDivisionError: ") as raised:
        next(elements)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    with pytest.raises(DataError, match="has already failed"):
        next(elements)
    assert ended(threads())


def stop(_: int) -> None:
    raise StopIteration("odd")


@pytest.mark.parametrize("num_threads", [None, 2])
def test_a_function_cannot_end_the_data(num_threads: int | None) -> None:
    with pytest.raises(DataError, match="map.stop. failed at element 0: StopIteration: odd"):
        list(from_list([1]).map(stop, num_threads))


def test_an_error_before_the_threads_comes_after_the_elements_before_it() -> None:
    def failing() -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk")

    elements = iter(Dataset(failing).map(str, num_threads=8).prefetch(4))
    assert [next(elements) for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(OSError, match="the disk"):
        next(elements)
    assert ended(threads())


def test_prefetch_reads_ahead_but_not_further() -> None:
    made: list[int] = []
    enough = threading.Event()

    def endless() -> Iterator[int]:
        n = 0
        while True:
            made.append(n)
            if n == 3:
                enough.set()
            yield n
            n += 1

    with iter(Dataset(endless).prefetch(3)) as elements:
        assert next(elements) == 0
        # One was taken, three wait, and the thread has made the one that waits for room, or is about to.
        assert enough.wait(SOON_S)
        assert made[:4] == [0, 1, 2, 3] and len(made) <= 5
    assert ended(threads())


class Endless:
    """Knows when its generator was let go."""

    def __init__(self) -> None:
        self.gone = threading.Event()

    def __call__(self) -> Iterator[int]:
        try:
            n = 0
            while True:
                yield n
                n += 1
        finally:
            self.gone.set()


def closed(elements: Any) -> None:
    elements.close()


def dropped(elements: Any) -> None:
    del elements


PIPELINES: list[Callable[[Dataset[int]], Dataset[Any]]] = [
    lambda d: d.prefetch(2),
    lambda d: d.map(str, num_threads=2),
    lambda d: d.prefetch(2).map(str, num_threads=2).batch(2).repeat().prefetch(1).shard(1, 0).shuffle(3),
]


@pytest.mark.parametrize("end", [closed, dropped])
@pytest.mark.parametrize("pipeline", range(len(PIPELINES)))
def test_threads_end_with_their_iterator(pipeline: int, end: Callable[[Any], None]) -> None:
    source = Endless()
    elements: Any = iter(PIPELINES[pipeline](Dataset(source)))
    for _ in range(5):
        next(elements)
    mine = threads()
    assert mine
    kept = [elements] if end is closed else []
    end(elements)
    del elements
    gc.collect()
    assert source.gone.wait(SOON_S) and ended(mine)
    for one in kept:
        with pytest.raises(StopIteration):
            next(one)
        one.close()


def test_the_end_of_the_data_ends_the_threads() -> None:
    assert list(from_list(range(5)).map(str, num_threads=3).prefetch(2)) == list("01234")
    assert ended(threads())


def test_no_thread_runs_before_the_first_element() -> None:
    before = threads()
    elements = iter(from_list([1]).map(str, num_threads=2).prefetch(2))
    assert threads() == before
    assert list(elements) == ["1"]
