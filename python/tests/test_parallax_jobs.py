"""Jobs with tables on servers: how they begin, which processes serve, and who is named when a server is lost."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ranks import DEADLINE_S, launch

SCRIPT = """
import sys, torch
from phalanx import parallax

class Net(torch.nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.words = torch.nn.Embedding(8, 2, sparse=sparse)
    def forward(self, ids):
        return self.words(ids).square().sum()

def run(session, n, names, n_workers, worker, n_replicas):
    for _ in range(n):
        session.run(names["train_op"], feed_dict={"ids": [torch.tensor([worker])] * n_replicas})
    print("trained", worker, "of", n_workers, session.explain().split(":")[0], "argument", sys.argv[1], flush=True)
    if sys.argv[1] == "bad":
        sys.exit(7)

net = Net(sparse=sys.argv[1] != "dense")
config = parallax.Config(redirect_path=sys.argv[3] if len(sys.argv) > 3 else None)
parallax.parallel_run((net, torch.optim.SGD(net.parameters(), lr=0.1)), run, sys.argv[2] or None, 3, parallax_config=config)
"""


def script(*args: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "PARALLAX_"))}
    command = [sys.executable, "-c", SCRIPT, *args]
    if launcher:
        command = [sys.executable, "-m", "phalanx", "run", *launcher, "--", *command]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)


def test_a_process_starts_the_job_of_a_file_and_ends_with_its_code(tmp_path: Path) -> None:
    hosts = tmp_path / "resource_info"
    hosts.write_text("# two workers on this machine\n\nlocalhost\nlocalhost  # again\n")
    done = script("a b'c", str(hosts), str(tmp_path / "logs"))
    assert done.returncode == 0, done.stderr
    assert all(f"trained {r} of 2 MPI argument a b'c" in done.stdout for r in range(2)), done.stdout
    assert "trained 1 of 2" in (tmp_path / "logs" / "rank.1" / "stdout").read_text()
    assert script("bad", str(hosts)).returncode == 7


def test_a_file_that_is_missing_or_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    missing = script("x", str(tmp_path / "none"))
    assert missing.returncode != 0 and "resource_info" in missing.stderr and str(tmp_path / "none") in missing.stderr
    bad = tmp_path / "bad"
    bad.write_text("localhost\nh:\n")
    done = script("x", str(bad))
    assert done.returncode != 0 and f"{bad} line 2: nothing follows the colon" in done.stderr


def test_ranks_that_only_serve_have_the_tables() -> None:
    done = script("x", "", launcher=("-np", "2", "--servers", "2"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 2 HYBRID") == 2, done.stdout
    served = script("x", "", launcher=("-np", "2", "--servers", "2", "--serve"))
    assert served.returncode == 0 and served.stdout.count("of 2 HYBRID") == 2, served.stderr
    dense = script("dense", "", launcher=("-np", "2", "--servers", "1"))
    assert dense.returncode == 0 and dense.stdout.count("of 2 MPI") == 2, dense.stderr


def perplexity(command: str) -> int:
    """What an example says at its end, of two ranks."""
    script, *arguments = f"{command} --steps 60 --words 1000 --batch-size 128 --width 32 --lr 0.1".split()
    example = [sys.executable, str(Path(__file__).resolve().parents[2] / "examples" / script), *arguments]
    job = launch(2, example, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said, _ = job.communicate(timeout=DEADLINE_S)
    found = re.search(r"perplexity (\d+) of 1000 words", said)
    assert job.returncode == 0 and found, said
    return int(found[1])


@pytest.mark.parametrize(
    ("served", "alone"),
    [
        ("parallax_words.py", "torch_sparse_embedding.py"),
        ("parallax_words.py --graph", "graph_words.py --devices 1"),
    ],
)
def test_the_example_reaches_the_perplexity_of_the_one_without_servers(served: str, alone: str) -> None:
    wanted, got = perplexity(alone), perplexity(served)
    # The order of sums differs, nothing else. Knowing nothing is 1000.
    assert abs(got - wanted) <= 0.01 * wanted + 1 and got < 300, (got, wanted)


ENDLESS = """
import os, signal, sys, torch
from phalanx import parallax

open(os.path.join(sys.argv[1], "pid." + os.environ["PHALANX_RANK"]), "w").write(str(os.getpid()))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(8, 2, sparse=True)
    def forward(self, ids):
        return self.words(ids).square().sum()

net = Net()
session, n, worker, _ = parallax.parallel_run((net, torch.optim.SGD(net.parameters(), lr=0.1)))
steps = 0
try:
    while True:
        session.run("train_op", feed_dict={"ids": [torch.tensor([worker])]})
        steps += 1
        if steps == 3:
            print("ready", worker, flush=True)
except Exception as error:
    print("told", worker, error, flush=True)
    if len(sys.argv) > 2:
        # The network alone shall tell the others: not the end of this process.
        signal.pause()
    os._exit(3)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_killed_or_frozen_is_named_with_what_it_served(tmp_path: Path, how: signal.Signals) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "PARALLAX_"))}
    # A rank that waits for the timeout does not end in time.
    env.update(PHALANX_TIMEOUT=str(int(3 * DEADLINE_S)), OMP_NUM_THREADS="1")
    words = [sys.executable, "-m", "phalanx", "run", "-np", "2", "--servers", "1", "--"]
    words += [sys.executable, "-c", ENDLESS, str(tmp_path)]
    job = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert job.stdout is not None
    guard = threading.Timer(DEADLINE_S, job.kill)
    guard.start()
    said, server = "", 0
    try:
        for line in job.stdout:
            said += line
            if not server and said.count("ready") == 2:
                server = int((tmp_path / "pid.2").read_text())
                os.kill(server, how)
        code = job.wait(timeout=DEADLINE_S)
    finally:
        guard.cancel()
        job.kill()
        if server:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)
    told = [line for line in said.splitlines() if "told" in line]
    assert len(told) == 2 and all("rank 2, which serves partitions of words, is lost" in line for line in told), said
    assert code != 0


