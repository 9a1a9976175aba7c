"""``horovodrun``: Horovod's command line, translated for ``phalanx run``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

#: Flags whose meaning is an environment variable of the ranks.
_SETTINGS = {
    "fusion_threshold_mb": ("HOROVOD_FUSION_THRESHOLD", lambda v: str(int(v * 1024 * 1024))),
    "cache_capacity": ("HOROVOD_CACHE_CAPACITY", lambda v: str(int(v))),
    "timeline_filename": ("HOROVOD_TIMELINE", str),
    "autotune_log_file": ("HOROVOD_AUTOTUNE_LOG", str),
    "stall_check_warning_time_seconds": ("HOROVOD_STALL_CHECK_TIME_SECONDS", str),
    "stall_check_shutdown_time_seconds": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str),
    "start_timeout": ("PHALANX_START_TIMEOUT", str),
}
_SWITCHES = {
    "autotune": ("HOROVOD_AUTOTUNE", "1"),
    "timeline_mark_cycles": ("HOROVOD_TIMELINE_MARK_CYCLES", "1"),
    "no_stall_check": ("HOROVOD_STALL_CHECK_DISABLE", "1"),
}
#: Accepted, with a note: they choose between things of which there is one here.
_MEANINGLESS = [
    "--disable-cache", "--hierarchical-allreduce", "--no-hierarchical-allreduce", "--hierarchical-allgather",
    "--no-hierarchical-allgather", "--torus-allreduce", "--no-torus-allreduce", "--no-autotune", "--stall-check",
    "--no-timeline-mark-cycles", "--mpi-threads-disable", "--no-mpi-threads-disable", "--tcp", "--gloo", "--mpi", "--jsrun",
    "--log-with-timestamp", "--log-without-timestamp", "--log-hide-timestamp", "--no-log-hide-timestamp",
    "--prefix-output-with-timestamp", "-prefix-timestamp",
]  # fmt: skip
_MEANINGLESS_WITH_VALUE = [
    "--cycle-time-ms", "--autotune-warmup-samples", "--autotune-steps-per-sample", "--autotune-bayes-opt-max-samples",
    "--autotune-gaussian-process-noise", "--mpi-args", "--binding-args", "--num-nccl-streams", "--thread-affinity",
    "--gloo-timeout-seconds", "--log-level", "--network-interfaces",
]  # fmt: skip
_ELASTIC = [
    "--min-np", "--min-num-proc", "--max-np", "--max-num-proc", "--slots-per-host", "--elastic-timeout", "--reset-limit",
    "--blacklist-cooldown-range", "--host-discovery-script",
]  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="horovodrun", allow_abbrev=False, description=__doc__)
    parser.add_argument("-v", "--version", action="version", version="horovodrun of Phalanx (interface of 0.28.1)")
    parser.add_argument("-np", "--num-proc", dest="np", type=int, help="number of ranks")
    parser.add_argument("-cb", "--check-build", action="store_true", help="say what there is, and end")
    parser.add_argument("-H", "--hosts", help="host:slots,...")
    parser.add_argument("-hostfile", "--hostfile", help="file with lines 'host slots=N'")
    parser.add_argument("-p", "--ssh-port", type=int)
    parser.add_argument("-i", "--ssh-identity-file")
    parser.add_argument("--network-interface", action="append", default=[])
    parser.add_argument("--output-filename", help="folder for the output of each rank")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--config-file", help=argparse.SUPPRESS)
    for name in _SETTINGS:
        is_text = name in ("timeline_filename", "autotune_log_file")
        parser.add_argument("--" + name.replace("_", "-"), type=str if is_text else float)
    for name in _SWITCHES:
        parser.add_argument("--" + name.replace("_", "-"), action="store_true")
    for flag in _MEANINGLESS:
        parser.add_argument(flag, action="append_const", dest="noted", const=flag, help=argparse.SUPPRESS)
    for flag in _MEANINGLESS_WITH_VALUE + _ELASTIC:
        parser.add_argument(flag, dest=flag.strip("-"), help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def translate(words: Sequence[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Words for ``phalanx run``, variables for the ranks, and notes for the user.

    >>> translate(["-np", "2", "--fusion-threshold-mb", "8", "--gloo", "python", "train.py"])[:2]
    (['run', '-np', '2', '--', 'python', 'train.py'], {'HOROVOD_FUSION_THRESHOLD': '8388608'})
    """
    parser = _parser()
    args = parser.parse_args(list(words))
    given = vars(args)
    elastic = [flag for flag in _ELASTIC if given[flag.strip("-")] is not None]
    if elastic:
        parser.error(f"{', '.join(elastic)}: elastic jobs are not there yet")
    if args.config_file:
        parser.error("--config-file is not read; say the same with flags or PHALANX_ variables")
    if args.check_build:
        return [], {}, []
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("a command is needed, e.g. horovodrun -np 2 python train.py")
    if args.np is None and not args.hosts and not args.hostfile:
        parser.error("-np is needed: the number of ranks")
    run = ["run"]
    for flag, value in (("-np", args.np), ("--hosts", args.hosts), ("--hostfile", args.hostfile)):
        run += [flag, str(value)] if value is not None else []
    for interface in args.network_interface:
        run += ["--interface", interface]
    if args.output_filename:
        run += ["--output-filename", args.output_filename]
    if args.verbose:
        run.append("-v")
    if args.ssh_port or args.ssh_identity_file:
        shell = ["ssh"]
        shell += ["-p", str(args.ssh_port)] if args.ssh_port else []
        shell += ["-i", args.ssh_identity_file] if args.ssh_identity_file else []
        run += ["--rsh", " ".join([*shell, "{host}"])]
    env = {name: convert(given[flag]) for flag, (name, convert) in _SETTINGS.items() if given[flag] is not None}
    env |= {name: value for flag, (name, value) in _SWITCHES.items() if given[flag]}
    noted = (args.noted or []) + [f for f in _MEANINGLESS_WITH_VALUE if given[f.strip("-")] is not None]
    notes = [f"{flag} has no meaning here: there are no cycles, controllers or NCCL streams to choose" for flag in noted]
    return [*run, "--", *command], env, notes


def main() -> None:
    """The command."""
    run, env, notes = translate(sys.argv[1:])
    for note in notes:
        print(f"horovodrun: note: {note}", file=sys.stderr)
    if not run:
        print("Phalanx with Horovod's interface 0.28.1\n  frameworks: PyTorch\n  controllers: its own\n  operations: its own")
        return
    os.environ.update(env)
    os.execv(sys.executable, [sys.executable, "-m", "phalanx", *run])


if __name__ == "__main__":
    main()
