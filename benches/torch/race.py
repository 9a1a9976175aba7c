"""Measures training steps of one model in every mode of `steps.py`, in turns: all programs are started once, and one at a time computes.

race.py MODEL SECONDS ROUNDS PHALANX [MODE ...]    prints what `steps.py` says, a line for each mode and round

A round gives every mode one turn, in an order that is reversed from round to round. Between its turns a program waits for a word from
here and uses no processor. So modes are compared within seconds of each other, and nobody waits for imports in every round.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

SCRIPT = Path(__file__).with_name("steps.py")
MODES = ["single", "apart", "ddp", "phalanx", "phalanx-ddp", "ddp-plain"]
#: Those of others: one that fails is left out.
PEERS = ["ddp", "ddp-plain"]
START_S, TURN_S = 120.0, 120.0


class Failed(Exception):
    """A program did not do its turn."""


@dataclass
class Program:
    """The ranks of one mode."""

    mode: str
    process: subprocess.Popen[bytes]
    ranks: dict[int, socket.socket] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return 1 if self.mode == "single" else 2

    def say(self, word: str) -> None:
        for rank in self.ranks.values():
            rank.sendall(f"{word}\n".encode())

    def hear(self, limit_s: float) -> list[str]:
        """A line from each rank, first that of rank 0."""
        deadline = time.monotonic() + limit_s
        lines = []
        for _, rank in sorted(self.ranks.items()):
            line = b""
            while not line.endswith(b"\n"):
                rank.settimeout(max(deadline - time.monotonic(), 0.01))
                try:
                    part = rank.recv(4096)
                except OSError as why:
                    raise Failed(f"{self.mode} did not answer: {why}") from why
                if not part:
                    raise Failed(f"{self.mode} ended before its turn was over")
                line += part
            lines.append(line.decode().strip())
        return lines


def command(mode: str, model: str, phalanx: str) -> list[str]:
    script = [sys.executable, str(SCRIPT), mode, model]
    if mode == "single":
        return script
    if mode in PEERS:
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return [*run, *script[1:]]
    return [phalanx, "run", "-np", "2", "--tag-output", "never", "--", *script]


def start(mode: str, model: str, phalanx: str, meeting: str) -> Program:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "STEPS_MEETING": meeting}
    # What `phalanx run` sets for its ranks, given to all programs but one: torch takes large tensors in huge pages.
    environment.pop("THP_MEM_ALLOC_ENABLE", None)
    if mode != "ddp-plain":
        environment["THP_MEM_ALLOC_ENABLE"] = "1"
    return Program(mode, subprocess.Popen(command(mode, model, phalanx), env=environment, stdout=sys.stderr))


def gather(door: socket.socket, programs: dict[str, Program]) -> None:
    """Waits until all ranks have come; they say their mode and rank when they are ready to compute."""
    deadline = time.monotonic() + START_S
    with selectors.DefaultSelector() as selector:
        selector.register(door, selectors.EVENT_READ)
        while missing := [p for p in programs.values() if len(p.ranks) < p.size]:
            for program in missing:
                if program.process.poll() is not None:
                    drop(programs, program, f"{program.mode} ended before its ranks were ready")
            if not selector.select(timeout=0.2):
                if time.monotonic() > deadline:
                    for program in missing:
                        drop(programs, program, f"{program.mode} was not ready within {START_S:.0f} s")
                continue
            rank, _ = door.accept()
            rank.settimeout(START_S)
            mode, number = rank.makefile().readline().split()
            if mode in programs:
                programs[mode].ranks[int(number)] = rank


def drop(programs: dict[str, Program], program: Program, why: str) -> None:
    """Goes on without a peer; without one of ours there is nothing to compare."""
    if program.mode not in PEERS:
        raise Failed(why)
    print(f"{why}; it is left out", file=sys.stderr)
    programs.pop(program.mode, None)
    end(program)


def end(program: Program) -> None:
    for rank in program.ranks.values():
        rank.close()
    try:
        program.process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        program.process.kill()
        program.process.wait()


def main() -> None:
    model, seconds, rounds, phalanx, *modes = sys.argv[1:]
    programs: dict[str, Program] = {}
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
        meeting = str(Path(folder, "door"))
        door.bind(meeting)
        door.listen(16)
        try:
            for mode in modes or MODES:
                programs[mode] = start(mode, model, phalanx, meeting)
            gather(door, programs)
            for turn in range(int(rounds)):
                for mode in list(programs) if turn % 2 == 0 else list(reversed(programs)):
                    program = programs[mode]
                    try:
                        program.say(seconds)
                        print(program.hear(float(seconds) * 4 + TURN_S)[0], flush=True)
                    except (Failed, OSError) as why:
                        drop(programs, program, str(why))
        finally:
            for program in programs.values():
                end(program)


if __name__ == "__main__":
    try:
        main()
    except Failed as why:
        sys.exit(f"race.py: {why}")