def ip(line: str) -> bool:
    return subprocess.run(["ip", *line.split()], capture_output=True).returncode == 0


def test_a_host_whose_link_is_cut_is_named_with_what_it_served(tmp_path: Path) -> None:
    a, b = (f"pxt{os.getpid()}{side}" for side in "ab")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_", "PARALLAX_"))}
    env.update(PHALANX_TIMEOUT=str(int(3 * DEADLINE_S)), OMP_NUM_THREADS="1")
    with contextlib.ExitStack() as stack:
        for name in (a, b):
            stack.callback(ip, f"netns del {name}")
        made = shutil.which("nsenter") is not None and ip(f"netns add {a}") and ip(f"netns add {b}")
        made = made and ip(f"-n {a} link add eth0 type veth peer name eth0 netns {b}")
        for i, name in enumerate((a, b), 1):
            made = made and ip(f"-n {name} addr add 10.79.0.{i}/24 dev eth0")
            made = made and ip(f"-n {name} link set lo up") and ip(f"-n {name} link set eth0 up")
        if not made:
            pytest.skip("network namespaces need root and iproute2")
        reach = "nsenter --net=/run/netns/{host}"
        words = ["nsenter", f"--net=/run/netns/{a}", sys.executable, "-m", "phalanx", "run", "-H", f"{a}:2,{b}:1"]
        words += ["--rsh", reach, "--", sys.executable, "-c", ENDLESS, str(tmp_path), "stays"]
        job = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        stack.callback(job.wait)
        stack.callback(job.terminate)
        guard = threading.Timer(DEADLINE_S, job.kill)
        guard.start()
        stack.callback(guard.cancel)
        assert job.stdout is not None
        said, cut = "", 0.0
        for line in job.stdout:
            said += line
            if not cut and said.count("ready") == 3:
                assert ip(f"-n {b} link set eth0 down")
                cut = time.monotonic()
            if said.count("told") == 3:
                break
        print(f"told {time.monotonic() - cut:.2f} s after the link was cut")
    told = [line for line in said.splitlines() if "told" in line]
    for who in ("told 0", "told 1"):
        assert any(who in line and "rank 2, which serves partitions of words, is lost" in line for line in told), said
    # The rank that is cut off has lost its launcher as well, and the other server.
    cut_off = "rank 0, which serves partitions of words, is lost: this host, of rank 2, does not reach the launcher any more"
    assert any("told 2" in line and cut_off in line for line in told), said
