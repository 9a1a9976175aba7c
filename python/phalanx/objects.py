"""Python objects between ranks. They are pickled, but only between ranks of one world, which know each other's secret.
``PHALANX_STRICT=1`` forbids even that: unpickling runs what the sender likes.

>>> import phalanx
>>> phalanx.init()
>>> phalanx.broadcast_object({"lr": 0.1}, root_rank=0)
{'lr': 0.1}
>>> phalanx.allgather_object("here")
['here']
"""

from __future__ import annotations

import io
import pickle
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from phalanx import _phalanx
from phalanx.exceptions import UnsupportedError
from phalanx.process_sets import ProcessSet, global_process_set, set_id

T = TypeVar("T")


def broadcast_object(
    obj: T, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> T:
    """The object of ``root_rank``, on every rank."""
    _refuse_if_strict("broadcast_object")
    if root_rank not in process_set.ranks and _phalanx.place() is not None:
        raise ValueError(f"broadcast_object received invalid root rank {root_rank} for {process_set}")
    mine = _pickled(obj) if _phalanx.place()[0] == root_rank else b""
    gathered = gather_bytes(mine, f"broadcast_object.{name}" if name else None, process_set)
    return obj if mine else pickle.loads(gathered)


def allgather_object(obj: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[T]:
    """The objects of all ranks, in the order of ranks."""
    _refuse_if_strict("allgather_object")
    name = f"allgather_object.{name}" if name else None
    stream = io.BytesIO(gather_bytes(_pickled(obj), name, process_set))
    n_ranks = len(process_set.ranks)
    return [pickle.load(stream) for _ in range(n_ranks)]


def gather_bytes(mine: bytes, name: str | None, process_set: ProcessSet = global_process_set) -> bytes:
    """Everybody's bytes, in the order of ranks."""
    arrays, _ = _phalanx.submit("allgather", [mine], name=name, process_set=set_id(process_set)).wait()
    return arrays[0].tobytes()


def _refuse_if_strict(what: str) -> None:
    """Raises before anything is sent, and on every rank: a world forms only if all ranks have the same setting."""
    if _phalanx.is_strict():
        raise UnsupportedError(
            f"{what} pickles objects, which PHALANX_STRICT=1 forbids: send tensors or arrays instead, "
            "or start all ranks without PHALANX_STRICT if every rank may run code on every other"
        )


def _pickled(obj: Any) -> bytes:
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Functions and classes that no module names.
        if find_spec("cloudpickle") is None:
            raise
        pickled: bytes = import_module("cloudpickle").dumps(obj)
        return pickled


__all__ = ["allgather_object", "broadcast_object"]
