"""``horovod.run``: a function on several ranks, from a script or a notebook."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import phalanx

_said: set[str] = set()


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | os.PathLike[str] | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | os.PathLike[str] | None = None,
    disable_cache: bool | None = None,
    output_filename: str | os.PathLike[str] | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    executable: str | os.PathLike[str] | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    network_interfaces: str | Sequence[str] | None = None,
    host_discovery_script: str | None = None,
) -> list[Any]:
    """Runs ``func(*args, **kwargs)`` on every rank and returns the results in rank order.

    * ``hosts`` as in ``"a:2,b:2"``, or ``hostfile``; ``slots`` is for hosts that are named without a number.
    * ``ssh_port`` and ``ssh_identity_file`` are for other hosts; ``network_interface`` is one interface, or ``"a,b"``.
    * ``start_timeout``: seconds to wait until all hosts have answered and all ranks have joined.
    * ``output_filename``: a directory for the ranks' output. ``executable``: the Python that ranks run.

    Arguments that choose between controllers have no effect and print a note once; elastic ones are refused.
    """
    elastic = {
        "min_num_proc": min_num_proc,
        "max_num_proc": max_num_proc,
        "min_np": min_np,
        "max_np": max_np,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "host_discovery_script": host_discovery_script,
    }
    wanted = [name for name, value in elastic.items() if value is not None]
    if wanted:
        raise ValueError(f"horovod.run: {', '.join(wanted)}: elastic jobs are not supported yet; pass only num_proc")
    if hosts is not None and hostfile is not None:
        raise ValueError("horovod.run: hosts and hostfile both name hosts; leave one of them out")
    if use_gloo and use_mpi:
        raise ValueError("horovod.run: use_gloo and use_mpi exclude each other; neither is needed here")
    _say_meaningless(use_gloo=use_gloo, use_mpi=use_mpi, mpi_args=mpi_args, disable_cache=disable_cache)
    if not hosts and not hostfile:
        _say_meaningless(ssh_port=ssh_port, ssh_identity_file=ssh_identity_file)
    interfaces = [network_interfaces] if isinstance(network_interfaces, str) else list(network_interfaces or [])
    interfaces += [network_interface] if network_interface else []
    from horovod.runner.launch import rsh

    words = ["--horovod"]
    flags = {
        "--hosts": hosts,
        "--hostfile": hostfile,
        "--slots-per-host": slots,
        "--interface": ",".join(interfaces) or None,
        "--start-timeout": start_timeout,
        "--output-filename": output_filename,
        "--rsh": rsh(ssh_port, ssh_identity_file) if hosts or hostfile else None,
    }
    for flag, value in flags.items():
        words += [flag, str(value)] if value is not None else []
    words += ["-v"] if verbose else []
    env = {"HOROVOD_START_TIMEOUT": str(start_timeout)} if start_timeout is not None else {}
    n = _number_of_ranks(num_proc, np)
    return phalanx.run(func, tuple(args), kwargs, np=n, launcher_args=words, env=env, executable=executable)


def _number_of_ranks(num_proc: int | None, np: int | None) -> int:
    if np is not None and num_proc not in (None, 1, np):
        raise ValueError(
            f"horovod.run: num_proc={num_proc} and np={np} contradict each other; np is the old name, leave it out"
        )
    n = np if np is not None else num_proc
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"horovod.run: num_proc must be a whole number of ranks from 1, not {n!r}")
    return n


def _say_meaningless(**given: Any) -> None:
    """Prints one note for each argument that has no effect."""
    reasons = {
        "disable_cache": "Phalanx caches nothing between runs",
        "ssh_port": "all ranks start on this machine; give hosts or hostfile as well",
        "ssh_identity_file": "all ranks start on this machine; give hosts or hostfile as well",
        "mpi_args": "Phalanx does not use MPI; its settings are the PHALANX_ variables",
    }
    for name in [name for name, value in given.items() if value and name not in _said]:
        _said.add(name)
        why = reasons.get(name, "Phalanx has one controller, which needs neither MPI nor Gloo")
        print(f"horovod.run: note: {name} has no effect: {why}", file=sys.stderr)


__all__ = ["run"]
