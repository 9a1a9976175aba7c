"""``RayExecutor``: actors that stay between runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx._actors import Actors, Wish, ray_module

#: How long the other ranks may take to notice that one has failed; then actors that have not returned are ended.
_SETTLE_S = 5.0
_said: set[str] = set()


@dataclass
class MiniSettings:
    """What a :class:`RayExecutor` needs to know beside the workers."""

    nics: Iterable[str] | str | None = None
    #: How long ranks wait for each other, in seconds.
    timeout_s: float = 300
    #: How long all of them wait for a place in the cluster.
    placement_group_timeout_s: float = 100


class RayExecutor:
    """Runs functions on ranks that are actors of a Ray cluster and stay until :meth:`shutdown`.

    * ``num_workers`` ranks, wherever there is place; or ``num_workers_per_host`` ranks on each of ``num_hosts`` nodes.
    * ``settings``: from :meth:`create_settings`, or ``None``.
    * ``use_current_placement_group``: inside of one, the actors take their place from it.

    GPUs and elastic jobs are refused.
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | os.PathLike[str] | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Iterable[str] | str | None = None,
    ) -> MiniSettings:
        """Settings: how long to wait for ranks and for a place in the cluster, and the network interfaces to use."""
        for name, value in (("ssh_identity_file", ssh_identity_file), ("ssh_str", ssh_str)):
            if value and name not in _said:
                _said.add(name)
                print(f"horovod.ray: note: {name} has no effect: Ray starts the ranks, without ssh", file=sys.stderr)
        return MiniSettings(nics, timeout_s, placement_group_timeout_s)

    def __init__(
        self,
        settings: Any = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[int] | None = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        elastic = {
            "min_workers": min_workers,
            "max_workers": max_workers,
            "reset_limit": reset_limit,
            "cooldown_range": cooldown_range,
            "elastic_timeout": None if elastic_timeout == 600 else elastic_timeout,
            "override_discovery": None if override_discovery is True else override_discovery,
        }
        wanted = [name for name, value in elastic.items() if value is not None]
        if wanted:
            text = f"{', '.join(wanted)}: elastic jobs are not supported yet; pass only num_workers"
            raise ValueError(f"horovod.ray.RayExecutor: {text}")
        if use_gpu or gpus_per_worker:
            text = "GPUs are not supported: tensors are reduced in memory; leave use_gpu and gpus_per_worker out"
            raise ValueError(f"horovod.ray.RayExecutor: {text}")
        if (num_workers is None) == (num_hosts is None):
            text = "pass either num_workers, or num_hosts and num_workers_per_host"
            raise ValueError(f"horovod.ray.RayExecutor: {text}")
        counts = {
            "num_workers" if num_hosts is None else "num_hosts": num_workers if num_hosts is None else num_hosts,
            "num_workers_per_host": num_workers_per_host,
            "cpus_per_worker": cpus_per_worker,
        }
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"horovod.ray.RayExecutor: {name} must be a whole number from 1, not {value!r}")
        self.settings = settings if settings is not None else MiniSettings()
        self.num_workers = num_workers
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host
        self.cpus_per_worker = cpus_per_worker
        self.use_current_placement_group = use_current_placement_group
        self._actors: Actors | None = None

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts the actors. Each makes an object of ``executable_cls``, which :meth:`execute` passes to functions."""
        if self._actors is not None:
            raise RuntimeError("horovod.ray.RayExecutor: it has been started; call shutdown() first")
        waiting = getattr(self.settings, "timeout_s", 300)
        nics = getattr(self.settings, "nics", None) or ()
        environment = {"PHALANX_START_TIMEOUT": str(waiting)}
        if nics:
            environment["PHALANX_INTERFACE"] = nics if isinstance(nics, str) else ",".join(sorted(nics))
        environment.update({name: str(value) for name, value in (extra_env_vars or {}).items()})
        by_hosts = self.num_hosts is not None
        self._actors = Actors(
            Wish(
                "horovod.ray.RayExecutor",
                n_bundles=self.num_hosts or self.num_workers or 0,
                per_bundle=self.num_workers_per_host if by_hosts else 1,
                cpus=self.cpus_per_worker,
                placement="STRICT_SPREAD" if by_hosts else "PACK",
                wait_s=float(getattr(self.settings, "placement_group_timeout_s", 100)),
                environment=environment,
                longer="create_settings(placement_group_timeout_s=...)",
                in_current_group=self.use_current_placement_group,
            )
        )
        try:
            self._actors.call(_hold, (executable_cls, tuple(executable_args or ()), dict(executable_kwargs or {})))
        except BaseException:
            self.shutdown()
            raise

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """The results of ``fn(*args, **kwargs)`` on all ranks.

        A failure is raised with its rank. If the other ranks return soon as well, the actors can be used again.
        """
        _refuse_callbacks(callbacks)
        return self._started().call(fn, args or (), kwargs, settle_s=_SETTLE_S)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """As :meth:`run`, without waiting: objects for ``ray.get``."""
        return self._started().refs(fn, args or (), kwargs)

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """The results of ``fn(executable)`` on all ranks, with the object that :meth:`start` made there, or ``None``."""
        _refuse_callbacks(callbacks)
        return self._started().call(_apply, (fn,), settle_s=_SETTLE_S)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """The result of ``fn(executable)`` on rank 0."""
        return self._started().call(_apply, (fn,), ranks=[0], settle_s=_SETTLE_S)[0]

    def shutdown(self) -> None:
        """Ends the actors and gives their place back; :meth:`start` may be called again."""
        actors, self._actors = self._actors, None
        if actors is not None and ray_module().is_initialized():
            actors.end()

    def _started(self) -> Actors:
        if self._actors is None:
            raise RuntimeError("horovod.ray.RayExecutor: call start() first")
        return self._actors


def _refuse_callbacks(callbacks: Sequence[Callable[..., Any]] | None) -> None:
    if callbacks:
        raise ValueError("horovod.ray.RayExecutor: callbacks belong to elastic jobs, which are not supported yet")


#: In the process of an actor: what it made at the start.
_held: Any = None


def _hold(make: type | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    global _held
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
    os.environ.update({f"HOROVOD_{name}": os.environ[f"PHALANX_{name}"] for name in names})
    _held = make(*args, **kwargs) if make is not None else None


def _apply(fn: Callable[[Any], Any]) -> Any:
    return fn(_held)


__all__ = ["MiniSettings", "RayExecutor"]
