"""``phalanx.distributed``: the golden table of roles, what is refused, and clusters of real processes."""

from __future__ import annotations

import ast
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.distributed import TaskSpec, TaskSpecDef, create_task_spec_def

DEADLINE_S = 60.0
NAMES = ("TF_CONFIG", "JOB_NAME", "TASK_INDEX", "PS_HOSTS", "WORKER_HOSTS", "MASTER_HOST")


@pytest.fixture(autouse=True)
def _no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def golden(spec: TaskSpecDef | None) -> tuple[int, int, bool]:
    assert spec is not None
    return spec.num_workers, spec.shard_index, spec.is_master()


@pytest.mark.parametrize("ps", [None, "p:1"])
def test_the_golden_table_of_roles(ps: str | None) -> None:
    workers = [TaskSpecDef("worker", i, ps_hosts=ps, worker_hosts="a:1,b:1,c:1") for i in range(3)]
    assert [golden(w) for w in workers] == [(3, 0, True), (3, 1, False), (3, 2, False)]
    fewer = [w.user_last_worker_as_evaluator() for w in workers]
    assert [golden(w) for w in fewer[:2]] == [(2, 0, True), (2, 1, False)]
    assert [w.is_evaluator() for w in fewer] == [False, False, True]
    hosts: dict[str, Any] = {"ps_hosts": ps, "worker_hosts": ["a:1", "b:1", "c:1"], "master": "m:1"}
    assert golden(TaskSpecDef(type="master", **hosts)) == (4, 0, True)
    assert [golden(TaskSpecDef("worker", i, **hosts)) for i in range(3)] == [(4, i + 1, False) for i in range(3)]
    last = TaskSpecDef("worker", "2", trial=9, **hosts).use_last_worker_as_evaluator()
    assert (last.is_evaluator(), last.trial, last.type) == (True, 9, "worker")


def test_properties_are_those_of_the_cluster() -> None:
    spec = TaskSpecDef("ps", 1, ps_hosts="p:1, q:1", worker_hosts=["w:1"], master="m:1")
    assert (spec.num_ps, spec.ps_hosts, spec.worker_hosts, spec.master) == (2, ["p:1", "q:1"], ["w:1"], "m:1")
    assert (spec.is_ps(), spec.is_worker(), spec.is_master(), spec.target()) == (True, False, False, "m:1")
    alone = TaskSpecDef()
    assert (golden(alone), alone.type, alone.num_ps, alone.trial) == ((1, 0, True), "master", 0, None)
    assert str(alone.device_fn()) == "variables stay on their workers"
    assert repr(spec) == "<TaskSpecDef ps 1 (2 workers, 2 ps)>"


