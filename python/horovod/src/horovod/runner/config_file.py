"""``horovodrun --config-file``: the file as flags.

It reads a subset of YAML: sections, each with lines ``name: value``, and comments.

>>> words("params:\\n  fusion_threshold_mb: 32   # MB\\nautotune:\\n  enabled: true\\n", "f.yaml")
['--fusion-threshold-mb', '32', '--autotune']
>>> words("params:\\n  fusion: 32\\n", "f.yaml")
Traceback (most recent call last):
    ...
ValueError: f.yaml line 2: params has no 'fusion'; it may have fusion_threshold_mb, cycle_time_ms, cache_capacity, ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: For each name its flag, or the flags for true and for false.
_Flag = str | tuple[str, str]
_SECTIONS: dict[str, dict[str, _Flag]] = {
    "params": {
        "fusion_threshold_mb": "--fusion-threshold-mb",
        "cycle_time_ms": "--cycle-time-ms",
        "cache_capacity": "--cache-capacity",
        "hierarchical_allreduce": ("--hierarchical-allreduce", "--no-hierarchical-allreduce"),
        "hierarchical_allgather": ("--hierarchical-allgather", "--no-hierarchical-allgather"),
        "torus_allreduce": ("--torus-allreduce", "--no-torus-allreduce"),
    },
    "autotune": {
        "enabled": ("--autotune", "--no-autotune"),
        "log_file": "--autotune-log-file",
        "warmup_samples": "--autotune-warmup-samples",
        "steps_per_sample": "--autotune-steps-per-sample",
        "bayes_opt_max_samples": "--autotune-bayes-opt-max-samples",
        "gaussian_process_noise": "--autotune-gaussian-process-noise",
    },
    "timeline": {
        "filename": "--timeline-filename",
        "mark_cycles": ("--timeline-mark-cycles", "--no-timeline-mark-cycles"),
    },
    "stall_check": {
        "enabled": ("--stall-check", "--no-stall-check"),
        "warning_time_seconds": "--stall-check-warning-time-seconds",
        "shutdown_time_seconds": "--stall-check-shutdown-time-seconds",
    },
    "library_options": {
        "mpi_threads_disable": ("--mpi-threads-disable", "--no-mpi-threads-disable"),
        "num_nccl_streams": "--num-nccl-streams",
        "thread_affinity": "--thread-affinity",
        "gloo_timeout_seconds": "--gloo-timeout-seconds",
    },
    "logging": {
        "level": "--log-level",
        "with_timestamp": ("--log-with-timestamp", "--log-without-timestamp"),
        "hide_timestamp": ("--log-without-timestamp", "--log-with-timestamp"),
    },
}
_CONTROLLERS = {"gloo": "--gloo", "mpi": "--mpi"}
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


def words(text: str, path: str) -> list[str]:
    """The contents of the file as flags."""
    flags: list[str] = []
    for number, section, name, value in _entries(text, path):
        place = f"{path} line {number}"
        if section is None:
            if name != "controller" or value.lower() not in _CONTROLLERS:
                raise ValueError(
                    f"{place}: '{name}: {value}' is not understood; without indentation write "
                    f"controller: gloo or mpi, or a section: {', '.join(_SECTIONS)}"
                )
            flags.append(_CONTROLLERS[value.lower()])
            continue
        flag = _SECTIONS[section].get(name)
        if flag is None:
            known = list(_SECTIONS[section])
            some = ", ".join(known[:3]) + (", ..." if len(known) > 3 else "")
            raise ValueError(f"{place}: {section} has no {name!r}; it may have {some}")
        if value.lower() in ("", "null", "~"):
            continue
        if isinstance(flag, str):
            flags += [flag, value]
        elif value.lower() in _TRUE + _FALSE:
            flags.append(flag[value.lower() in _FALSE])
        else:
            raise ValueError(f"{place}: {name} must be true or false, not {value!r}")
    return flags


def _entries(text: str, path: str) -> Iterator[tuple[int, str | None, str, str]]:
    """Line number, section, name and value of each entry."""
    section = None
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(^|\s)#.*", "", line).rstrip()
        if not bare or bare == "---":
            continue
        entry = re.fullmatch(r"( *)([A-Za-z_]+) *:(?: +(.*))?", bare)
        value = (entry[3] or "").strip() if entry else ""
        if entry is None or value.startswith(("[", "{", "|", ">", "&", "*", "!")):
            raise ValueError(
                f"{path} line {number}: {line.strip()!r} is not understood; write a section, or 'name: value'"
            )
        if not entry[1]:
            section = entry[2] if not value else None
            if section is not None and section not in _SECTIONS:
                raise ValueError(
                    f"{path} line {number}: there is no section {section!r}; choose one of {', '.join(_SECTIONS)}"
                )
            if section is not None:
                continue
        elif section is None:
            raise ValueError(
                f"{path} line {number}: {entry[2]!r} is not in a section; put it into one of {', '.join(_SECTIONS)}"
            )
        yield number, section, entry[2], value.strip("'\"")


__all__ = ["words"]
