"""Which environment variables tell a process who it is, and which are settings.

The same names as in ``crates/phalanx-launch/src/environment.rs``; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: By what launchers tell a process its rank.
NAMES = frozenset(
    {
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "HOROVOD_CONTROLLER",
        "HOROVOD_CPU_OPERATIONS",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
        "HOROVOD_HOSTNAME",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "JOB_COMPLETION_INDEX",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_HOST",
        "MPI_LOCALNRANKS",
        "MPI_LOCALRANKID",
        "PHALANX_CORES",
        "PHALANX_ROLE",
        "PHALANX_SERVERS",
        "PS_HOSTS",
        "RANK",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "SLURM_GTIDS",
        "SLURM_LOCALID",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_PROCID",
        "SLURM_TASKS_PER_NODE",
        "TASK_INDEX",
        "TF_CONFIG",
        "WORKER_HOSTS",
        "WORLD_SIZE",
    }
)
PREFIXES = ("HOROVOD_GLOO_RENDEZVOUS_", "OMPI_COMM_", "OMPI_UNIVERSE_", "PMIX_", "PMI_", "SLURM_STEP", "TORCHELASTIC_")

#: What our own launcher tells a rank, and what belongs to one host.
_OURS = frozenset(
    {
        "PHALANX_CROSS_RANK",
        "PHALANX_CROSS_SIZE",
        "PHALANX_HOSTNAME",
        "PHALANX_HOST_ID",
        "PHALANX_JOB_BEGAN",
        "PHALANX_LAUNCHER",
        "PHALANX_LOCAL_RANK",
        "PHALANX_LOCAL_SIZE",
        "PHALANX_RANK",
        "PHALANX_RENDEZVOUS",
        "PHALANX_SIZE",
    }
)


def is_foreign(name: str) -> bool:
    """Whether the variable says something about another job than the one that is being started.

    >>> is_foreign("OMPI_COMM_WORLD_RANK"), is_foreign("PHALANX_SECRET"), is_foreign("PATH")
    (True, True, False)
    """
    return name in NAMES or name.startswith((*PREFIXES, "PHALANX_SECRET"))


def misleading(names: Iterable[str]) -> list[str]:
    """Those of these variables that a new rank must not find in its environment."""
    return [name for name in names if is_foreign(name) or (name in _OURS and name != "PHALANX_HOST_ID")]


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings among these variables, which all ranks shall have.

    >>> settings({"PHALANX_LOG": "info", "PHALANX_RANK": "3", "PHALANX_SECRET": "s", "HOME": "/root"})
    {'PHALANX_LOG': 'info'}
    """
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PHALANX_", "HOROVOD_")) and name not in _OURS and not is_foreign(name)
    }


__all__ = ["is_foreign", "misleading", "settings"]