def test_the_environment_describes_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TaskSpec() is None and create_task_spec_def() is None
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert golden(TaskSpec()) == (1, 0, True)
    cluster = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    spec = TaskSpec()
    assert spec is not None and golden(spec) == (3, 2, False) and spec.num_ps == 1
    monkeypatch.delenv("TF_CONFIG")
    monkeypatch.setenv("JOB_NAME", "worker")
    assert TaskSpec() is None, "a name alone is somebody else's"
    monkeypatch.setenv("TASK_INDEX", "1")
    monkeypatch.setenv("WORKER_HOSTS", "a:1,b:1")
    assert golden(TaskSpec()) == (2, 1, False)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("", "TF_CONFIG is set but empty"),
        ("{", "TF_CONFIG is not JSON"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}', "TF_CONFIG has a task without an index"),
        ('{"task": {"type": "boss", "index": 0}}', 'TF_CONFIG: "boss" is not a type of task'),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "TF_CONFIG: there is no worker 1"),
    ],
)
def test_malformed_variables_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, config: str, said: str) -> None:
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(phalanx.InitializationError) as caught:
        TaskSpec()
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_bad_arguments_are_refused() -> None:
    for arguments, said in [
        ({"task_type": "boss"}, "task_type: "),
        ({"task_type": "worker", "index": -1}, "index: "),
        ({"task_type": "worker", "index": 2, "worker_hosts": "a:1"}, "index: there is no worker 2"),
        ({"task_type": "ps"}, "index: there is no ps 0"),
        ({"master": ["a:1", "b:1"], "worker_hosts": "c:1"}, "master: a cluster has one master"),
    ]:
        with pytest.raises(ValueError, match=f"^{said}"):
            TaskSpecDef(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 worker is too few"):
        TaskSpecDef("worker", 0, ps_hosts="p:1", worker_hosts="a:1").use_last_worker_as_evaluator()


SCRIPT = """
import os, signal, sys
import numpy
import phalanx.numpy as hvd
from phalanx.distributed import TaskSpec

spec = TaskSpec()
if "last" in sys.argv:
    spec = spec.user_last_worker_as_evaluator()
spec.create_server()
if spec.is_ps() or spec.is_evaluator():
    print(spec.type, spec.index, "done", flush=True)
else:
    total = hvd.allreduce(numpy.ones(3, "float32"), op=hvd.Sum, name="x")
    print(spec.type, spec.index, hvd.rank(), hvd.size(), int(total[0]), flush=True)
    if "kill" in sys.argv and spec.shard_index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "task.py"
    path.write_text(SCRIPT)
    yield str(path)


def free_ports(n: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def run_cluster(script: str, tasks: list[tuple[str, int]], *args: str) -> list[tuple[int, str, str]]:
    """Each task as a process that knows of the others from ``TF_CONFIG`` only: exit code, output, errors."""
    n_ps = sum(kind == "ps" for kind, _ in tasks)
    ports = iter(free_ports(len(tasks)))
    cluster: dict[str, list[str]] = {}
    for kind, _ in tasks:
        cluster.setdefault(kind, []).append(f"127.0.0.1:{next(ports)}")
    assert len(cluster.get("ps", [])) == n_ps
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_"))}
    env.update(OMP_NUM_THREADS="1", PHALANX_SECRET="5e" * 32, PHALANX_START_TIMEOUT="30")
    processes = []
    for kind, index in tasks:
        env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        words = [sys.executable, script, *args]
        processes.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        done = [p.communicate(timeout=DEADLINE_S) for p in processes]
    finally:
        for p in processes:
            p.kill()
    return [(p.returncode, out, err) for p, (out, err) in zip(processes, done, strict=True)]


def test_one_ps_and_two_workers_all_end_well(script: str) -> None:
    done = run_cluster(script, [("ps", 0), ("worker", 0), ("worker", 1)])
    assert [code for code, _, _ in done] == [0, 0, 0], done
    assert [out for _, out, _ in done] == ["ps 0 done\n", "worker 0 0 2 2\n", "worker 1 1 2 2\n"]


def test_a_killed_worker_ends_the_ps_with_an_error_that_names_it(script: str) -> None:
    ps, first, second = run_cluster(script, [("ps", 0), ("worker", 0), ("worker", 1)], "kill")
    assert second[0] == -signal.SIGKILL
    assert first[0] == 0, first
    assert ps[0] == 1 and "RankLostError: rank 1 is lost: " in ps[2], ps


def test_the_last_worker_evaluates_beside_a_master(script: str) -> None:
    done = run_cluster(script, [("master", 0), ("worker", 0), ("worker", 1)], "last")
    assert [code for code, _, _ in done] == [0, 0, 0], done
    assert [out for _, out, _ in done] == ["master 0 0 2 2\n", "worker 0 1 2 2\n", "worker 1 done\n"]


def launcher(script: str, *flags: str, args: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_"))}
    env["OMP_NUM_THREADS"] = "1"
    words = [sys.executable, "-m", "phalanx", *flags, script, *args]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_the_launcher_starts_servers_and_an_evaluator(script: str) -> None:
    done = launcher(script, "train", "-s", "1", "-w", "2", "-e")
    assert done.returncode == 0, done
    lines = sorted(line.strip() for line in done.stdout.splitlines())
    assert lines == ["0 | worker 0 0 2 2", "1 | worker 1 1 2 2", "2 | ps 0 done", "evaluator | evaluator 0 done"]


def test_the_last_worker_of_the_launcher_evaluates(script: str) -> None:
    done = launcher(script, "run", "-np", "3", args=("last",))
    assert done.returncode == 0, done
    lines = sorted(line.strip() for line in done.stdout.splitlines())
    assert lines == ["0 | worker 0 0 2 2", "1 | worker 1 1 2 2", "2 | worker 2 done"]


def test_a_server_that_joins_as_a_worker_is_told_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "init.py"
    path.write_text("import phalanx\nphalanx.init()\n")
    done = launcher(str(path), "run", "-np", "1", "--servers", "1")
    assert done.returncode != 0 and "this process is a server, rank 1 of its world" in done.stderr, done


ROLES = """
import os, sys
from pathlib import Path
import numpy
import phalanx
import phalanx.numpy as hvd
from phalanx.distributed import TaskSpec

def told(value):
    os.environ["TF_CONFIG"] = value
    try:
        return str(TaskSpec())
    except phalanx.InitializationError as why:
        return str(why)
    finally:
        del os.environ["TF_CONFIG"]

malformed = [told(value) for value in sys.argv[3:]]
spec = TaskSpec()
if sys.argv[2] == "last":
    spec = spec.use_last_worker_as_evaluator()
row = [spec.type, spec.num_workers, spec.shard_index, spec.is_master(), spec.is_worker(), spec.is_evaluator()]
spec.create_server()
if not spec.is_evaluator():
    row += [hvd.rank(), hvd.size(), int(hvd.allreduce(numpy.ones(3, "float32"), op=hvd.Sum, name="x")[0])]
Path(sys.argv[1], str(spec.index)).write_text(repr((row, phalanx.is_initialized(), malformed)))
"""
STARTS = {
    "phalanx run": [sys.executable, "-m", "phalanx", "run", "-np"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np"],
}


def rows(kind: str, n: int, folder: Path, *args: str) -> list[Any]:
    """What each of n processes says of itself, that this launcher started."""
    if kind == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    if kind == "torchrun" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    (folder / "roles.py").write_text(ROLES)
    (folder / "out").mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "OMPI_", "PMIX_"))}
    env |= {"OMP_NUM_THREADS": "1", "PHALANX_SECRET": secrets.token_hex(32), "PHALANX_START_TIMEOUT": "30"}
    python = [sys.executable] if kind == "mpirun" else []
    words = [*STARTS[kind], str(n), *python, str(folder / "roles.py"), str(folder / "out"), *args]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [ast.literal_eval((folder / "out" / str(i)).read_text()) for i in range(n)]


@pytest.mark.parametrize("kind", STARTS)
def test_the_golden_table_holds_under_launchers(kind: str, tmp_path: Path) -> None:
    beyond = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}
    other = {"cluster": {"worker": list("abcd")}, "task": {"type": "worker", "index": 3}}
    values = ["{}", " ", "{", '{"task": {"type": "boss", "index": 0}}', json.dumps(beyond), json.dumps(other)]
    for i, (row, is_joined, said) in enumerate(rows(kind, 3, tmp_path, "all", *values)):
        assert (row, is_joined) == (["worker", 3, i, i == 0, True, False, i, 3, 3], True)
        # A description of one process names no others, so the launcher's counts.
        assert said[0] == f"<TaskSpecDef worker {i} (3 workers, 0 ps)>"
        beginnings = ["is set but empty", "is not JSON", ': "boss" is not a type of task', ": there is no worker 1"]
        for line, begins in zip(said[1:5], beginnings, strict=True):
            assert line.startswith(f"TF_CONFIG {begins}" if begins[0] != ":" else f"TF_CONFIG{begins}"), line
        assert said[5].startswith("two launchers disagree: TF_CONFIG says rank 3 of 4, "), said[5]
        assert not any("\n" in line for line in said)


@pytest.mark.parametrize("kind", STARTS)
def test_the_last_worker_of_a_launcher_does_not_join(kind: str, tmp_path: Path) -> None:
    first, second, last = rows(kind, 3, tmp_path, "last")
    assert first == (["worker", 2, 0, True, True, False, 0, 2, 2], True, [])
    assert second == (["worker", 2, 1, False, True, False, 1, 2, 2], True, [])
    assert last == (["worker", 2, 2, False, True, True], False, [])


@pytest.mark.parametrize("kind", STARTS)
def test_one_worker_of_a_launcher_is_alone_and_cannot_be_the_evaluator(kind: str, tmp_path: Path) -> None:
    assert rows(kind, 1, tmp_path, "all") == [(["worker", 1, 0, True, True, False, 0, 1, 1], True, [])]
    (tmp_path / "out" / "0").rename(tmp_path / "0")
    (tmp_path / "out").rmdir()
    with pytest.raises(AssertionError, match="use_last_worker_as_evaluator: 1 worker is too few"):
        rows(kind, 1, tmp_path, "last")
