"""Saves and loads of the same tensors by a session, by torch.save on rank 0 and by torch.distributed.checkpoint, in turns.

phalanx run -np 2 -- python benches/session/saves.py FOLDER MEGABYTES ROUNDS

All ranks begin at a barrier; a time ends when the last rank is done and, for saves, when the files are on the disk. Rank 0 prints
a line for each: `saves`, what, median, least and most milliseconds. The first round warms up.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import phalanx.torch as hvd

N_TENSORS = 40
DEADLINE_S = 120.0


class Weights(torch.nn.Module):
    """Forty tensors of a size, and a small one beside each."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        n = megabytes * 1_000_000 // 4 // N_TENSORS
        dice = torch.Generator().manual_seed(1)
        self.large = torch.nn.ParameterList([torch.rand(n, generator=dice) for _ in range(N_TENSORS)])
        self.small = torch.nn.ParameterList([torch.rand(64, generator=dice) for _ in range(N_TENSORS)])


class Turns:
    """Times by what was measured."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def measure(self, what: str, run: Callable[[], object]) -> None:
        """The time from a barrier until the last rank is done."""
        dist.barrier()
        begin = time.perf_counter()
        run()
        dist.barrier()
        self.keep(what, time.perf_counter() - begin)

    def keep(self, what: str, seconds: float) -> None:
        self.times.setdefault(what, []).append(seconds * 1e3)

    def told(self) -> str:
        rows = [(what, all_[1:]) for what, all_ in self.times.items()]
        return "\n".join(f"saves\t{what}\t{median(ms):.1f}\t{min(ms):.1f}\t{max(ms):.1f}" for what, ms in rows)


def synced(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def cleared(folder: Path) -> None:
    """What was removed is off the disk before the next measurement begins."""
    dist.barrier()
    if hvd.rank() == 0:
        for path in folder.iterdir():
            if path.name != "store":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        synced(folder)
    dist.barrier()


class Ours:
    """A session whose steps do nothing, so that a step's time is what the session adds."""

    def __init__(self, model: Weights, folder: Path, shards: str) -> None:
        self.folder = folder
        self.session = hvd.Session(
            model,
            checkpoint_dir=folder,
            save_checkpoint_secs=None,
            log_step_count_steps=None,
            stop_grace_period_secs=DEADLINE_S,
            shards=shards,
        )

    def save(self) -> float:
        """Seconds that the step took; it returns once the checkpoint is there."""
        self.session.save()
        begin = time.perf_counter()
        self.session.run(lambda: None)
        stall = time.perf_counter() - begin
        if hvd.rank() == 0:
            pointer, wanted = self.folder / "latest", f"checkpoint-{self.session.global_step}\n"
            until = time.monotonic() + DEADLINE_S
            while not (pointer.exists() and pointer.read_text().startswith(wanted)):
                if time.monotonic() > until:
                    raise TimeoutError(f"{wanted.strip()} was not written in {DEADLINE_S} s")
                time.sleep(0.0005)  # The writer tells nobody: the file is what counts.
        return stall


def torch_save(state: dict[str, torch.Tensor], path: Path, syncs: bool) -> None:
    if hvd.rank() == 0:
        with path.open("wb") as file:
            torch.save(state, file)
            if syncs:
                file.flush()
                os.fsync(file.fileno())


def plain_write(share: np.ndarray, path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        view = memoryview(share)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())


def plain_read(paths: list[Path], into: np.ndarray) -> None:
    for path in paths:
        with path.open("rb", buffering=0) as file:
            view = memoryview(into)
            while n := file.readinto(view):
                view = view[n:]


class Bench:
    """The state of two ranks, and what is done with it."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder, self.rank, self.turns = folder, hvd.rank(), Turns()
        self.model = Weights(megabytes)
        self.state = dict(self.model.state_dict())
        every = np.concatenate([tensor.numpy() for tensor in self.state.values()]).view(np.uint8)
        self.share = every[: len(every) // hvd.size()].copy()
        self.kept, self.buffer = np.ones_like(self.share), np.ones(len(every) + (1 << 20), np.uint8)

    def plain(self) -> None:
        """What the machine can do."""
        path = self.folder / f"plain-{self.rank}"
        self.turns.measure("memcpy of a share", lambda: np.copyto(self.kept, self.share))
        self.turns.measure("plain write + fsync of a share on each rank", lambda: plain_write(self.share, path))
        cleared(self.folder)

    def session(self, what: str, shards: str) -> None:
        """A session saves twice: for the first save it takes the memory for its copy."""
        at = self.folder / "ours"
        ours, stalls = Ours(self.model, at, shards), list[float]()
        # The rank that waits longest holds all of them up.
        self.turns.keep(f"{what}: the first step", max(hvd.allgather_object(ours.save())))
        self.turns.measure(what, lambda: stalls.append(ours.save()))
        self.turns.keep(f"{what}: the step", max(hvd.allgather_object(stalls[0])))
        files = sorted((at / f"checkpoint-{ours.session.global_step}").glob("*.safetensors"))
        ours.session.close()
        if shards == "each":
            self.turns.measure(
                "plain read on rank 0", lambda: plain_read(files, self.buffer) if self.rank == 0 else None
            )
            resumed: list[Ours] = []
            self.turns.measure("session resumes", lambda: resumed.append(Ours(self.model, at, shards)))
            resumed[0].session.close()
        cleared(self.folder)

    def torch(self) -> None:
        """What torch has for it."""
        path, at = self.folder / "torch.pt", self.folder / "dcp"
        self.turns.measure("torch.save + fsync on rank 0", lambda: torch_save(self.state, path, True))
        self.turns.measure("torch.load on each rank", lambda: self.model.load_state_dict(torch.load(path)))
        cleared(self.folder)
        self.turns.measure("torch.save without fsync on rank 0", lambda: torch_save(self.state, path, False))
        cleared(self.folder)
        writer, reader = dcp.FileSystemWriter(at), dcp.FileSystemReader(at)
        self.turns.measure("torch.distributed.checkpoint", lambda: dcp.save(self.state, storage_writer=writer))
        self.turns.measure("its load", lambda: dcp.load(self.state, storage_reader=reader))
        cleared(self.folder)


def main() -> None:
    folder, megabytes, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    hvd.init()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=hvd.rank(), world_size=hvd.size())
    torch.set_num_threads(1)
    bench = Bench(folder, megabytes)
    for _ in range(rounds + 1):
        bench.plain()
        bench.session("session", "each")
        bench.session("session, shards sent to rank 0", "rank0")
        bench.torch()
    if hvd.rank() == 0:
        print(bench.turns.told(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
