"""``phalanx.ray`` on a Ray cluster of two hosts, which are network namespaces: the programs of the page, and a host that is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from ray_cluster import DEADLINE_S, NEEDS_RAY, SETTINGS, assert_gone

PAGE = Path(__file__).parents[2] / "docs" / "launching-ray.md"
#: The addresses of the page.
HEAD, NODE = "10.0.0.1", "10.0.0.2"
#: As many CPUs as the page's ranks want, whatever this machine has, and little memory.
SMALL = "--num-cpus=4 --object-store-memory=100000000 --disable-usage-stats"


def _ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, timeout=DEADLINE_S).returncode == 0


def _pids(host: str) -> list[int]:
    inside = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, timeout=DEADLINE_S)
    return [int(pid) for pid in inside.stdout.split()]


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@contextmanager
def _two_hosts() -> Iterator[list[str]]:
    """Two network namespaces with a cable between them. What runs inside is ended."""
    names = [f"px{os.getpid()}ray{side}" for side in "ab"]
    try:
        made = shutil.which("ip") is not None and all(_ip("netns", "add", name) for name in names)
        veth = ("link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns")
        made = made and _ip("-n", names[0], *veth, names[1])
        for name, address in zip(names, (HEAD, NODE), strict=True):
            made = made and _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            made = made and all(_ip("-n", name, "link", "set", link, "up") for link in ("lo", "eth0"))
        if not made:
            pytest.skip("network namespaces need root and iproute2")
        yield names
    finally:
        pids = [pid for name in names for pid in _pids(name)]
        _kill(pids)
        assert_gone(pids)
        for name in names:
            _ip("netns", "del", name)


class Site:
    """A Ray cluster, started with the commands of the page."""

    def __init__(self, hosts: list[str], folder: str) -> None:
        self.hosts = hosts
        self.folder = Path(folder)
        path = f"{Path(sys.executable).parent}:{folder}/bin:{os.environ['PATH']}"
        # As the page says; and not `/tmp/ray`, where programs without an address look for a cluster.
        assert "`RAY_AUTH_MODE=token`" in PAGE.read_text()
        more = {"RAY_AUTH_MODE": "token", "RAY_TMPDIR": folder, "PATH": path}
        self.environment = {**os.environ, **SETTINGS, **more}
        # The commands of the page are those of an environment that is activated.
        ray = self.folder / "bin" / "ray"
        ray.parent.mkdir()
        ray.write_text(f'#!/bin/sh\nexec {sys.executable} -m ray.scripts.scripts "$@"\n')
        ray.chmod(0o755)

    def start(self, host: int, shell: str) -> subprocess.Popen[str]:
        """Starts a line of shell on a host; its output is in files, because daemons keep what they inherit open."""
        words = ["nsenter", f"--net=/run/netns/{self.hosts[host]}", "sh", "-ec", shell]
        with open(self.folder / "out", "w") as out, open(self.folder / "err", "w") as err:
            return subprocess.Popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True
            )

    def end(self, started: subprocess.Popen[str]) -> str:
        """What it printed, once it has ended well."""
        try:
            code = started.wait(DEADLINE_S * 2)
        finally:
            started.kill()
        out = (self.folder / "out").read_text()
        assert code == 0, out + (self.folder / "err").read_text()
        return out

    def run(self, host: int, shell: str) -> str:
        return self.end(self.start(host, shell))


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.S)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    head, node = (next(line for line in block.splitlines() if line.startswith("ray start")) for block in _blocks("sh"))
    folder = tempfile.mkdtemp(prefix="px-ray-", dir="/tmp")  # Its sockets' paths must be short.
    try:
        with _two_hosts() as hosts:
            made = Site(hosts, folder)
            made.run(0, f"{head} {SMALL}")
            made.run(1, f"{node} {SMALL}")
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@NEEDS_RAY
def test_the_programs_of_the_page_run_as_they_are_written(site: Site) -> None:
    first, train, executor = _blocks("python")
    (site.folder / "first.py").write_text(first + executor)
    (site.folder / "train.py").write_text(train)
    told = f"RAY_ADDRESS={HEAD}:6379"
    assert f"`{told} python train.py`" in PAGE.read_text()
    sums = [line for line in site.run(0, f"{told} python {site.folder}/first.py").splitlines() if line[0] == "["]
    # One by phalanx.ray.run, one by Horovod's executor.
    assert [json.loads(line) for line in sums] == [[[10, 10, 10], [10, 10, 10]]] * 2
    if find_spec("torch") is None:
        pytest.skip("torch is not installed; the page's training was not run")
    # It asserts itself that all ranks have the same parameters.
    site.run(0, f"{told} python {site.folder}/train.py")


DRIVER = """
import json
import phalanx.ray, ray

