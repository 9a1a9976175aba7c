"""Memory of results, as numpy, torch and others get it: it lives as long as one of them has it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

import phalanx
from phalanx import _phalanx


@pytest.fixture
def array() -> Iterator[Any]:
    """A result in memory of the engine's own, in a world of one."""
    phalanx.init()
    arrays, _ = _phalanx.submit("allgather", [bytes(range(100))], name="memory").wait()
    yield arrays[0]
    phalanx.shutdown()


class Given:
    """Somebody who hands on what a capsule holds."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


OUTLIVES = """
import gc
import numpy as np
import phalanx
from phalanx import _phalanx

phalanx.init()
# Large enough that memory which is given back is gone.
(array,), _ = _phalanx.submit("allgather", [b"x" * (64 << 20)], name="large").wait()
view = np.asarray(array)
taken = np.from_dlpack(array)
del taken, array
gc.collect()
assert view[0] == view[-1] == ord("x"), view
assert int(view.sum(dtype=np.int64)) == ord("x") * (64 << 20)
"""


def test_a_view_of_numpys_outlives_what_went_through_dlpack() -> None:
    ended = subprocess.run([sys.executable, "-c", OUTLIVES], timeout=120, capture_output=True, text=True)
    assert ended.returncode == 0, (ended.returncode, ended.stderr)


def test_whoever_takes_the_memory_shares_it(array: Any) -> None:
    """ARRAY-1."""
    view, first, second = np.asarray(array), np.from_dlpack(array), np.from_dlpack(array)
    view[3] = 77
    assert first[3] == second[3] == 77
    assert array.tobytes()[3] == 77
    # A capsule of which nobody takes anything.
    array.__dlpack__()
    address = view.ctypes.data
    del view, first
    assert second[3] == 77
    assert second.ctypes.data == address


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_torch_shares_it_too(array: Any) -> None:
    import torch

    view, tensor = np.asarray(array), torch.from_dlpack(array)
    tensor[5] = 88
    assert view[5] == 88


def test_a_copy_is_a_copy_and_what_cannot_be_is_refused(array: Any) -> None:
    copy = np.from_dlpack(Given(array.__dlpack__(copy=True, max_version=(1, 0))))
    assert copy.tobytes() == bytes(range(100))
    np.asarray(array)[0] = 55
    assert copy[0] == 0
    shared = np.from_dlpack(Given(array.__dlpack__(copy=False, dl_device=(1, 0))))
    assert shared[0] == 55
    with pytest.raises(BufferError, match="stream=None"):
        array.__dlpack__(stream=1)
    with pytest.raises(BufferError, match=r"cannot be moved to the device \(2, 0\)"):
        array.__dlpack__(dl_device=(2, 0))
    with pytest.raises(TypeError):
        array.__dlpack__(coppy=True)


def ticks(name: str) -> int | None:
    """Clock ticks that a thread of this process has used, if there is one of this name."""
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().strip() == name[:15]:
                words = (task / "stat").read_text().rpartition(")")[2].split()
                return int(words[11]) + int(words[12])
        except FileNotFoundError:
            continue
    return None


def shuts_down_while_a_thread_waits(fifo: str) -> int | None:
    if phalanx.rank() == 1:
        # Until rank 0 has seen enough.
        Path(fifo).read_text()
        _phalanx.add_process_set([0])
        return None
    used: list[int] = []

    def watch() -> None:
        while (before := ticks("phalanx-shutdown")) is None:
            os.sched_yield()
        began = time.thread_time()
        while time.thread_time() - began < 0.2:
            hashlib.sha256(bytes(100_000)).digest()
        used.append((ticks("phalanx-shutdown") or 0) - before)
        Path(fifo).write_text("enough")

    inside = threading.Thread(target=_phalanx.add_process_set, args=([0],))
    inside.start()
    watcher = threading.Thread(target=watch)
    watcher.start()
    while ticks("phalanx-set") is None:
        os.sched_yield()
    phalanx.shutdown()
    inside.join(60)
    watcher.join(60)
    return used[0]


def test_shutdown_sleeps_while_another_thread_is_inside_a_call() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fifo = os.path.join(folder, "enough")
        os.mkfifo(fifo)
        used, _ = run_ranks(2, shuts_down_while_a_thread_waits, fifo, fresh=True)
    assert used < 5, f"it used {used} ticks of the 20 that another thread took"
