"""``horovodrun``: Horovod's command line, translated for ``phalanx run``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from horovod._version import __version__
from horovod.common import util
from horovod.runner import config_file, flags


def translate(words: Sequence[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Arguments for ``phalanx run``, variables for the ranks, and notes for the user; no arguments for ``--check-build``.

    >>> translate(["-np", "2", "--fusion-threshold-mb", "8", "python", "train.py"])[:2]
    (['run', '--horovod', '-np', '2', '--', 'python', 'train.py'], {'HOROVOD_FUSION_THRESHOLD': '8388608'})
    """
    parser = flags.parser()
    args = _with_config(parser, list(words))
    given = vars(args)
    _refuse(parser, args)
    if args.check_build:
        return [], {}, []
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("the command is missing; write e.g. horovodrun -np 2 python train.py")
    if args.np is None and not args.hosts and not args.hostfile:
        parser.error("-np is missing; write the number of ranks, e.g. -np 2")
    run = ["run", "--horovod"]
    shell = rsh(args.ssh_port, args.ssh_identity_file)
    has_hosts = bool(args.hosts or args.hostfile)
    values = {
        "-np": args.np,
        "--hosts": args.hosts,
        "--hostfile": args.hostfile,
        "--slots-per-host": args.slots_per_host,
        "--interface": ",".join(args.interfaces) if args.interfaces else None,
        "--start-timeout": args.start_timeout,
        "--output-filename": args.output_filename,
        "--rsh": shell if has_hosts else None,
    }
    for flag, value in values.items():
        run += [flag, str(value)] if value is not None else []
    if args.verbose:
        run.append("-v")
    settings = {name: (given[flags.destination(flag)], write) for flag, (name, _, write) in flags.SETTINGS.items()}
    env = {name: write(value) for name, (value, write) in settings.items() if value is not None}
    env |= {name: given[name] for name in flags.SWITCHES.values() if given[name] is not None}
    env |= {"HOROVOD_START_TIMEOUT": str(args.start_timeout)} if args.start_timeout else {}
    notes = flags.notes(given)
    if shell is not None and not has_hosts:
        notes.append("-p and -i have no effect: all ranks start on this machine; name hosts with -H or --hostfile")
    return [*run, "--", *command], env, notes


def _with_config(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """The flags of the command line, then those of the configuration file that it names."""
    args = parser.parse_args(words)
    if args.start_timeout is None and os.environ.get("HOROVOD_START_TIMEOUT"):
        try:
            args.start_timeout = flags.seconds(os.environ["HOROVOD_START_TIMEOUT"])
        except argparse.ArgumentTypeError as why:
            parser.error(f"HOROVOD_START_TIMEOUT: {why}")
    if args.config_file is None:
        return args
    try:
        said = config_file.words(Path(args.config_file).read_text(encoding="utf-8"), args.config_file)
    except (OSError, UnicodeDecodeError, ValueError) as why:
        parser.error(f"--config-file: {why}")
    from_file = vars(parser.parse_args([*said, "--", "x"]))
    noted = [*(from_file.pop("noted") or []), *(args.noted or [])]
    for name, value in from_file.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.noted = noted
    return args


def _refuse(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    elastic = [flag for flag in flags.REFUSED if getattr(args, flags.destination(flag)) is not None]
    if elastic:
        parser.error(f"{', '.join(elastic)}: elastic jobs are not supported yet; write -np for a job of fixed size")
    if args.jsrun:
        parser.error("--jsrun: ranks are started through ssh, not by LSF; write -H with the hosts of the allocation")
    empty = [name for name in (args.interfaces or []) if not all(name.split(","))]
    if empty:
        parser.error(f"--network-interface {empty[0]!r}: a name is missing; write e.g. eth0,eth1")
    if args.hosts and args.hostfile:
        parser.error("--hosts and --hostfile both name hosts; leave one of them out")


def rsh(port: int | None, identity_file: str | os.PathLike[str] | None) -> str | None:
    """The remote-shell command for a port and a key, without ``{host}``, so that it is not used for this machine.

    >>> rsh(2222, "my key")
    "ssh -p 2222 -i 'my key'"
    """
    if port is None and identity_file is None:
        return None
    words = ["ssh"]
    words += ["-p", str(port)] if port is not None else []
    words += ["-i", os.fspath(identity_file)] if identity_file is not None else []
    return shlex.join(words)


def check_build(verbose: bool = False) -> str:
    """The list for ``--check-build``, with a mark for each available part."""

    def mark(answer: object) -> str:
        return "[X]" if answer else "[ ]"

    frameworks = {"TensorFlow": "tensorflow", "PyTorch": "torch", "MXNet": "mxnet"}
    gloo, mpi = util.gloo_built(verbose), util.mpi_built(verbose)
    operations = {
        "NCCL": util.nccl_built(verbose),
        "DDL": util.ddl_built(verbose),
        "CCL": util.ccl_built(verbose),
        "MPI": mpi,
        "Gloo": gloo,
    }
    lines = [f"Phalanx with the interface of Horovod v{__version__}:", "", "Frameworks:"]
    lines += [f"    {mark(util.extension_available(name, verbose))} {shown}" for shown, name in frameworks.items()]
    lines += [
        "",
        "Controllers (Phalanx's own controller is listed as Gloo):",
        f"    {mark(mpi)} MPI",
        f"    {mark(gloo)} Gloo",
    ]
    lines += ["", "Tensor operations:", *(f"    {mark(answer)} {name}" for name, answer in operations.items())]
    return "\n".join(lines)


def main() -> None:
    """The command."""
    run, env, notes = translate(sys.argv[1:])
    for note in notes:
        print(f"horovodrun: note: {note}", file=sys.stderr)
    if not run:
        print(check_build(flags.parser().parse_args().verbose))
        return
    os.environ.update(env)
    os.execv(sys.executable, [sys.executable, "-m", "phalanx", *run])


#: Horovod's name for it.
run_commandline = main

if __name__ == "__main__":
    main()
