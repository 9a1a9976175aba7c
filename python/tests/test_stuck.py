"""Who is stuck, and where; who failed first, and why; what a strict world refuses: on real ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ranks import launch, run_ranks

import phalanx
import phalanx.numpy as pn
from phalanx import _phalanx, _stack

#: Ranks and conditions of all scripts here take no longer.
DEADLINE_S = 90

BEGIN = """\
import ctypes, os, sys, threading, time
import numpy, phalanx, phalanx.numpy as pn
from phalanx import _phalanx

def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)  # An engine tells nobody that it waits.

phalanx.init()
pn.allreduce(numpy.ones(1), name="a")
"""


def job(folder: Path, n: int, script: str, begin: str = BEGIN, **env: str) -> tuple[int, list[str], str]:
    """The code, the lines of stdout and stderr, and the path of a script that runs on this number of ranks."""
    path = folder / "script.py"
    path.write_text(begin + script)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    run = launch(n, [sys.executable, str(path), str(folder)], env=env, **pipes)
    try:
        output, _ = run.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        run.terminate()
        raise AssertionError(f"the job hangs: {run.communicate()[0]}") from None
    return run.returncode, output.splitlines(), str(path)


def line_of(path: str, text: str) -> int:
    [number] = [i for i, line in enumerate(Path(path).read_text().splitlines(), 1) if line.strip() == text]
    return number


THINKING = """
reported = os.path.join(sys.argv[1], "reported")

def think():
    until(lambda: os.path.exists(reported))  # here

if phalanx.rank() == 1:
    think()
waiting = pn.allreduce_async(numpy.ones(1), name="b")
if phalanx.rank() == 0:
    until(lambda: _phalanx.last_stall() is not None)
    open(reported, "w").close()
assert waiting.wait()[0] == 1
"""


def test_a_stall_is_told_once_with_the_line_of_the_missing_rank(tmp_path: Path, n: int) -> None:
    code, lines, path = job(tmp_path, n, THINKING, PHALANX_STALL_WARN="1")
    text = "\n".join(lines)
    assert code == 0, text
    # Somewhere inside until(), or in the condition that it asks.
    line = line_of(path, "until(lambda: os.path.exists(reported))  # here")
    called = rf"    called from {re.escape(path)}:{line} in think"
    report = lines.index("phalanx: stalled: some ranks have not submitted these tensors:")
    assert re.fullmatch(r"  allreduce\.b: waiting \d+\.\d s for rank 1", lines[report + 1]), text
    assert any(re.fullmatch(called, line) for line in lines[report:]), text
    assert any(re.fullmatch(rf"  rank 1: is at {re.escape(path)}:\d+ in \S+", line) for line in lines[report:]), text
    # Once: the launcher has said it for all of them.
    assert not any("phalanx: allreduce" in line for line in lines), text


NATIVE = """
reported = os.path.join(sys.argv[1], "reported")
if phalanx.rank() == 1:
    # C code that keeps the GIL until somebody writes.
    ctypes.PyDLL(None).read(os.open(reported, os.O_RDWR), ctypes.create_string_buffer(1), 1)
waiting = pn.allreduce_async(numpy.ones(1), name="b")
if phalanx.rank() == 0:
    until(lambda: _phalanx.last_stall() is not None)
    os.write(os.open(reported, os.O_RDWR), b"x")
waiting.wait()
"""


def test_a_rank_inside_native_code_is_said_to_be_there(tmp_path: Path, n: int) -> None:
    """PY-1: the engine answers for a rank whose interpreter is locked."""
    os.mkfifo(tmp_path / "reported")
    code, lines, _ = job(tmp_path, n, NATIVE, PHALANX_STALL_WARN="1")
    assert code == 0, lines
    assert "  rank 1: did not say where it is: its Python is inside native code" in lines, lines


# Ranks with one name for two operations: each waits for the other, and neither for itself.
CROSSED = """
def gather():
    return pn.allgather(numpy.ones(1), name="b")

def reduce():
    return pn.allreduce(numpy.ones(1), name="b")

try:
    gather() if phalanx.rank() == 1 else reduce()
except phalanx.StalledError as error:
    print("stalled", sorted(error.ranks), error, flush=True)
"""


def test_a_rank_that_waits_in_another_collective_is_said_to_wait_there(tmp_path: Path, n: int) -> None:
    code, lines, path = job(tmp_path, n, CROSSED, PHALANX_STALL_WARN="1", PHALANX_STALL_ABORT="2")
    assert code == 0, lines
    told = {line.split(" | ", 1)[1] for line in lines if "stalled [" in line}
    assert len(told) == 1, lines
    gather, reduce = (line_of(path, f'return pn.all{kind}(numpy.ones(1), name="b")') for kind in ("gather", "reduce"))
    others = [r for r in range(n) if r != 1]
    late = r"waited \d+\.\d s for (rank|ranks) [\d, ]+, which is longer than PHALANX_STALL_ABORT allows"
    gathers = rf"stalled \[1\] allreduce\.b {late}; rank 1 waits in allgather\.b and is at {path}:{gather} in gather"
    reduces = rf"stalled {re.escape(str(others))} allgather\.b {late}"
    reduces += "".join(rf"; rank {r} waits in allreduce\.b and is at {path}:{reduce} in reduce" for r in others)
    assert re.fullmatch(f"{gathers}|{reduces}", told.pop()), lines


ELSEWHERE = """
some = phalanx.add_process_set([1, 2])
try:
    if phalanx.rank() == 1:
        pn.allreduce(numpy.ones(1), name="c", process_set=some)
    pn.allreduce(numpy.ones(1), name="b")
