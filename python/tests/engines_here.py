"""A Slurm and an sshd of the test's own, on this machine: they end with the block. Both need root and their Debian packages."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

LIMIT_S = 60


def need(*programs: tuple[str, str]) -> None:
    """Skips the test where a program, or root, is missing."""
    for program, package in programs:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here; the Debian package {package} has it")
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "--uts", "true"], check=False).returncode != 0:
        pytest.skip("this test needs root: it starts daemons in namespaces of their own")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def until(what: str, is_so: Callable[[], bool], logs: Path) -> None:
    """Asks again and again: daemons tell nobody when they are ready."""
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        texts = "".join(path.read_text(errors="replace")[-2000:] for path in sorted(logs.glob("*.log")))
        assert time.monotonic() < deadline, f"{what} within {LIMIT_S} s\n{texts}"
        time.sleep(0.05)


@contextmanager
def daemon(words: list[str], env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, env=env) as child:
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()


def _listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def slurm(folder: Path, cpus: int) -> Iterator[dict[str, str]]:
    """A cluster of one node; yields the variables with which its commands find it."""
    need(("munged", "munge"), ("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("srun", "slurm-client"))
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    for name in ("state", "spool", "tmp"):
        (folder / name).mkdir()
    node = "phalanxn0"
    settings = {
        "ClusterName": "phalanx",
        "SlurmctldHost": f"{node}(127.0.0.1)",
        "SlurmctldPort": free_port(),
        "SlurmdPort": free_port(),
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.sock",
        "CredType": "cred/munge",
        "MpiDefault": "none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SwitchType": "switch/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "ReturnToService": 2,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool",
        "TmpFS": f"{folder}/tmp",
        "SlurmctldPidFile": f"{folder}/ctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd.pid",
        "SlurmctldLogFile": f"{folder}/ctld.log",
        "SlurmdLogFile": f"{folder}/slurmd.log",
        "AccountingStorageType": "accounting_storage/none",
        "JobAcctGatherType": "jobacct_gather/none",
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    # More CPUs than the machine may have: the ranks are small.
    lines += ["SlurmdParameters=config_overrides", f"NodeName={node} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN"]
    lines.append("PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}"]
    files = {"socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munge.seed", "log-file": "munged.log"}
    munged += [f"--{flag}={folder / file}" for flag, file in files.items()]
    at_node = ["unshare", "--uts", "sh", "-c", f'hostname {node}; exec "$@"', "sh"]
    with ExitStack() as stack:
        stack.enter_context(daemon(munged))
        until("munged listens", (folder / "munge.sock").exists, folder)
        stack.enter_context(daemon([*at_node, "slurmctld", "-D"], env))
        stack.enter_context(daemon([*at_node, "slurmd", "-D", "-N", node], env))

        def is_idle() -> bool:
            asked = subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True, check=False)
            return asked.stdout.strip() == "idle"

        until("the node is idle", is_idle, folder)
        yield {"SLURM_CONF": env["SLURM_CONF"]}


@contextmanager
def sshd(folder: Path) -> Iterator[str]:
    """A server on loopback; yields the remote shell that leads to the host ``there``."""
    need(("/usr/sbin/sshd", "openssh-server"), ("ssh", "openssh-client"), ("ssh-keygen", "openssh-client"))
    port = free_port()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        "StrictModes no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nUsePAM no\nPidFile none\n"
    )
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "ssh_config").write_text(
        f"Host there\n HostName 127.0.0.1\n Port {port}\n User root\n IdentityFile {folder}/user\n"
        f" IdentitiesOnly yes\n IdentityAgent none\n UserKnownHostsFile {folder}/known\n"
        " GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking yes\n"
    )
    # It wants a directory in /run, which is private here.
    start = 'mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec /usr/sbin/sshd -D -E "$0" -f "$1"'
    words = ["unshare", "--mount", "sh", "-c", start, str(folder / "sshd.log"), str(folder / "sshd_config")]
    with daemon(words):
        until("sshd listens", lambda: _listens(port), folder)
        yield f"ssh -F {folder}/ssh_config"
