"""Paddle's flags: which act, which mean nothing here, and which are refused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from phalanx.graph._attributes import once
from phalanx.graph.errors import StrategyError

# Memory is planned before a run, so there is nothing to collect, to keep in reserve or to choose.
_MEMORY: dict[str, Any] = {
    "FLAGS_eager_delete_tensor_gb": 0.0,
    "FLAGS_fast_eager_deletion_mode": True,
    "FLAGS_memory_fraction_of_eager_deletion": 1.0,
    "FLAGS_fraction_of_cpu_memory_to_use": 1.0,
    "FLAGS_initial_cpu_memory_in_mb": 500,
    "FLAGS_allocator_strategy": "auto_growth",
    "FLAGS_local_exe_sub_scope_limit": 256.0,
}
# What is always so here.
_ALWAYS: dict[str, Any] = {"FLAGS_cpu_deterministic": True}
_CUDA: dict[str, Any] = {
    "FLAGS_use_mkldnn": False,
    "FLAGS_cudnn_deterministic": False,
    "FLAGS_fraction_of_gpu_memory_to_use": 0.92,
    "FLAGS_sync_nccl_allreduce": True,
    "FLAGS_enable_parallel_graph": False,
    "FLAGS_benchmark": False,
}


# How long sequences may be that are declared without max_length.
LONGEST = "FLAGS_max_sequence_length"


class Flags(Mapping[str, Any]):
    """Flags by name."""

    def __init__(self) -> None:
        self._values = {**_MEMORY, **_ALWAYS, **_CUDA, "FLAGS_check_nan_inf": False, LONGEST: 128}

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise StrategyError(f"there is no flag {name!r}; known flags: {', '.join(self._values)}", var=name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __setitem__(self, name: str, value: Any) -> None:
        before = self[name]
        if name == "FLAGS_check_nan_inf":
            self._values[name] = _switch(name, value)
        elif name == LONGEST:
            self._values[name] = _length(value)
        elif name in _MEMORY:
            once(f"{name} has no effect: memory is planned before the first run")
            self._values[name] = value
        elif value != before:
            raise StrategyError(f"{name} is {before!r} here and cannot be {value!r}", var=name, got=repr(value))


def _switch(name: str, value: Any) -> bool:
    """Whether a flag is on.

    >>> _switch("FLAGS_check_nan_inf", "true"), _switch("FLAGS_check_nan_inf", 0)
    (True, False)
    """
    text = str(value).lower()
    if text not in ("1", "true", "0", "false"):
        raise StrategyError(f"{name}={value!r}; it is 1 or true, or 0 or false", var=name, got=repr(value))
    return text in ("1", "true")


def _length(value: Any) -> int:
    """A length of sequences.

    >>> _length("400")
    400
    """
    text = str(value)
    if not text.isdecimal() or int(text) < 1:
        raise StrategyError(f"{LONGEST}={value!r}; it is a whole number from 1", var=LONGEST, got=repr(value))
    return int(text)


FLAGS = Flags()


def set_flags(flags: Mapping[str, Any]) -> None:
    """Sets flags by name."""
    for name, value in flags.items():
        FLAGS[name] = value


def get_flags(flags: str | Iterable[str]) -> dict[str, Any]:
    """The values of flags."""
    return {name: FLAGS[name] for name in ([flags] if isinstance(flags, str) else flags)}


def checks_numbers() -> bool:
    """Whether executors look for NaN and infinity because a flag says so, in a script or the environment."""
    name = "FLAGS_check_nan_inf"
    return bool(FLAGS[name]) or _switch(name, os.environ.get(name) or "0")


def longest(name: str) -> int:
    """How long the sequences of a variable may be that is declared without max_length; says so once."""
    given = os.environ.get(LONGEST)
    length = _length(given) if given else int(FLAGS[LONGEST])
    once(
        f"`{name}` has no max_length: sequences of up to {length} elements are taken, and padded to that; pass "
        f"max_length=…, or set {LONGEST}"
    )
    return length