except phalanx.FailureError:
    # Whichever set gives up first ends its ranks, and with them everybody.
    print("over", flush=True)
"""


def test_a_rank_that_waits_in_another_process_set_is_said_to_wait_there(tmp_path: Path) -> None:
    code, lines, _ = job(tmp_path, 4, ELSEWHERE, PHALANX_STALL_WARN="1", PHALANX_STALL_ABORT="3")
    assert code == 0, lines
    assert "  rank 1: waits in allreduce.c of process set 1" in lines, lines
    assert "  rank 2: waits in allreduce.b of process set 0" in lines, lines
    assert sum(line.endswith("| over") for line in lines) == 4, lines


RAISING = """
def deep(what):
    raise KeyError("mine\\x1b[2J" + what)

def main():
    if phalanx.rank() == 1:
        deep("")
    pn.allreduce(numpy.ones(1), name="b")

"""


def last_failure(lines: list[str]) -> list[str]:
    """What the launcher says last: its header and the lines that follow."""
    header = max(i for i, line in enumerate(lines) if line.startswith("phalanx: "))
    assert all(line.startswith("  | ") for line in lines[header + 1 :]), lines
    return lines[header:]


def expect_key_error(lines: list[str], path: str) -> None:
    header, first, *rest = last_failure(lines)
    assert header == "phalanx: the first failure was on rank 1 on localhost:", lines
    assert first == "  | Traceback (most recent call last):", lines
    line = line_of(path, 'raise KeyError("mine\\x1b[2J" + what)')
    place = f'  |   File "{path}", line {line}, in deep'
    assert place in rest, lines
    assert rest[-1] == "  | KeyError: 'mine\\x1b[2J'", lines
    assert sum(line.startswith("  | KeyError") for line in lines) == 1, lines


def test_the_traceback_of_the_first_failure_is_the_last_thing_said(tmp_path: Path, n: int) -> None:
    code, lines, path = job(tmp_path, n, RAISING + "main()\n")
    assert code == 1
    expect_key_error(lines, path)


def test_it_is_also_when_that_rank_shut_down_on_its_way_out(tmp_path: Path, n: int) -> None:
    # The others hear of the shutdown, and end, before the first failure has said a word.
    ending = "try:\n    main()\nfinally:\n    phalanx.shutdown()\n"
    code, lines, path = job(tmp_path, n, RAISING + ending)
    assert code == 1
    expect_key_error(lines, path)


def test_an_exception_before_init_is_shown_from_stderr(tmp_path: Path, n: int) -> None:
    begin = "import os\nif os.environ['PHALANX_RANK'] == '1': raise ImportError('no such data')\n"
    code, lines, _ = job(tmp_path, n, "", begin + BEGIN)
    assert code == 1
    header, first, *_, error = last_failure(lines)
    assert header == "phalanx: the last lines of rank 1 on localhost on stderr:", lines
    assert (first, error) == ("  | Traceback (most recent call last):", "  | ImportError: no such data"), lines


THREAD = """
def work():
    raise ValueError("in a thread")

if phalanx.rank() == 1:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    os._exit(3)
pn.allreduce(numpy.ones(1), name="b")
"""


def test_an_exception_in_a_thread_explains_an_end_that_nothing_else_does(tmp_path: Path, n: int) -> None:
    code, lines, _ = job(tmp_path, n, THREAD)
    assert code == 3, lines
    header, *_, error = last_failure(lines)
    assert header == "phalanx: the first failure was on rank 1 on localhost:", lines
    assert error == "  | ValueError: in a thread", lines


def strict() -> list[str]:
    said = []
    for call in [lambda: phalanx.broadcast_object({"a": 1}), lambda: phalanx.allgather_object(1)]:
        with pytest.raises(phalanx.UnsupportedError) as caught:
            call()
        said.append(str(caught.value))
    # Nothing was sent: the ranks are where they were.
    assert pn.allreduce(np.ones(1), op=phalanx.Sum)[0] == phalanx.size()
    return said


def test_a_strict_world_refuses_to_pickle_before_anything_is_sent(n: int) -> None:
    for said in run_ranks(n, strict, fresh=True, env={"PHALANX_STRICT": "1"}):
        assert said[0].startswith("broadcast_object pickles objects, which PHALANX_STRICT=1 forbids")
        assert said[1].startswith("allgather_object pickles objects, which PHALANX_STRICT=1 forbids")


def test_ranks_that_disagree_about_strictness_do_not_form_a_world(tmp_path: Path, n: int) -> None:
    begin = "import os\nif os.environ['PHALANX_RANK'] == '1': os.environ['PHALANX_STRICT'] = '1'\n"
    code, lines, _ = job(tmp_path, n, "", begin + BEGIN)
    assert code == 1
    assert any("a setting differs" in line and "PHALANX_STRICT=1" in line for line in lines), lines


def test_frames_inside_the_package_are_passed_over() -> None:
    package = str(Path(phalanx.__file__).parent / "numpy.py")
    stack = [(package, 1, "wait"), ("<frozen importlib>", 2, "x"), ("a.py", 3, "f"), (package, 4, "g")]
    _stack.install()
    assert _stack._outside(stack) == stack[2:]
    assert _stack._outside(stack[:2]) == stack[:2], "better than nothing"
    assert len(_stack._outside(stack * 5)) == 4


def test_a_panic_is_an_exception() -> None:
    with pytest.raises(phalanx.PhalanxError, match="phalanx has a bug, please report it: as ordered"):
        _phalanx._panic("as ordered")
