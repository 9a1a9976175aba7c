"""The flags of ``horovodrun``: their names, their values, and their effect on the ranks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from horovod._version import __version__


def _number(kind: type, what: str, least: float) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected {what}, not {text!r}")
        return value

    return read


n_ranks = _number(int, "a whole number of ranks from 1", 1)
count = _number(int, "a whole number from 0", 0)
amount = _number(float, "a number from 0", 0)
port = _number(int, "the number of a port, from 1", 1)
seconds = _number(float, "a number of seconds > 0", 1e-3)

#: Flags with a value that is a setting of the ranks: name, how it is read, and how it is written.
SETTINGS: dict[str, tuple[str, Callable[[str], Any], Callable[[Any], str]]] = {
    "--fusion-threshold-mb": ("HOROVOD_FUSION_THRESHOLD", amount, lambda mb: str(int(mb * 1024 * 1024))),
    "--cache-capacity": ("HOROVOD_CACHE_CAPACITY", count, str),
    "--timeline-filename": ("HOROVOD_TIMELINE", str, str),
    "--autotune-log-file": ("HOROVOD_AUTOTUNE_LOG", str, str),
    "--stall-check-warning-time-seconds": ("HOROVOD_STALL_CHECK_TIME_SECONDS", amount, str),
    "--stall-check-shutdown-time-seconds": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", amount, str),
}
#: Pairs of flags that switch a setting on and off.
SWITCHES = {
    ("--autotune", "--no-autotune"): "HOROVOD_AUTOTUNE",
    ("--timeline-mark-cycles", "--no-timeline-mark-cycles"): "HOROVOD_TIMELINE_MARK_CYCLES",
    ("--no-stall-check", "--stall-check"): "HOROVOD_STALL_CHECK_DISABLE",
}

_CHOSEN = "the algorithm is chosen for each operation; PHALANX_ALGORITHM names one"
_TUNING = "autotuning has no such parameter"
_ONE_CONTROLLER = "Phalanx has one controller, which needs neither MPI nor Gloo"
_NO_MPI = "Phalanx does not use MPI"
_LOG = "PHALANX_LOG sets what is logged"

#: Accepted with a note that says why they have no effect.
MEANINGLESS = {
    "--disable-cache": "Phalanx caches nothing between runs",
    "--hierarchical-allreduce": _CHOSEN,
    "--no-hierarchical-allreduce": _CHOSEN,
    "--hierarchical-allgather": _CHOSEN,
    "--no-hierarchical-allgather": _CHOSEN,
    "--torus-allreduce": _CHOSEN,
    "--no-torus-allreduce": _CHOSEN,
    "--mpi-threads-disable": _NO_MPI,
    "--no-mpi-threads-disable": _NO_MPI,
    "--tcp": "hosts always use TCP; PHALANX_TRANSPORT=tcp also replaces shared memory",
    "--gloo": _ONE_CONTROLLER,
    "--mpi": _ONE_CONTROLLER,
    "--log-with-timestamp": _LOG,
    "--log-without-timestamp": _LOG,
    "--log-hide-timestamp": _LOG,
    "--no-log-hide-timestamp": _LOG,
    "--prefix-output-with-timestamp": "the prefix of output lines has only the rank",
}
MEANINGLESS_WITH_VALUE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--cycle-time-ms": ("Phalanx has no cycles: an operation starts when the last rank has submitted it", amount),
    "--autotune-warmup-samples": (_TUNING, count),
    "--autotune-steps-per-sample": (_TUNING, count),
    "--autotune-bayes-opt-max-samples": (_TUNING, count),
    "--autotune-gaussian-process-noise": (_TUNING, amount),
    "--mpi-args": (_NO_MPI, str),
    "--binding-args": ("phalanx run --bind gives each rank its own cores", str),
    "--thread-affinity": ("phalanx run --bind gives each rank its own cores", count),
    "--num-nccl-streams": ("Phalanx does not use NCCL", count),
    "--gloo-timeout-seconds": ("PHALANX_TIMEOUT sets how long an operation waits", count),
}
LEVELS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]

#: Refused: another job would run than the one that was asked for.
REFUSED = {
    "--min-np": 1,
    "--min-num-proc": 1,
    "--max-np": 1,
    "--max-num-proc": 1,
    "--elastic-timeout": 1,
    "--reset-limit": 1,
    "--blacklist-cooldown-range": 2,
    "--host-discovery-script": 1,
}


def destination(flag: str) -> str:
    """Under what name a flag is kept."""
    return flag.strip("-").replace("-", "_")


def parser() -> argparse.ArgumentParser:
    """Horovod's command line. Long flags may be cut short where that is clear."""
    made = argparse.ArgumentParser(
        prog="horovodrun", description="Starts a Horovod script on several ranks, with phalanx run."
    )
    made.add_argument("-v", "--version", action="version", version=__version__)
    made.add_argument("-np", "--num-proc", dest="np", metavar="N", type=n_ranks, help="number of ranks")
    made.add_argument("-cb", "--check-build", action="store_true", help="print what is available, and exit")
    made.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts and the number of ranks on each")
    made.add_argument("-hostfile", "--hostfile", metavar="FILE", help="file with lines 'host slots=N'")
    made.add_argument(
        "--slots-per-host",
        metavar="N",
        type=n_ranks,
        help="number of ranks for each host that is named without a number",
    )
    made.add_argument("-p", "--ssh-port", metavar="PORT", type=port, help="the port of ssh on other hosts")
    made.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="the key for ssh")
    for flag in ("--network-interface", "--network-interfaces"):
        made.add_argument(
            flag,
            metavar="NAME,...",
            dest="interfaces",
            action="append",
            help="network interfaces on which the ranks meet; may be repeated",
        )
    made.add_argument(
        "--start-timeout",
        metavar="S",
        type=seconds,
        help="seconds to wait until all hosts have answered and all ranks have joined",
    )
    made.add_argument(
        "--output-filename", metavar="DIR", help="also write each rank's output to DIR/rank.N/stdout and stderr"
    )
    made.add_argument("--verbose", action="store_true", help="print which ranks start on which host")
    made.add_argument("--config-file", metavar="FILE", help="flags in YAML; the command line takes precedence")
    for flag, (name, read, _) in SETTINGS.items():
        made.add_argument(flag, metavar="VALUE", type=read, help=f"sets {name}")
    for (on, off), name in SWITCHES.items():
        pair = made.add_mutually_exclusive_group()
        pair.add_argument(on, dest=name, action="store_const", const="1", help=f"sets {name}")
        pair.add_argument(off, dest=name, action="store_const", const="0", help=argparse.SUPPRESS)
    _add_others(made)
    made.add_argument("command", nargs=argparse.REMAINDER, help="the command that every rank runs")
    return made


