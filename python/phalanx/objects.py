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

import pickle
import struct
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from phalanx import _phalanx
from phalanx._arguments import checked_root
from phalanx.exceptions import UnsupportedError
from phalanx.process_sets import ProcessSet, global_process_set, set_id

T = TypeVar("T")


def broadcast_object(
    obj: T, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> T:
    """The object of ``root_rank``, on every rank."""
    _refuse_if_strict("broadcast_object")
    root_rank = checked_root(root_rank, process_set)
    is_root = _phalanx.place()[0] == root_rank
    mine, failure = _letter(obj) if is_root else (b"", None)
    answers = gather_bytes(mine, f"broadcast_object.{name}" if name else None, process_set)
    (theirs,) = _opened(answers, [root_rank], failure, "broadcast_object")
    return obj if is_root else pickle.loads(theirs)


def allgather_object(obj: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[T]:
    """The objects of all ranks, in the order of ranks."""
    _refuse_if_strict("allgather_object")
    set_id(process_set)
    mine, failure = _letter(obj)
    answers = gather_bytes(mine, f"allgather_object.{name}" if name else None, process_set)
    return [pickle.loads(theirs) for theirs in _opened(answers, process_set.ranks, failure, "allgather_object")]


#: Whether it is an object or the reason why there is none, and its length.
_HEAD = struct.Struct("<?Q")


def _letter(obj: Any) -> tuple[bytes, Exception | None]:
    """An object as others get it; if it cannot be sent, the reason, so that nobody waits for it."""
    try:
        body, failure = _pickled(obj), None
    except Exception as error:
        body, failure = f"{type(obj).__name__}: {type(error).__name__}: {error}".encode(), error
    return _HEAD.pack(failure is None, len(body)) + body, failure


def _opened(answers: bytes, ranks: Sequence[int], failure: Exception | None, what: str) -> list[bytes]:
    """The pickled objects of these ranks. If one could not send its own, every rank raises, itself the first reason."""
    bodies: list[bytes] = []
    at = 0
    refused: list[tuple[int, str]] = []
    while at < len(answers):
        is_object, n = _HEAD.unpack_from(answers, at)
        at += _HEAD.size
        if not is_object:
            refused.append((ranks[len(bodies)], answers[at : at + n].decode(errors="replace")))
        bodies.append(answers[at : at + n])
        at += n
    if refused:
        rank, why = refused[0]
        text = f"{what}: rank {rank} cannot send its object ({why}): send what pickle takes, such as tensors, numbers and dictionaries"
        raise UnsupportedError(text, rank=rank, cause=why) from failure
    return bodies


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
