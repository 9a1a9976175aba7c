"""Whether ranks hold the same parameters, asked in the first reductions of their gradients.

Native operations of TensorFlow and JAX do this themselves; what is here is for eager code, and where there is no native operation.
The engine's side is ``crates/phalanx-py/src/alike.rs``.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phalanx import _phalanx

#: What to write, by who asks.
OF_KERAS = (
    "give every rank the variables of rank 0, with callbacks=[BroadcastGlobalVariablesCallback(0)] in fit() "
    "or broadcast_variables(model.variables, root_rank=0). After join() the root is the rank that join() returned."
)
OF_ANY_KERAS = (
    "give every rank the variables of rank 0, with callbacks=[BroadcastGlobalVariablesCallback(0)] in fit() or broadcast_model(model). "
    "After join() the root is the rank that join() returned."
)
OF_TAPES = (
    "give every rank the variables of rank 0, with broadcast_variables(model.variables, root_rank=0) before or after the first step; "
    "pass layers of one rank alone to PartialDistributedGradientTape(local_layers=...). "
    "After join() the root is the rank that join() returned."
)
OF_SESSIONS = (
    "give every rank the variables of rank 0, with hooks=[BroadcastGlobalVariablesHook(0)] of a monitored session "
    "or by running broadcast_global_variables(0). After join() the root is the rank that join() returned."
)
OF_JAX = (
    "give every rank the parameters of rank 0, with parameters = hvd.broadcast(parameters, root_rank=0); "
    "pass compared=False where they are meant to differ."
)


def words(remedy: str, names: Sequence[str]) -> str:
    """What native operations are told: what to write, and the names of the parameters."""
    return "\n".join([remedy, *(name.replace("\n", " ") for name in names)])


@functools.lru_cache(maxsize=256)
def digest(lines: tuple[str, ...]) -> str:
    """A short name of a list of parameters."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


_serials = itertools.count()


def key_of(name: str, variables: Sequence[Any]) -> str:
    """Under what reductions of these variables are counted. A function may be traced again, and another model's may have its name."""
    serials = []
    for variable in variables:
        if not hasattr(variable, "_phalanx_serial"):
            variable._phalanx_serial = str(next(_serials))
        serials.append(variable._phalanx_serial)
    return f"{name}#{digest(tuple(serials))}"


def compare(
    name: str, process_set: int, said: Callable[[], str], variables: Sequence[Any], arrays: Callable[[], Sequence[Any]]
) -> None:
    """Counts a reduction of these variables; in one of those in which ranks compare, waits for them, and raises an error if they differ."""
    turn = _phalanx.alike_turn(process_set, key_of(name, variables))
    if turn:
        compare_now(name, process_set, said(), arrays, turn)


def compare_now(
    name: str, process_set: int, said: str, arrays: Callable[[], Sequence[Any]], turn: int, note: str = ""
) -> None:
    """Waits for the other ranks, and raises an error if their arrays differ."""
    row = _phalanx.alike_row([_lent(np.asarray(a, order="C")) for a in arrays()])
    gathered, _ = _phalanx.submit("allgather", [row], name=name, process_set=process_set, note=note or None, awaited=True).wait()
    _phalanx.alike_judge(gathered[0].tobytes(), said, turn)


_CODES = {np.dtype(name): code for name, code in (("f4", 8), ("f8", 9))}


def _lent(array: Any) -> Any:
    if array.dtype not in _CODES:
        array = np.frombuffer(array.tobytes(), np.uint8)
    return array.ctypes.data, _CODES.get(array.dtype, 0), array.shape, array


__all__ = ["OF_ANY_KERAS", "OF_JAX", "OF_KERAS", "OF_SESSIONS", "OF_TAPES", "compare", "compare_now", "digest", "key_of", "words"]