def _add_others(made: argparse.ArgumentParser) -> None:
    """Flags that have no effect with Phalanx."""
    controllers = made.add_mutually_exclusive_group()
    for flag in MEANINGLESS:
        group = controllers if flag in ("--gloo", "--mpi") else made
        names = ["-prefix-timestamp", flag] if flag == "--prefix-output-with-timestamp" else [flag]
        group.add_argument(*names, dest="noted", action="append_const", const=flag, help=argparse.SUPPRESS)
    for flag, (_, read) in MEANINGLESS_WITH_VALUE.items():
        made.add_argument(flag, type=read, help=argparse.SUPPRESS)
    made.add_argument("--log-level", choices=LEVELS, help=argparse.SUPPRESS)
    for flag, n in REFUSED.items():
        made.add_argument(flag, nargs=n, help=argparse.SUPPRESS)
    controllers.add_argument("--jsrun", action="store_true", help=argparse.SUPPRESS)


def notes(given: dict[str, Any]) -> list[str]:
    """Notes about flags that were given and have no effect."""
    said = [(flag, MEANINGLESS[flag]) for flag in given["noted"] or []]
    said += [(f, why) for f, (why, _) in MEANINGLESS_WITH_VALUE.items() if given[destination(f)] is not None]
    said += [("--log-level", _LOG)] if given["log_level"] else []
    if given["autotune_log_file"] and given["HOROVOD_AUTOTUNE"] != "1":
        said.append(("--autotune-log-file", "it is used only with --autotune"))
    return [f"{flag} has no effect: {why}" for flag, why in dict(said).items()]


__all__ = ["MEANINGLESS", "REFUSED", "SETTINGS", "SWITCHES", "destination", "notes", "parser"]
