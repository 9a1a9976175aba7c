"""``phalanx.ray``: ranks as actors of a real Ray cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import DEADLINE_S, NEEDS_RAY, assert_gone, assert_idle, cluster

import phalanx
import phalanx.ray
from phalanx import _foreign
from phalanx._actors import number

ROOT = Path(__file__).parents[2]
CPUS = 4


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with cluster(CPUS) as started:
        yield started


def _pids(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()]


@NEEDS_RAY
def test_results_come_back_in_rank_order_and_ranks_share_memory(ray: Any, tmp_path: Path) -> None:
    def work(folder: str, *, factor: int) -> dict[str, Any]:
        import os
        from pathlib import Path

        import numpy

        import phalanx
        import phalanx.numpy

        phalanx.init()
        Path(folder, str(os.getpid())).touch()
        total = phalanx.numpy.allreduce(numpy.full(3, phalanx.rank() * factor), op=phalanx.Sum)
        place = phalanx.rank(), phalanx.size(), phalanx.local_rank(), phalanx.local_size(), phalanx.cross_size()
        told = [os.environ[f"PHALANX_{n}"] for n in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_SIZE")]
        return {
            "place": place,
            "told": tuple(map(int, told)),
            "total": total.tolist(),
            "threads": os.environ["OMP_NUM_THREADS"],
            "log": os.environ.get("PHALANX_LOG"),
            "secrets": sorted(n for n in os.environ if n.startswith("PHALANX_SECRET")),
            "inherited": os.get_inheritable(int(os.environ["PHALANX_SECRET_FD"])),
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHALANX_LOG", "error")
        patch.setenv("PHALANX_SECRET", "not for others to see")
        patch.setenv("RANK", "7")
        found = phalanx.ray.run(work, [str(tmp_path)], {"factor": 10}, workers=3)
    for rank, one in enumerate(found):
        assert one["place"] == one["told"] == (rank, 3, rank, 3, 1)
        assert one["total"] == [30, 30, 30]
        assert (one["threads"], one["log"]) == ("1", "error")
        assert (one["secrets"], one["inherited"]) == (["PHALANX_SECRET_FD"], False)
    assert len(_pids(tmp_path)) == 3
    assert_gone(_pids(tmp_path))
    assert_idle(ray, CPUS)


@NEEDS_RAY
def test_what_python_does_at_exit_is_done(ray: Any, tmp_path: Path) -> None:
    def work(folder: str) -> None:
        import atexit
        from pathlib import Path

        import phalanx

        phalanx.init()
        # The rank has not left its world yet.
        atexit.register(lambda: Path(folder, str(phalanx.rank())).touch())

    phalanx.ray.run(work, (str(tmp_path),), workers=2, cpus_per_worker=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


@NEEDS_RAY
def test_an_exception_comes_back_with_its_rank_and_ends_the_others(ray: Any, tmp_path: Path) -> None:
    def work(folder: str, waits: bool) -> None:
        import os
        import threading
        from pathlib import Path

        import numpy

        import phalanx
        import phalanx.numpy

        phalanx.init()
        phalanx.numpy.allreduce(numpy.ones(1), name="all are here")
        Path(folder, str(os.getpid())).touch()
        if phalanx.rank() == 1:
            raise KeyError("lost the plot")
        if waits:
            threading.Event().wait(600)
        phalanx.numpy.allreduce(numpy.ones(3), name="never")

    for waits in (False, True):
        with pytest.raises(phalanx.RankFailedError, match="^rank 1: KeyError") as caught:
            phalanx.ray.run(work, (str(tmp_path), waits), workers=3)
        assert caught.value.rank == 1
        assert "lost the plot" in caught.value.traceback
    assert_gone(_pids(tmp_path))
    assert_idle(ray, CPUS)


@NEEDS_RAY
def test_a_rank_that_is_killed_is_named(ray: Any, tmp_path: Path) -> None:
    def work(folder: str, waits: bool) -> None:
        import os
        import signal
        import threading
        from pathlib import Path

        import numpy

        import phalanx
        import phalanx.numpy

        phalanx.init()
        Path(folder, str(os.getpid())).touch()
        phalanx.numpy.allreduce(numpy.ones(1), name="all are here")
        if phalanx.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if waits:
            threading.Event().wait(600)
        phalanx.numpy.allreduce(numpy.ones(3), name="never")

    for waits in (False, True):
        with pytest.raises(phalanx.RankFailedError, match="^rank 2 died: ") as caught:
            phalanx.ray.run(work, (str(tmp_path), waits), workers=3)
        assert caught.value.rank == 2
    assert_gone(_pids(tmp_path))
    assert_idle(ray, CPUS)


@NEEDS_RAY
def test_a_result_that_cannot_be_sent_is_its_ranks_failure(ray: Any) -> None:
    def work() -> Any:
        import os
        import threading

        return threading.Lock() if os.environ["PHALANX_RANK"] == "1" else None

    with pytest.raises(phalanx.RankFailedError, match="^rank 1: ") as caught:
        phalanx.ray.run(work, workers=2)
    assert caught.value.rank == 1
    assert_idle(ray, CPUS)


@NEEDS_RAY
def test_a_cluster_without_a_place_is_an_error_that_tells_its_size(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_START_TIMEOUT", "0.5")
    with pytest.raises(phalanx.InitializationError, match=r"5 workers .*\(PACK\): it has 4 CPUs on 1 node, 4 free"):
        phalanx.ray.run(print, workers=5)
    with pytest.raises(phalanx.InitializationError, match=r"each on a node of its own \(STRICT_SPREAD\)"):
        phalanx.ray.run(print, workers=2, placement="STRICT_SPREAD")
    assert_idle(ray, CPUS)


@NEEDS_RAY
def test_ctrl_c_ends_the_actors(ray: Any, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        """
import sys
import ray, phalanx.ray
from ray.util.placement_group import placement_group_table

