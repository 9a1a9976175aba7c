"""Phalanx's graph against PyTorch, one thread each, case by case in turns.

    python benches/graph/compare.py target/release/examples/graph_bench [rounds] [part of a case's name ...]

Of each case the best median and the best time over the rounds are kept: others who use the machine only slow it down.
Prints `time, case, ours us, torch us, ratio by medians, by best times, wanted` and `memory, case, bytes with the plan, without
it, of torch, arena with the plan, without it`, separated by tabs.
"""

import os
import subprocess
import sys
from pathlib import Path

# Both sides keep freed memory: otherwise glibc gives large buffers back to the system after every step, and PyTorch pays for page faults.
ENVIRONMENT = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}

# Each case, and which part of PyTorch's speed is wanted.
CASES = {
    "sgemm_32x4096x1024": 0.8,
    "sgemm_32x200x784": 0.8,
    "sgemm_64x1024x4096": 0.8,
    "sgemm_128x512x512": 0.8,
    "sgemm_256x512x512": 0.8,
    "sgemm_512x512x512": 0.8,
    "sgemm_1024x1024x1024": 0.8,
    "sgemm_20x576x25": 0.8,
    "sgemm_50x64x500": 0.8,
    "sgemm_64x784x576": 0.8,
    "sgemm_64x784x64": 0.8,
    "sgemm_64x200x784": 0.8,
    "sgemm_64x784x200_nt": 0.8,
    "sgemm_784x200x64_tn": 0.8,
    "sgemm_32x1024x4096_nt": 0.8,
    "sgemm_1024x4096x32_tn": 0.8,
    "sgemm_64x64x64_nt": 0.8,
    "lenet_20_50": 1.0,
    "lenet_6_16": 1.0,
    "mlp_small": 1.0,
    "mlp_large": 1.0,
    "block": 0.8,
    "deep": 0.6,
    "conv_8x64x28x64x3": 0.6,
    "conv_16x64x28x64x3": 0.6,
    "conv_8x64x28x64x1": 0.6,
    "conv_16x64x28x64x1": 0.6,
    "conv_8x512x4x512x3": 1.0,
    "conv_16x512x4x512x3": 1.0,
    "conv_8x256x8x256x3": 1.0,
    "conv_16x256x8x256x3": 1.0,
    "conv_8x128x16x128x3": 1.0,
    "conv_8x64x32x128x3x2": 1.0,
    "conv_8x64x28x128x3x2": 1.0,
    "conv_8x64x28x64x3x1x64": 1.0,
    "conv_8x256x14x256x3x1x256": 1.0,
    # 1.2 times PyTorch's time at most.
    "conv_8x64x28x64x3x2x64": 0.83,
    "conv_8x128x14x128x5x1x128": 0.83,
    "conv_8x96x28x96x5x2x96": 0.83,
    "conv_8x512x7x512x3x1x512": 0.83,
    "conv_4x64x28x64x7x1x64": 0.83,
    "deconv_8x64x14x32x4x2": 0.83,
    "deconv_8x128x8x64x2x2": 0.83,
    "deconv_8x32x16x16x3x1": 0.83,
    "deconv_8x256x8x128x4x2": 0.83,
    "deconv_4x16x8x8x8x4": 0.83,
    "hsigmoid_64x128x10000": 0.83,
    "hsigmoid_32x64x2000": 0.83,
    "hsigmoid_256x256x50000": 0.83,
    "nce_64x128x10000x10": 0.83,
    "nce_32x64x2000x5": 0.83,
    "nce_256x128x50000x25": 0.83,
    "resnet_18": 1.0,
    "bag_of_words": 1.0,
}

# Cases whose memory is compared.
MEMORY = ("lenet_20_50", "lenet_6_16", "mlp_small", "mlp_large", "block", "deep")


class Side:
    """One of the two programs, which times a case when it reads its name."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        self.best: dict[str, tuple[float, float]] = {}

    def measure(self, name: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        row = self.process.stdout.readline().split("\t")
        if len(row) != 4 or row[0] != name:
            sys.exit(f"{self.process.args}: no row for {name}, but {row}")
        median, least = self.best.get(name, (float("inf"), float("inf")))
        self.best[name] = min(median, float(row[1])), min(least, float(row[2]))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def main() -> None:
    ours, *rest = sys.argv[1:] or sys.exit(__doc__)
    rounds = int(rest.pop(0)) if rest and rest[0].isdigit() else 3
    cases = [name for name in CASES if not rest or any(part in name for part in rest)]
    for part in rest:
        if not any(part in name for name in cases):
            sys.exit(f"no case has {part!r} in its name; there are {', '.join(CASES)}")
    theirs = Path(__file__).with_name("peer.py")
    sides = Side([ours]), Side([sys.executable, str(theirs)])
    for round in range(rounds):
        for name in cases:
            print(f"round {round + 1} of {rounds}, {name} ...", file=sys.stderr)
            for side in sides:
                side.measure(name)
    for side in sides:
        side.close()
    for name in cases:
        (a, a_least), (b, b_least) = (side.best[name] for side in sides)
        print("time", name, f"{a:.1f}", f"{b:.1f}", f"{b / a:.2f}", f"{b_least / a_least:.2f}", CASES[name], sep="\t")
    for name in (name for name in cases if name in MEMORY):
        (on, arena_on), (off, arena_off) = (said([ours, "--memory", plan, name]) for plan in ("on", "off"))
        (torch,) = said([sys.executable, str(theirs), "--memory", name])
        print("memory", name, on, off, torch, arena_on, arena_off, sep="\t")


def said(command: list[str]) -> list[str]:
    """The numbers that a program prints after the name of its case."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    return done.stdout.split()[1:]


if __name__ == "__main__":
    main()
