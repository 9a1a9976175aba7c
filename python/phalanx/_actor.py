"""What runs in the process of a Ray actor: one rank."""

from __future__ import annotations

import atexit
import fcntl
import os
import socket
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx import _foreign, _world
from phalanx._function import Failure

#: What a rank gets unless its environment says otherwise, as from ``phalanx run``.
_DEFAULTS = {"THP_MEM_ALLOC_ENABLE": "1"}
#: Above the numbers that programs like to use themselves.
_LOWEST_FD = 64


@dataclass(frozen=True)
class Whereabouts:
    """Where an actor runs."""

    #: Equal for processes that can share memory.
    host: str
    hostname: str
    address: str
    pid: int


class RankActor:
    """One rank. Ray makes it on a node of the cluster; its process ends with it."""

    def where(self, interface: str | None = None) -> Whereabouts:
        """Where this is; the address is the one of this network interface, or Ray's for this node."""
        import ray

        address = _address_of(interface) if interface else ray.util.get_node_ip_address()
        return Whereabouts(_host_key(), socket.gethostname(), address, os.getpid())

    def become(self, environment: dict[str, str], secret: bytes) -> None:
        """Makes this process a rank, as a launcher would: variables, and the job's secret in a descriptor."""
        for name in _foreign.misleading(os.environ):
            del os.environ[name]
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        os.environ.update(environment)
        os.environ["PHALANX_SECRET_FD"] = str(_hidden(secret))
        self._at_exit = _Handlers()

    def call(self, call: list[Any]) -> tuple[bool, Any]:
        """What a function gives here, or how it failed. The function comes in a list: this, not Ray, unpacks it."""
        import ray

        try:
            fn, args, kwargs = ray.get(call[0])
            return True, fn(*args, **kwargs)
        except BaseException as error:
            failure = Failure.of(error)
            _leave()
            return False, failure

    def result(self, call: list[Any]) -> Any:
        """As :meth:`call`, for callers who ask Ray for the results: a failure is raised."""
        is_good, value = self.call(call)
        if not is_good:
            raise value.blamed_on(int(os.environ["PHALANX_RANK"]))
        return value

    def leave(self) -> None:
        """Does what the program wants done at exit. Ray tells nobody when a process that exits is through with that."""
        self._at_exit.run()


class _Handlers:
    """The functions that the program registers with ``atexit`` from now on."""

    def __init__(self) -> None:
        self._kept: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._unregister = atexit.unregister
        atexit.register(self.run)
        atexit.register = self._keep
        atexit.unregister = self._drop

    def _keep(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        self._kept.append((fn, args, kwargs))
        return fn

    def _drop(self, fn: Callable[..., Any], /) -> None:
        self._kept[:] = [kept for kept in self._kept if kept[0] != fn]
        self._unregister(fn)

    def run(self) -> None:
        """Calls them, the last one first."""
        while self._kept:
            fn, args, kwargs = self._kept.pop()
            try:
                fn(*args, **kwargs)
            except BaseException:
                traceback.print_exc()


def _leave() -> None:
    """The process stays, so the others would wait for this rank."""
    try:
        _world.shutdown()
    except Exception as error:
        print(f"phalanx.ray: after a failure: {error}", flush=True)


def _hidden(secret: bytes) -> int:
    """A descriptor with the secret, which child processes do not inherit and nobody can change."""
    memory = os.memfd_create("phalanx-secret", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(memory, secret)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
        return fcntl.fcntl(memory, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    finally:
        os.close(memory)


def _host_key() -> str:
    """As the engine tells hosts apart: one kernel, one network, one set of processes, one user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.readlink(f"/proc/self/ns/{space}") for space in ("net", "pid")]
    return " ".join([boot, *spaces, str(os.getuid()), os.environ.get("PHALANX_HOST_ID", "")])


def _address_of(interface: str) -> str:
    """The IPv4 address of the first of these interfaces (``"eth0"`` or ``"eth0,eth1"``)."""
    SIOCGIFADDR = 0x8915
    name = interface.split(",")[0].strip()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise ValueError(
                f"PHALANX_INTERFACE={interface}: {socket.gethostname()} has no {name!r} with an IPv4 address"
            ) from error
    return socket.inet_ntoa(answer[20:24])


__all__ = ["RankActor", "Whereabouts"]