def work(folder):
    import os, threading, phalanx
    from pathlib import Path
    phalanx.init()
    Path(folder, str(os.getpid())).touch()
    print("at work", flush=True)
    threading.Event().wait(600)

ray.init(address=sys.argv[1], _node_ip_address="127.0.0.1")
try:
    phalanx.ray.run(work, (sys.argv[2],), workers=2)
except KeyboardInterrupt:
    print("states", sorted({g["state"] for g in placement_group_table().values()}))
"""
    )
    folder = tmp_path / "pids"
    folder.mkdir()
    words = [sys.executable, str(script), ray.get_runtime_context().gcs_address, str(folder)]
    driver = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "RAY_DEDUP_LOGS": "0"}
    )
    assert driver.stdout is not None
    heard = ""
    try:
        for line in driver.stdout:
            heard += line
            if heard.count("at work") == 2:
                driver.send_signal(signal.SIGINT)
                break
        rest, _ = driver.communicate(timeout=DEADLINE_S)
    finally:
        driver.kill()
    assert "states ['REMOVED']" in rest, heard + rest
    assert len(_pids(folder)) == 2
    assert_gone(_pids(folder))
    assert_idle(ray, CPUS)


@NEEDS_RAY
def test_horovods_executor_keeps_its_actors_between_runs(ray: Any) -> None:
    from horovod.ray import RayExecutor

    class Model:
        def __init__(self, size: int, *, scale: int) -> None:
            self.size = size * scale

    def where() -> tuple[int, int, int, str | None]:
        import os

        import phalanx

        phalanx.init()
        return os.getpid(), phalanx.rank(), int(os.environ["HOROVOD_RANK"]), os.environ.get("EXTRA")

    def summed(tag: str) -> float:
        import numpy

        import phalanx
        import phalanx.numpy

        phalanx.init()
        if tag == "bad" and phalanx.rank() == 1:
            raise KeyError("lost the plot")
        return float(phalanx.numpy.allreduce(numpy.ones(1), op=phalanx.Sum)[0])

    settings = RayExecutor.create_settings(timeout_s=30, placement_group_timeout_s=30)
    executor = RayExecutor(settings, num_workers=2, use_current_placement_group=False)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        executor.run(where)
    executor.start(
        executable_cls=Model, executable_args=[3], executable_kwargs={"scale": 2}, extra_env_vars={"EXTRA": 5}
    )
    try:
        first, second = executor.run(where), executor.run(where)
        assert first == second
        assert [one[1:] for one in first] == [(0, 0, "5"), (1, 1, "5")]
        assert executor.run(summed, args=["good"]) == [2.0, 2.0]
        assert executor.execute(lambda model: model.size) == [6, 6]
        assert executor.execute_single(lambda model: model.size + 1) == 7
        assert ray.get(executor.run_remote(summed, kwargs={"tag": "good"})) == [2.0, 2.0]
        with pytest.raises(phalanx.RankFailedError, match="^rank 1: KeyError"):
            executor.run(summed, ["bad"])
        # All ranks have returned, so the same actors go on.
        assert executor.run(summed, ["good"]) == [2.0, 2.0]
        assert executor.run(where) == first
        # The first of the objects to fail: rank 1's own error, or what rank 0 heard of it.
        with pytest.raises(phalanx.RankFailedError, match=r"rank 1(: KeyError| has shut down)"):
            ray.get(executor.run_remote(summed, ["bad"]))
        with pytest.raises(ValueError, match="callbacks belong to elastic jobs"):
            executor.run(where, callbacks=[print])
    finally:
        executor.shutdown()
    assert_gone([one[0] for one in first])
    assert_idle(ray, CPUS)


@NEEDS_RAY
def test_horovods_executor_is_over_when_a_rank_was_killed(ray: Any) -> None:
    from horovod.ray import RayExecutor

    def work() -> None:
        import os
        import signal
        import threading

        if os.environ["PHALANX_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait(600)

    executor = RayExecutor(num_hosts=1, num_workers_per_host=2)
    executor.start()
    try:
        with pytest.raises(phalanx.RankFailedError, match="^rank 1 died: "):
            executor.run(work)
        with pytest.raises(RuntimeError, match="the actors have ended because a rank failed"):
            executor.run(work)
    finally:
        executor.shutdown()
    assert_idle(ray, CPUS)


def test_what_horovods_executor_cannot_do_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from horovod.ray import ElasticRayExecutor, RayExecutor

    refused = {
        "GPUs are not supported": {"num_workers": 2, "use_gpu": True},
        "min_workers: elastic jobs": {"min_workers": 2},
        "either num_workers, or num_hosts": {"num_workers": 2, "num_hosts": 1},
        "num_workers must be a whole number": {"num_workers": 0},
    }
    for why, arguments in refused.items():
        with pytest.raises(ValueError, match=why):
            RayExecutor(None, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="either num_workers, or num_hosts"):
        RayExecutor()
    with pytest.raises(ValueError, match="use RayExecutor"):
        ElasticRayExecutor(None)
    RayExecutor.create_settings(ssh_identity_file="key")
    assert "ssh_identity_file has no effect" in capsys.readouterr().err


def test_arguments_that_mean_nothing_are_refused() -> None:
    for bad in (0, 1.5, True, "2"):
        with pytest.raises(ValueError, match="workers must be a whole number from 1"):
            phalanx.ray.run(print, workers=bad)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cpus_per_worker must be a whole number from 1"):
            phalanx.ray.run(print, workers=1, cpus_per_worker=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD, not 'NEAR'"):
        phalanx.ray.run(print, workers=1, placement="NEAR")
    with pytest.raises(TypeError, match="fn must be a function"):
        phalanx.ray.run(3, workers=1)  # type: ignore[arg-type]


def test_without_ray_the_error_says_what_installs_it() -> None:
    program = "import sys; sys.modules['ray'] = None; import phalanx.ray; phalanx.ray.run(print, workers=1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S)
    assert "ImportError: phalanx.ray needs Ray, which is not installed here: pip install ray" in done.stderr


def test_ranks_are_counted_host_by_host() -> None:
    places = number(["a", "b", "a", "c", "b", "a"])
    assert [p.rank for p in places] == [0, 3, 1, 5, 4, 2]
    assert [(p.local_rank, p.local_size) for p in places] == [(0, 3), (0, 2), (1, 3), (0, 1), (1, 2), (2, 3)]
    assert [(p.cross_rank, p.cross_size) for p in places] == [(0, 3), (1, 3), (0, 2), (2, 3), (1, 2), (0, 1)]


def test_variables_of_other_launchers_are_those_that_our_launcher_knows() -> None:
    def listed(name: str, file: str) -> set[str]:
        found = re.search(rf"const {name}: &\[&str\] = &\[(.*?)\];", (ROOT / "crates" / file).read_text(), re.S)
        assert found is not None
        return set(re.findall(r'"(\w+)"', found.group(1)))

    assert listed("FOREIGN", "phalanx-launch/src/environment.rs") == _foreign.NAMES
    assert listed("FOREIGN_PREFIXES", "phalanx-launch/src/environment.rs") == set(_foreign.PREFIXES)
    told = listed("RESERVED", "phalanx-core/src/config.rs")
    assert _foreign.settings(dict.fromkeys(told, "1")) == {}
    assert set(_foreign.misleading(told)) == told
