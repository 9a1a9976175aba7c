"""``horovod.run``: a function on several ranks, from a script or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import phalanx


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    verbose: bool | int | None = None,
    np: int | None = None,
    **ignored: Any,
) -> list[Any]:
    """Runs ``func(*args, **kwargs)`` on every rank and gives the results in rank order.

    Arguments of Horovod that have no meaning here (controllers, caches, NCCL) are accepted; elastic ones are not.
    """
    elastic = {"min_num_proc", "max_num_proc", "min_np", "max_np", "host_discovery_script", "reset_limit"}
    wanted = sorted(name for name in elastic & ignored.keys() if ignored[name] is not None)
    if wanted:
        raise ValueError(f"horovod.run: {', '.join(wanted)}: elastic jobs are not there yet")
    words: list[str] = []
    for flag, value in (("--hosts", hosts), ("--hostfile", hostfile)):
        words += [flag, value] if value else []
    if verbose:
        words.append("-v")
    env = {"PHALANX_START_TIMEOUT": str(start_timeout)} if start_timeout else {}
    return phalanx.run(func, tuple(args), kwargs, np=num_proc or np or 1, launcher_args=words, env=env)


__all__ = ["run"]
