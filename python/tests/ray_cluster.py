"""A Ray cluster of a test's own, on loopback."""

from __future__ import annotations

import os
import secrets
import select
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

NEEDS_RAY = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed; `cargo xtask python` or `pip install ray==2.60.0` does it"
)
#: Nothing that Ray sends leaves the machine, and it keeps no token in the user's home.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
#: Everything that a test waits for takes no longer, however busy the machine is.
DEADLINE_S = 60.0


@contextmanager
def cluster(cpus: int) -> Iterator[Any]:
    """Ray, initialized in this process with a cluster of one node."""
    import ray

    folder = tempfile.mkdtemp(prefix="px-ray-", dir="/tmp")  # Its sockets' paths must be short.
    before = {name: os.environ.get(name) for name in SETTINGS}
    os.environ.update(SETTINGS)
    try:
        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 << 20,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        yield ray
    finally:
        ray.shutdown()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)


def assert_gone(pids: list[int]) -> None:
    """These processes end soon."""
    until = time.monotonic() + DEADLINE_S
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            assert poll.poll(max(0.0, until - time.monotonic()) * 1000), f"process {pid} is still there"
        finally:
            os.close(fd)


def assert_idle(ray: Any, cpus: int) -> None:
    """No actor and no placement group is left, and all CPUs are free soon."""
    from ray.util.placement_group import placement_group_table

    until = time.monotonic() + DEADLINE_S
    left: Any = None
    while time.monotonic() < until:
        groups = [g for g in placement_group_table().values() if g["state"] != "REMOVED"]
        left = (groups, ray.available_resources().get("CPU"))
        if left == ([], cpus):
            return
    raise AssertionError(f"left in the cluster: {left}")