def work():
    import numpy, os, phalanx, phalanx.numpy
    phalanx.init()
    total = phalanx.numpy.allreduce(numpy.arange(100_000) * (phalanx.rank() + 1), op=phalanx.Sum)
    right = bool((total == numpy.arange(100_000) * 10).all())
    names = ("RENDEZVOUS", "LOCAL_RANK", "CROSS_RANK")
    told = [os.environ["PHALANX_" + name] for name in names]
    return [ray.util.get_node_ip_address(), phalanx.rank(), phalanx.local_size(), phalanx.cross_size(), right, *told]

ray.init(address="10.0.0.1:6379", log_to_driver=False)
print(json.dumps(phalanx.ray.run(work, workers=4, cpus_per_worker=2)))
print(json.dumps(phalanx.ray.run(work, workers=4, placement="SPREAD")))
"""


@NEEDS_RAY
def test_two_by_two_ranks_on_two_hosts(site: Site) -> None:
    (site.folder / "driver.py").write_text(DRIVER)
    for line in site.run(0, f"python {site.folder}/driver.py").splitlines():
        ranks = json.loads(line)
        hosts = [rank[0] for rank in ranks]
        assert sorted(hosts) == [HEAD, HEAD, NODE, NODE]
        # Neighbours share a host, and all meet at rank 0's.
        assert hosts[0] == hosts[1] and hosts[2] == hosts[3]
        assert [rank[1:5] for rank in ranks] == [[r, 2, 2, True] for r in range(4)]
        assert [rank[5:] for rank in ranks] == [[hosts[0], str(r % 2), str(r // 2)] for r in range(4)]


LOST = """
import json, sys
import phalanx, phalanx.ray, ray

def work(folder):
    import os
    from pathlib import Path
    import numpy, phalanx, phalanx.numpy
    phalanx.init()
    while True:
        phalanx.numpy.allreduce(numpy.ones(1000))
        Path(folder, f"{phalanx.rank()} {ray.util.get_node_ip_address()} {os.getpid()}").touch()

ray.init(address="10.0.0.1:6379", log_to_driver=False)
try:
    phalanx.ray.run(work, (sys.argv[1],), workers=4, cpus_per_worker=2)
except phalanx.RankFailedError as error:
    print(json.dumps([error.rank, str(error).splitlines()[0]]))
"""


@NEEDS_RAY
def test_a_host_that_is_lost_is_named_by_one_of_its_ranks_and_the_others_end(site: Site) -> None:
    """Last: the cluster has one host afterwards."""
    seen = site.folder / "ranks"
    seen.mkdir()
    (site.folder / "lost.py").write_text(LOST)
    driver = site.start(0, f"exec python {site.folder}/lost.py {seen}")
    until = time.monotonic() + DEADLINE_S
    while len(list(seen.iterdir())) < 4:
        assert driver.poll() is None and time.monotonic() < until, (site.folder / "err").read_text()
        time.sleep(0.05)  # What the ranks write tells nobody.
    ranks = [path.name.split() for path in seen.iterdir()]
    lost = {int(rank) for rank, host, _ in ranks if host == NODE}
    assert len(lost) == 2
    _kill(_pids(site.hosts[1]))
    rank, said = json.loads(site.end(driver))
    assert rank in lost
    assert said.startswith(f"rank {rank} died: "), said
    # Nothing of the job is left on the host that remains.
    assert_gone([int(pid) for _, host, pid in ranks if host == HEAD])
