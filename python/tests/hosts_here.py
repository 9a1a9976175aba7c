"""Hosts of the test's own: network namespaces on a switch, each with an sshd. They end with the block; all of it needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import getpid
from pathlib import Path

import pytest
from engines_here import daemon, need, until

PORT = 2222


@dataclass(frozen=True)
class Hosts:
    """Their names, their addresses, and the command that reaches each of them by either."""

    names: list[str]
    addresses: list[str]
    rsh: str

    def on(self, host: int) -> list[str]:
        """What runs a command on a host."""
        name = self.names[host]
        return ["nsenter", f"--net=/run/netns/{name}", "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name]

    def listed(self, each: int) -> str:
        return ",".join(f"{address}:{each}" for address in self.addresses)

    def pids(self) -> list[int]:
        """All processes on them."""
        asked = [subprocess.run(["ip", "netns", "pids", n], capture_output=True, text=True) for n in self.names]
        return [int(pid) for one in asked for pid in one.stdout.split()]


def _ip(line: str) -> bool:
    return subprocess.run(["ip", *line.split()], capture_output=True).returncode == 0


def _plug(names: list[str], switch: str, addresses: list[str]) -> bool:
    made = _ip(f"netns add {switch}") and _ip(f"-n {switch} link add br0 type bridge")
    made = made and _ip(f"-n {switch} link set br0 up")
    for i, (name, address) in enumerate(zip(names, addresses, strict=True)):
        made = made and _ip(f"netns add {name}")
        made = made and _ip(f"-n {switch} link add port{i} type veth peer name eth0 netns {name}")
        made = made and _ip(f"-n {switch} link set port{i} master br0 up")
        made = made and _ip(f"-n {name} addr add {address}/24 dev eth0")
        made = made and _ip(f"-n {name} link set eth0 up") and _ip(f"-n {name} link set lo up")
    return made


@contextmanager
def hosts(folder: Path, n: int) -> Iterator[Hosts]:
    """``n`` hosts that reach each other by ssh, with keys of their own."""
    need(("ip", "iproute2"), ("/usr/sbin/sshd", "openssh-server"), ("ssh", "openssh-client"))
    names = [f"phd{getpid()}{letter}" for letter in "abcdefgh"[:n]]
    addresses = [f"10.196.0.{10 + i}" for i in range(n)]
    switch = f"phd{getpid()}s"
    with ExitStack() as stack:
        for name in [*names, switch]:
            stack.callback(_ip, f"netns del {name}")
        if not _plug(names, switch, addresses):
            pytest.skip("network namespaces cannot be made here")
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        (folder / "sshd_config").write_text(
            f"Port {PORT}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
            "PidFile none\nMaxStartups 100\n"
        )
        public = (folder / "host.pub").read_text()
        (folder / "known").write_text("".join(f"[{address}]:{PORT} {public}" for address in addresses))
        (folder / "ssh_config").write_text(
            f"Host *\n Port {PORT}\n User root\n IdentityFile {folder}/user\n IdentitiesOnly yes\n IdentityAgent none\n"
            f" UserKnownHostsFile {folder}/known\n GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking yes\n LogLevel ERROR\n"
        )
        rsh = folder / "rsh"
        rsh.write_text(f'#!/bin/sh\nexec ssh -F {folder}/ssh_config "$@"\n')
        rsh.chmod(0o700)
        found = Hosts(names, addresses, str(rsh))
        # It wants a directory in /run, which is private here.
        start = 'mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec /usr/sbin/sshd -D -E "$0" -f "$1"'
        for i, name in enumerate(names):
            words = ["unshare", "--mount", "sh", "-c", start, f"{folder}/{name}.log", str(folder / "sshd_config")]
            stack.enter_context(daemon([*found.on(i), *words]))
        until("an sshd on each host", lambda: all(_listens(name) for name in names), folder)
        yield found


def _listens(name: str) -> bool:
    words = ["nsenter", f"--net=/run/netns/{name}", "cat", "/proc/net/tcp"]
    sockets = subprocess.run(words, capture_output=True, text=True).stdout
    return f":{PORT:04X} 00000000:0000 0A" in sockets
